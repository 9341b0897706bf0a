"""An administrator is told by mail, through a server that really talks SMTP."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.model import StepOutcome
from tests.support.reaction_harness import SAMPLE_EVENT, ReactionHarness
from tests.support.smtp_server import ReceivedMail, SmtpServer

SENT = """\
Reboot of web-0 not before Mon, 19 Sep 2016 18:42:50 GMT. The agent is running the steps configured for it.

Event:       602d9444-d2cd-49c7-8624-8643e7171297
Kind:        Reboot
Status:      Scheduled
VMs:         web-0
Not before:  Mon, 19 Sep 2016 18:42:50 GMT
Impact:      of unknown length
Source:      Platform
Description: The host is restarted.

The agent on web-0 sent this (step mail).
"""


def tried(office: SmtpServer, folder: Path, **options: Any) -> ReactionHarness:
    given = {"server": office.address, "security": "none", "from": "agent@web-0", "to": ["ops@example.org"], **options}
    return ReactionHarness("mail", given, folder / "case")


async def sent(office: SmtpServer, folder: Path, facts: dict[str, Any] | None = None, **options: Any) -> StepOutcome:
    return await tried(office, folder, **options).do(**(facts or {}))


def the_letter(folder: Path, facts: dict[str, Any] | None = None, **options: Any) -> ReceivedMail:
    async def story() -> ReceivedMail:
        async with SmtpServer() as office:
            outcome = await sent(office, folder, facts, **options)
            assert outcome.ok, outcome.text
            (letter,) = office.mails
            return letter

    return asyncio.run(story())


def text_of(letter: ReceivedMail) -> str:
    text: str = letter.mail.get_content()
    return text.replace("\r\n", "\n")


def test_a_mail_reads_well(tmp_path: Path) -> None:
    letter = the_letter(tmp_path, to=["ops@example.org", "dba@example.org"])
    assert letter.sender == "agent@web-0"
    assert letter.receivers == ("ops@example.org", "dba@example.org")
    assert letter.mail["Subject"] == "[web-0] Reboot of web-0 not before Mon, 19 Sep 2016 18:42:50 GMT"
    assert letter.mail["To"] == "ops@example.org, dba@example.org"
    assert letter.mail["Auto-Submitted"] == "auto-generated"
    assert text_of(letter) == SENT


def test_the_end_of_an_event_answers_the_mail_about_its_notice(tmp_path: Path) -> None:
    async def story() -> list[ReceivedMail]:
        async with SmtpServer() as office:
            await tried(office, tmp_path).do()
            await tried(office, tmp_path).undo()
            return office.mails

    noticed, gone = (letter.mail for letter in asyncio.run(story()))
    assert gone["Subject"] == "[web-0] Reboot of web-0 is gone"
    assert gone["In-Reply-To"] == noticed["Message-ID"] == f"<{SAMPLE_EVENT.id}.mail@forewarn>"
    assert "is undoing its steps" in gone.get_content()


def test_what_a_server_sends_stays_within_its_line(tmp_path: Path) -> None:
    facts = {"kind": "Reboot\r\nBcc: x@example.org", "description": "über\r\n.\r\nQUIT\r\n.dot"}
    letter = the_letter(tmp_path, facts)
    assert letter.mail["Bcc"] is None
    assert letter.mail["Subject"].startswith("[web-0] Reboot Bcc: x@example.org of web-0")
    assert "Description: über . QUIT .dot\n" in text_of(letter)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_password_goes_only_over_tls(tmp_path: Path, tls: Any, security: str) -> None:
    (tmp_path / "password").write_text("hush\n")
    account = {"user": "agent", "password_file": str(tmp_path / "password"), "ca_file": str(tls.ca_file)}

    async def story() -> ReceivedMail:
        async with SmtpServer(tls=tls.server, implicit=security == "tls", password="hush") as office:
            outcome = await sent(office, tmp_path, security=security, **account)
            assert outcome == StepOutcome(ok=True, text=f"accepted by {office.address} for ops@example.org")
            return office.mails[0]

    letter = asyncio.run(story())
    assert letter.was_encrypted
    assert letter.user == "agent"


def test_a_wrong_password_is_told_and_not_shown(tmp_path: Path, tls: Any) -> None:
    (tmp_path / "password").write_text("wrong-one\n")
    account = {"user": "agent", "password_file": str(tmp_path / "password"), "ca_file": str(tls.ca_file)}

    async def story() -> tuple[StepOutcome, str]:
        async with SmtpServer(tls=tls.server, password="hush") as office:
            return await sent(office, tmp_path, security="starttls", **account), office.address

    outcome, address = asyncio.run(story())
    assert outcome == StepOutcome(ok=False, text=f"{address} answers AUTH PLAIN with 535 no")


def test_a_server_without_starttls_gets_nothing_in_the_clear(tmp_path: Path) -> None:
    async def story() -> tuple[StepOutcome, int]:
        async with SmtpServer() as office:
            return await sent(office, tmp_path, security="starttls"), len(office.mails)

    outcome, letters = asyncio.run(story())
    assert 'offers no STARTTLS: write security = "tls" or "none"' in outcome.text
    assert letters == 0


def test_a_certificate_that_is_not_trusted_is_told(tmp_path: Path, tls: Any) -> None:
    async def story() -> StepOutcome:
        async with SmtpServer(tls=tls.server) as office:
            return await sent(office, tmp_path, {"within_s": 1}, security="starttls")

    assert "has a certificate that is not trusted" in asyncio.run(story()).text


def test_a_busy_server_is_asked_again_and_one_that_declines_is_not(tmp_path: Path) -> None:
    async def story(*answers: str) -> tuple[StepOutcome, int]:
        async with SmtpServer() as office:
            office.answer_mail_with(*answers)
            return await sent(office, tmp_path), office.connections

    busy, dialogues = asyncio.run(story("451 try later"))
    assert busy.ok
    assert dialogues == 2
    declined, dialogues = asyncio.run(story("550 not from you"))
    assert "answers MAIL FROM:<agent@web-0> with 550 not from you" in declined.text
    assert dialogues == 1


def test_a_server_that_says_nothing_takes_no_more_than_the_time_there_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        given = {"server": place, "security": "none", "from": "a@b", "to": "c@d"}
        outcome = asyncio.run(ReactionHarness("mail", given, tmp_path / "case").do(within_s=0.3))
    assert outcome == StepOutcome(ok=False, text=f"{place} has not accepted the mail by the end of the step's time")
