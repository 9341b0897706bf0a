"""An SMTP server on loopback that keeps the mail it receives; STARTTLS, TLS and passwords optional."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMail:
    sender: str
    receivers: tuple[str, ...]
    raw: bytes
    user: str  # "": not authenticated
    was_encrypted: bool

    @property
    def mail(self) -> EmailMessage:
        mail = message_from_bytes(self.raw, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        return mail


class SmtpServer:
    """Keeps received `mails`; `answer_mail_with` sets the next answers to MAIL. Use it with `async with`."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, implicit: bool = False, password: str = "") -> None:
        self.mails: list[ReceivedMail] = []
        self.connections = 0
        self.port = 0
        self._tls, self._implicit, self._password = tls, implicit, password
        self._answers: deque[str] = deque()
        self._connection_tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SmtpServer:
        secured = self._tls if self._implicit else None
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=secured)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        await asyncio.gather(*self._connection_tasks)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer_mail_with(self, *lines: str) -> None:
        self._answers.extend(lines)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._connection_tasks.add(task)
        try:
            await self._handle_commands(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client hung up
        finally:
            writer.transport.abort()

    async def _handle_commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user, sender, is_encrypted = "", "", self._implicit
        receivers: list[str] = []
        writer.write(b"220 post office\r\n")
        while line := (await reader.readline()).decode().strip():
            verb = line.split()[0].upper()
            if verb == "EHLO":
                writer.write(self._extensions(is_encrypted=is_encrypted))
            elif verb == "STARTTLS" and self._tls:
                writer.write(b"220 go on\r\n")
                await writer.start_tls(self._tls)
                is_encrypted = True
            elif verb == "AUTH":
                user = self._authenticated_user(line.split()[2])
                writer.write(b"235 welcome\r\n" if user else b"535 no\r\n")
            elif verb == "MAIL":
                sender = _mail_address(line)
                writer.write(self._answers.popleft().encode() + b"\r\n" if self._answers else b"250 ok\r\n")
            elif verb == "RCPT":
                receivers.append(_mail_address(line))
                writer.write(b"250 ok\r\n")
            elif verb == "DATA":
                writer.write(b"354 go on\r\n")
                raw = await _read_mail_data(reader)
                to = tuple(receivers)
                self.mails.append(
                    ReceivedMail(sender=sender, receivers=to, raw=raw, user=user, was_encrypted=is_encrypted)
                )
                writer.write(b"250 taken\r\n")
            else:
                writer.write(b"221 bye\r\n" if verb == "QUIT" else b"502 what?\r\n")

    def _extensions(self, *, is_encrypted: bool) -> bytes:
        offers = ["post.office", "8BITMIME"]
        offers += ["STARTTLS"] if self._tls and not is_encrypted else []
        offers += ["AUTH PLAIN"] if self._password else []
        lines = [f"250-{offer}" for offer in offers[:-1]] + [f"250 {offers[-1]}"]
        return "".join(f"{line}\r\n" for line in lines).encode()

    def _authenticated_user(self, given: str) -> str:
        _, user, password = base64.b64decode(given).decode().split("\0")
        return user if password == self._password else ""


def _mail_address(line: str) -> str:
    return line.partition("<")[2].partition(">")[0]


async def _read_mail_data(reader: asyncio.StreamReader) -> bytes:
    lines = []
    while (line := await reader.readline()) != b".\r\n":
        lines.append(line.removeprefix(b"."))
    return b"".join(lines)
