"""Reaction `mail`: sends mail about the event, with a small cancellable SMTP client (RFC 5321)."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from pathlib import Path
from typing import Literal, cast

from forewarn.agent.model import StepContext, StepOutcome, StepPhase
from forewarn.agent.reactions.options import ReactionKind, SecretUnavailable, read_secret
from forewarn.agent.reactions.step_context import event_details, event_sentence, reserve_s
from forewarn.base.clock import read_real_time
from forewarn.base.tomlfile import BadValue, RawTable, read_choice, read_path, read_required_text, read_text, read_texts
from forewarn.errors import Rejected, Unavailable

_SmtpSecurity = Literal["starttls", "tls", "none"]  # how the connection is encrypted
_MAX_LINE_BYTES = 4096


class _SmtpTemporaryError(Unavailable):
    """The server cannot be reached or is not trusted, breaks off, or asks to try later (4xx)."""


class _SmtpRejected(Rejected):
    """The server rejects the mail (5xx), or lacks STARTTLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SmtpServerConfig:
    host: str
    port: int
    security: _SmtpSecurity = "starttls"  # tls: from the first byte on; none: not encrypted
    user: str = ""  # "": no authentication
    password_file: Path | None = None  # None: no authentication
    ca_file: Path | None = None  # None: the system's CAs

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def _send_mail(server: _SmtpServerConfig, mail: EmailMessage, sender: str, receivers: tuple[str, ...]) -> None:
    # If the connection breaks at the end, the server may have accepted the mail although _SmtpTemporaryError is raised.
    try:
        session = await _SmtpSession.open(server)
        try:
            await _greet_and_authenticate(session, server)
            await _transfer_mail(session, mail, sender, receivers)
        finally:
            session.close()
    except ssl.SSLCertVerificationError as error:
        why = f"has a certificate that is not trusted ({error.verify_message}): set ca_file to its CA"
        raise _SmtpTemporaryError(f"{server} {why}") from error
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise _SmtpTemporaryError(
            f"{server} cannot be reached ({getattr(error, 'strerror', None) or 'connection closed'})"
        ) from error


async def _greet_and_authenticate(session: _SmtpSession, server: _SmtpServerConfig) -> None:
    offers = await session.greet()
    if server.security == "starttls":
        if "STARTTLS" not in offers:
            raise _SmtpRejected(f'{server} offers no STARTTLS: write security = "tls" or "none"')
        await session.command("STARTTLS", 220)
        await session.start_tls()
        await session.command("EHLO forewarn", 250)
    if server.password_file:
        pair = f"\0{server.user}\0{read_secret(server.password_file)}".encode()
        await session.command(f"AUTH PLAIN {base64.b64encode(pair).decode()}", 235, shown_as="AUTH PLAIN")


async def _transfer_mail(session: _SmtpSession, mail: EmailMessage, sender: str, receivers: tuple[str, ...]) -> None:
    await session.command(f"MAIL FROM:<{sender}>", 250)
    for receiver in receivers:
        await session.command(f"RCPT TO:<{receiver}>", 250, 251)
    await session.command("DATA", 354)
    lines = mail.as_bytes(policy=SMTP).removesuffix(b"\r\n").split(b"\r\n")
    await session.send(b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines) + b"\r\n")
    await session.command(".", 250, shown_as="the mail")
    # The server has accepted the mail; errors from here on do not matter.
    with suppress(_SmtpTemporaryError, _SmtpRejected, OSError, asyncio.IncompleteReadError):
        await session.command("QUIT", 221)


class _SmtpSession:
    def __init__(self, server: _SmtpServerConfig, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server, self._reader, self._writer = server, reader, writer

    @classmethod
    async def open(cls, server: _SmtpServerConfig) -> _SmtpSession:
        trust = _tls_context(server) if server.security == "tls" else None
        return cls(server, *await asyncio.open_connection(server.host, server.port, ssl=trust, limit=_MAX_LINE_BYTES))

    def close(self) -> None:
        self._writer.transport.abort()

    async def greet(self) -> set[str]:
        await self._read_reply("the greeting", (220,))
        lines = await self.command("EHLO forewarn", 250)
        return {line.split(" ")[0].upper() for line in lines[1:]}

    async def start_tls(self) -> None:
        await self._writer.start_tls(_tls_context(self._server), server_hostname=self._server.host)

    async def command(self, line: str, *expected: int, shown_as: str = "") -> list[str]:
        """Sends a command and returns the reply's lines; `shown_as` replaces it in error messages."""
        await self.send(f"{line}\r\n".encode())
        return await self._read_reply(shown_as or line, expected)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _read_reply(self, what: str, expected: tuple[int, ...]) -> list[str]:
        lines: list[str] = []
        while True:
            raw = (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").rstrip()
            code, is_last = int(raw[:3]), raw[3:4] != "-"
            lines.append(raw[4:])
            if is_last:
                break
        if code not in expected:
            answer = f"{self._server} answers {what} with {code} {lines[-1]}"
            raise _SmtpRejected(answer) if code >= 500 else _SmtpTemporaryError(answer)
        return lines


def _tls_context(server: _SmtpServerConfig) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.ca_file)


_DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_MAIL_ADDRESS = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")
_UNSAFE_ID_CHARACTERS = re.compile(r"[^A-Za-z0-9-]")
_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MailOptions:
    server: _SmtpServerConfig  # the SMTP server: host, port, security, credentials, CAs
    sender: str  # the mail address of `from`
    receivers: tuple[str, ...]  # the mail addresses of `to`, at least one


class MailReaction:
    """The reaction `mail`: sends a mail when the event is announced, and one when it is gone."""

    def __init__(self, options: MailOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        mail, wait_s, end_s = _compose_mail(context, self._options), _FIRST_RETRY_S, reserve_s(context)
        while True:
            left_s = context.left_s() - end_s
            try:
                async with asyncio.timeout(max(left_s, 0.05)):
                    await _send_mail(self._options.server, mail, self._options.sender, self._options.receivers)
                return StepOutcome(ok=True, text=f"accepted by {self._options.server} for {mail['To']}")
            except (_SmtpRejected, SecretUnavailable) as error:
                return StepOutcome(ok=False, text=str(error))
            except TimeoutError:
                return StepOutcome(
                    ok=False, text=f"{self._options.server} has not accepted the mail by the end of the step's time"
                )
            except _SmtpTemporaryError as error:
                if context.left_s() - end_s <= wait_s:
                    return StepOutcome(ok=False, text=str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _MAX_RETRY_S)

    async def undo(self, context: StepContext) -> StepOutcome:
        return await self.do(context)

    async def check(self, context: StepContext) -> bool | None:
        return None


def _compose_mail(context: StepContext, options: MailOptions) -> EmailMessage:
    """Builds the mail of this phase: that the event is announced or, in the undo phase, that it is gone."""
    # A repeated mail has the same Message-ID. The VM is part of it: an event lists several VMs, each with an agent, and
    # mail systems drop a second mail with the same id.
    event = _UNSAFE_ID_CHARACTERS.sub("", context.key or context.event.id) or "event"
    thread = f"<{event}.{_UNSAFE_ID_CHARACTERS.sub('', context.step.name)}.{_encoded_vm_name(context.vm)}@forewarn>"
    mail = EmailMessage()
    mail["From"] = options.sender
    mail["To"] = ", ".join(options.receivers)
    mail["Subject"] = f"[{' '.join(context.vm.split())}] {event_sentence(context)}"[:200]
    mail["Date"] = formatdate(read_real_time())
    mail["Auto-Submitted"] = "auto-generated"
    mail["Message-ID"] = thread if context.phase is StepPhase.DO else thread.replace("@", ".gone@")
    if context.phase is StepPhase.UNDO:
        mail["In-Reply-To"] = mail["References"] = thread
    mail.set_content(
        f"{_opening_sentences(context)}\n\n{event_details(context)}\n\nThe agent on {context.vm} sent this (step "
        f"{context.step.name}).\n"
    )
    return mail


def _encoded_vm_name(vm: str) -> str:
    """The VM's name with special characters as their codes, so that two names stay different."""
    return _UNSAFE_ID_CHARACTERS.sub(lambda found: f"_{ord(found[0]):x}_", vm) or "vm"


def _opening_sentences(context: StepContext) -> str:
    if context.phase is StepPhase.UNDO:
        return f"{event_sentence(context)}. The agent is undoing its steps for it."
    return f"{event_sentence(context)}. The agent is running the steps configured for it."


def _read_options(raw: RawTable) -> MailOptions:
    security = read_choice(raw, "security", ("starttls", "tls", "none"))
    host, port = _host_and_port(read_required_text(raw, "server", '"mail.example.org"'), _DEFAULT_PORTS[security])
    server = _SmtpServerConfig(
        host=host,
        port=port,
        security=cast(_SmtpSecurity, security),
        user=read_text(raw, "user"),
        password_file=read_path(raw, "password_file"),
        ca_file=read_path(raw, "ca_file"),
    )
    if bool(server.user) != (server.password_file is not None):
        raise BadValue("user", "user and password_file need each other", "write both, or neither")
    if server.user and security == "none":
        raise BadValue("security", "the password would be sent unencrypted", 'write security = "starttls"')
    receivers = read_texts(raw, "to", '["ops@example.org"]')
    return MailOptions(
        server=server,
        sender=_checked_address(read_required_text(raw, "from", '"agent@example.org"'), "from"),
        receivers=tuple(_checked_address(each, "to") for each in receivers),
    )


def _host_and_port(server: str, default_port: int) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon:
        return server, default_port
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadValue("server", f"server = {server!r} is not host or host:port", 'write server = "mail.example.org"')
    return host, int(port)


def _checked_address(given: str, key: str) -> str:
    if not _MAIL_ADDRESS.fullmatch(given):
        raise BadValue(key, f"{given!r} is not a mail address", f'write {key} = "name@example.org"')
    return given


MAIL_REACTION = ReactionKind(
    name="mail",
    summary="sends a mail about the event",
    options=("server", "security", "user", "password_file", "ca_file", "from", "to"),
    read=_read_options,
    make=MailReaction,
    shared_by_events=False,
)
