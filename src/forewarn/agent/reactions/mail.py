"""An administrator is told by mail, in plain words."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from typing import cast

from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.option import Raw, needed, one_of, path, text, texts
from forewarn.agent.reaction.patience import spare_s
from forewarn.agent.reaction.secret import NoSecret
from forewarn.agent.reaction.smtp import Busy, Declined, Office, Security, hand_in
from forewarn.agent.reaction.telling import paragraph, sentence
from forewarn.agent.value import Case, Outcome, Phase
from forewarn.clock import read_real_time

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    office: Office
    sender: str
    receivers: tuple[str, ...]


class Mail:
    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        """Tried again while the server is busy, until the time is over."""
        mail, wait_s, end_s = mail_about(case, self._options), _FIRST_WAIT_S, spare_s(case)
        while True:
            left_s = case.left_s() - end_s
            try:
                async with asyncio.timeout(max(left_s, 0.05)):
                    await hand_in(self._options.office, mail, self._options.sender, self._options.receivers)
                return Outcome(ok=True, text=f"handed to {self._options.office} for {mail['To']}")
            except (Declined, NoSecret) as error:
                return Outcome(ok=False, text=str(error))
            except TimeoutError:
                return Outcome(ok=False, text=f"{self._options.office} has not taken the mail when the time is over")
            except Busy as error:
                if case.left_s() - end_s <= wait_s:
                    return Outcome(ok=False, text=str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def undo(self, case: Case) -> Outcome:
        return await self.do(case)

    async def check(self, case: Case) -> bool | None:
        return None


def mail_about(case: Case, options: Options) -> EmailMessage:
    """Both mails of an event are one thread."""
    event = _NOT_PLAIN.sub("", case.key or case.event.id) or "event"
    thread = f"<{event}.{_NOT_PLAIN.sub('', case.step.name)}@forewarn>"
    mail = EmailMessage()
    mail["From"] = options.sender
    mail["To"] = ", ".join(options.receivers)
    mail["Subject"] = f"[{' '.join(case.vm.split())}] {sentence(case)}"[:200]
    mail["Date"] = formatdate(read_real_time())
    mail["Auto-Submitted"] = "auto-generated"
    mail["Message-ID"] = thread if case.phase is Phase.DO else thread.replace("@", ".gone@")
    if case.phase is Phase.UNDO:
        mail["In-Reply-To"] = mail["References"] = thread
    mail.set_content(
        f"{_opening(case)}\n\n{paragraph(case)}\n\nThe agent on {case.vm} sent this (step {case.step.name}).\n"
    )
    return mail


def _opening(case: Case) -> str:
    if case.phase is Phase.UNDO:
        return f"{sentence(case)}. What the agent had done for it is being undone."
    return f"{sentence(case)}. The agent is taking the steps that are configured for it."


def read_options(raw: Raw) -> Options:
    security = one_of(raw, "security", ("starttls", "tls", "none"))
    host, port = _place(needed(raw, "server", '"mail.example.org"'), _PORTS[security])
    office = Office(
        host=host,
        port=port,
        security=cast(Security, security),
        user=text(raw, "user"),
        password_file=path(raw, "password_file"),
        ca_file=path(raw, "ca_file"),
    )
    if bool(office.user) != (office.password_file is not None):
        raise BadOption("user", "user and password_file go together", "write both, or neither")
    if office.user and security == "none":
        raise BadOption("security", "a password would be sent in the clear", 'write security = "starttls"')
    receivers = texts(raw, "to", '["ops@example.org"]')
    return Options(
        office=office,
        sender=_address(needed(raw, "from", '"agent@example.org"'), "from"),
        receivers=tuple(_address(each, "to") for each in receivers),
    )


def _place(server: str, usual: int) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon:
        return server, usual
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadOption("server", f"server = {server!r} is no host or host:port", 'write server = "mail.example.org"')
    return host, int(port)


def _address(given: str, key: str) -> str:
    if not _ADDRESS.fullmatch(given):
        raise BadOption(key, f"{given!r} is no mail address", f'write {key} = "name@example.org"')
    return given


MAIL = ReactionKind(
    name="mail",
    summary="tells an administrator by mail",
    options=("server", "security", "user", "password_file", "ca_file", "from", "to"),
    read=read_options,
    make=Mail,
    holds=False,
)
