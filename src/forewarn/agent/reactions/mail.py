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
from forewarn.agent.reactions.event_text import event_details, event_sentence
from forewarn.agent.reactions.options import (
    BadOption,
    RawOptions,
    ReactionKind,
    SecretUnavailable,
    read_choice,
    read_path,
    read_required_text,
    read_secret,
    read_text,
    read_texts,
)
from forewarn.agent.reactions.step_context import reserve_s
from forewarn.clock import read_real_time
from forewarn.errors import Rejected, Unavailable

SmtpSecurity = Literal["starttls", "tls", "none"]
_MAX_LINE_BYTES = 4096


class SmtpTemporaryError(Unavailable):
    """The server is not there or asks to try later."""


class SmtpRejected(Rejected):
    """The server will not take this mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpServerConfig:
    """Where mail is handed in."""

    host: str
    port: int
    security: SmtpSecurity = "starttls"
    user: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def send_mail(office: SmtpServerConfig, mail: EmailMessage, sender: str, receivers: tuple[str, ...]) -> None:
    """Returns when the server has taken it. Raises Busy, Declined, NoSecret."""
    try:
        dialogue = await _SmtpSession.open(office)
        try:
            await _greet_and_authenticate(dialogue, office)
            await _transfer_mail(dialogue, mail, sender, receivers)
        finally:
            dialogue.close()
    except ssl.SSLCertVerificationError as error:
        why = f"has a certificate that is not trusted ({error.verify_message}): name its CA with ca_file"
        raise SmtpTemporaryError(f"{office} {why}") from error
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise SmtpTemporaryError(
            f"{office} cannot be spoken to ({getattr(error, 'strerror', None) or 'hung up'})"
        ) from error


async def _greet_and_authenticate(dialogue: _SmtpSession, office: SmtpServerConfig) -> None:
    offers = await dialogue.greet()
    if office.security == "starttls":
        if "STARTTLS" not in offers:
            raise SmtpRejected(f'{office} offers no STARTTLS: write security = "tls" or "none"')
        await dialogue.command("STARTTLS", 220)
        await dialogue.start_tls()
        await dialogue.command("EHLO forewarn", 250)
    if office.password_file:
        pair = f"\0{office.user}\0{read_secret(office.password_file)}".encode()
        await dialogue.command(f"AUTH PLAIN {base64.b64encode(pair).decode()}", 235, shown="AUTH PLAIN")


async def _transfer_mail(dialogue: _SmtpSession, mail: EmailMessage, sender: str, receivers: tuple[str, ...]) -> None:
    await dialogue.command(f"MAIL FROM:<{sender}>", 250)
    for receiver in receivers:
        await dialogue.command(f"RCPT TO:<{receiver}>", 250, 251)
    await dialogue.command("DATA", 354)
    lines = mail.as_bytes(policy=SMTP).removesuffix(b"\r\n").split(b"\r\n")
    await dialogue.send(b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines) + b"\r\n")
    await dialogue.command(".", 250, shown="the mail")
    with suppress(
        SmtpTemporaryError, SmtpRejected, OSError, asyncio.IncompleteReadError
    ):  # it is taken, whatever comes now
        await dialogue.command("QUIT", 221)


class _SmtpSession:
    def __init__(self, office: SmtpServerConfig, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server, self._reader, self._writer = office, reader, writer

    @classmethod
    async def open(cls, office: SmtpServerConfig) -> _SmtpSession:
        trust = _tls_context(office) if office.security == "tls" else None
        return cls(office, *await asyncio.open_connection(office.host, office.port, ssl=trust, limit=_MAX_LINE_BYTES))

    def close(self) -> None:
        self._writer.transport.abort()

    async def greet(self) -> set[str]:
        """What the server offers."""
        await self._read_reply("the greeting", (220,))
        lines = await self.command("EHLO forewarn", 250)
        return {line.split(" ")[0].upper() for line in lines[1:]}

    async def start_tls(self) -> None:
        await self._writer.start_tls(_tls_context(self._server), server_hostname=self._server.host)

    async def command(self, words: str, *wanted: int, shown: str = "") -> list[str]:
        await self.send(f"{words}\r\n".encode())
        return await self._read_reply(shown or words, wanted)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _read_reply(self, what: str, wanted: tuple[int, ...]) -> list[str]:
        """The lines of an answer, without its code: 4xx means later, 5xx means no."""
        lines: list[str] = []
        while True:
            raw = (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").rstrip()
            code, is_last = int(raw[:3]), raw[3:4] != "-"
            lines.append(raw[4:])
            if is_last:
                break
        if code not in wanted:
            answer = f"{self._server} answers {what} with {code} {lines[-1]}"
            raise SmtpRejected(answer) if code >= 500 else SmtpTemporaryError(answer)
        return lines


def _tls_context(office: SmtpServerConfig) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=office.ca_file)


_DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_MAIL_ADDRESS = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")
_UNSAFE_ID_CHARACTERS = re.compile(r"[^A-Za-z0-9-]")
_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MailOptions:
    server: SmtpServerConfig
    sender: str
    receivers: tuple[str, ...]


class MailReaction:
    def __init__(self, options: MailOptions) -> None:
        self._options = options

    async def do(self, case: StepContext) -> StepOutcome:
        """Tried again while the server is busy, until the time is over."""
        mail, wait_s, end_s = compose_mail(case, self._options), _FIRST_RETRY_S, reserve_s(case)
        while True:
            left_s = case.left_s() - end_s
            try:
                async with asyncio.timeout(max(left_s, 0.05)):
                    await send_mail(self._options.server, mail, self._options.sender, self._options.receivers)
                return StepOutcome(ok=True, text=f"handed to {self._options.server} for {mail['To']}")
            except (SmtpRejected, SecretUnavailable) as error:
                return StepOutcome(ok=False, text=str(error))
            except TimeoutError:
                return StepOutcome(
                    ok=False, text=f"{self._options.server} has not taken the mail when the time is over"
                )
            except SmtpTemporaryError as error:
                if case.left_s() - end_s <= wait_s:
                    return StepOutcome(ok=False, text=str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _MAX_RETRY_S)

    async def undo(self, case: StepContext) -> StepOutcome:
        return await self.do(case)

    async def check(self, case: StepContext) -> bool | None:
        return None


def compose_mail(case: StepContext, options: MailOptions) -> EmailMessage:
    """Both mails of an event are one thread."""
    event = _UNSAFE_ID_CHARACTERS.sub("", case.key or case.event.id) or "event"
    thread = f"<{event}.{_UNSAFE_ID_CHARACTERS.sub('', case.step.name)}@forewarn>"
    mail = EmailMessage()
    mail["From"] = options.sender
    mail["To"] = ", ".join(options.receivers)
    mail["Subject"] = f"[{' '.join(case.vm.split())}] {event_sentence(case)}"[:200]
    mail["Date"] = formatdate(read_real_time())
    mail["Auto-Submitted"] = "auto-generated"
    mail["Message-ID"] = thread if case.phase is StepPhase.DO else thread.replace("@", ".gone@")
    if case.phase is StepPhase.UNDO:
        mail["In-Reply-To"] = mail["References"] = thread
    mail.set_content(
        f"{_opening_sentences(case)}\n\n{event_details(case)}\n\nThe agent on {case.vm} sent this (step "
        f"{case.step.name}).\n"
    )
    return mail


def _opening_sentences(case: StepContext) -> str:
    if case.phase is StepPhase.UNDO:
        return f"{event_sentence(case)}. What the agent had done for it is being undone."
    return f"{event_sentence(case)}. The agent is taking the steps that are configured for it."


def read_options(raw: RawOptions) -> MailOptions:
    security = read_choice(raw, "security", ("starttls", "tls", "none"))
    host, port = _host_and_port(read_required_text(raw, "server", '"mail.example.org"'), _DEFAULT_PORTS[security])
    office = SmtpServerConfig(
        host=host,
        port=port,
        security=cast(SmtpSecurity, security),
        user=read_text(raw, "user"),
        password_file=read_path(raw, "password_file"),
        ca_file=read_path(raw, "ca_file"),
    )
    if bool(office.user) != (office.password_file is not None):
        raise BadOption("user", "user and password_file go together", "write both, or neither")
    if office.user and security == "none":
        raise BadOption("security", "a password would be sent in the clear", 'write security = "starttls"')
    receivers = read_texts(raw, "to", '["ops@example.org"]')
    return MailOptions(
        server=office,
        sender=_checked_address(read_required_text(raw, "from", '"agent@example.org"'), "from"),
        receivers=tuple(_checked_address(each, "to") for each in receivers),
    )


def _host_and_port(server: str, usual: int) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon:
        return server, usual
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadOption("server", f"server = {server!r} is no host or host:port", 'write server = "mail.example.org"')
    return host, int(port)


def _checked_address(given: str, key: str) -> str:
    if not _MAIL_ADDRESS.fullmatch(given):
        raise BadOption(key, f"{given!r} is no mail address", f'write {key} = "name@example.org"')
    return given


MAIL_REACTION = ReactionKind(
    name="mail",
    summary="tells an administrator by mail",
    options=("server", "security", "user", "password_file", "ca_file", "from", "to"),
    read=read_options,
    make=MailReaction,
    shared_by_events=False,
)
