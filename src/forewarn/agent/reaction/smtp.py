"""Mail handed to a server: the few words of SMTP that this takes, in a dialogue that can be cancelled (RFC 5321)."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path
from typing import Literal

from forewarn.agent.reaction.secret import secret_in
from forewarn.errors import Rejected, Unavailable

Security = Literal["starttls", "tls", "none"]
_LONGEST_LINE = 4096


class Busy(Unavailable):
    """The server is not there or asks to try later."""


class Declined(Rejected):
    """The server will not take this mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """Where mail is handed in."""

    host: str
    port: int
    security: Security = "starttls"
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def hand_in(office: Office, mail: EmailMessage, sender: str, receivers: tuple[str, ...]) -> None:
    """Returns when the server has taken it. Raises Busy, Declined, NoSecret."""
    try:
        dialogue = await _Dialogue.open(office)
        try:
            await _introduced(dialogue, office)
            await _handed_over(dialogue, mail, sender, receivers)
        finally:
            dialogue.close()
    except ssl.SSLCertVerificationError as error:
        why = f"has a certificate that is not trusted ({error.verify_message}): name its CA with ca_file"
        raise Busy(f"{office} {why}") from error
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise Busy(f"{office} cannot be spoken to ({getattr(error, 'strerror', None) or 'hung up'})") from error


async def _introduced(dialogue: _Dialogue, office: Office) -> None:
    offers = await dialogue.greet()
    if office.security == "starttls":
        if "STARTTLS" not in offers:
            raise Declined(f'{office} offers no STARTTLS: write security = "tls" or "none"')
        await dialogue.say("STARTTLS", 220)
        await dialogue.encrypt()
        await dialogue.say("EHLO forewarn", 250)
    if office.password_file:
        pair = f"\0{office.user}\0{secret_in(office.password_file)}".encode()
        await dialogue.say(f"AUTH PLAIN {base64.b64encode(pair).decode()}", 235, shown="AUTH PLAIN")


async def _handed_over(dialogue: _Dialogue, mail: EmailMessage, sender: str, receivers: tuple[str, ...]) -> None:
    await dialogue.say(f"MAIL FROM:<{sender}>", 250)
    for receiver in receivers:
        await dialogue.say(f"RCPT TO:<{receiver}>", 250, 251)
    await dialogue.say("DATA", 354)
    lines = mail.as_bytes(policy=SMTP).removesuffix(b"\r\n").split(b"\r\n")
    await dialogue.send(b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines) + b"\r\n")
    await dialogue.say(".", 250, shown="the mail")
    with suppress(Busy, Declined, OSError, asyncio.IncompleteReadError):  # it is taken, whatever comes now
        await dialogue.say("QUIT", 221)


class _Dialogue:
    def __init__(self, office: Office, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._office, self._reader, self._writer = office, reader, writer

    @classmethod
    async def open(cls, office: Office) -> _Dialogue:
        trust = _trust(office) if office.security == "tls" else None
        return cls(office, *await asyncio.open_connection(office.host, office.port, ssl=trust, limit=_LONGEST_LINE))

    def close(self) -> None:
        self._writer.transport.abort()

    async def greet(self) -> set[str]:
        """What the server offers."""
        await self._hear("the greeting", (220,))
        lines = await self.say("EHLO forewarn", 250)
        return {line.split(" ")[0].upper() for line in lines[1:]}

    async def encrypt(self) -> None:
        await self._writer.start_tls(_trust(self._office), server_hostname=self._office.host)

    async def say(self, words: str, *wanted: int, shown: str = "") -> list[str]:
        await self.send(f"{words}\r\n".encode())
        return await self._hear(shown or words, wanted)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _hear(self, what: str, wanted: tuple[int, ...]) -> list[str]:
        """The lines of an answer, without its code: 4xx means later, 5xx means no."""
        lines: list[str] = []
        while True:
            raw = (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").rstrip()
            code, is_last = int(raw[:3]), raw[3:4] != "-"
            lines.append(raw[4:])
            if is_last:
                break
        if code not in wanted:
            answer = f"{self._office} answers {what} with {code} {lines[-1]}"
            raise Declined(answer) if code >= 500 else Busy(answer)
        return lines


def _trust(office: Office) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=office.ca_file)
