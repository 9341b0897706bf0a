"""The reaction `mail`, against a real SMTP server."""

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


def make_reaction(server: SmtpServer, folder: Path, **options: Any) -> ReactionHarness:
    given = {"server": server.address, "security": "none", "from": "agent@web-0", "to": ["ops@example.org"], **options}
    return ReactionHarness("mail", given, folder / "case")


async def send(server: SmtpServer, folder: Path, facts: dict[str, Any] | None = None, **options: Any) -> StepOutcome:
    return await make_reaction(server, folder, **options).do(**(facts or {}))


def received_mail(folder: Path, facts: dict[str, Any] | None = None, **options: Any) -> ReceivedMail:
    async def scenario() -> ReceivedMail:
        async with SmtpServer() as server:
            outcome = await send(server, folder, facts, **options)
            assert outcome.ok, outcome.text
            (received,) = server.mails
            return received

    return asyncio.run(scenario())


def text_of(received: ReceivedMail) -> str:
    text: str = received.mail.get_content()
    return text.replace("\r\n", "\n")


def test_a_mail_has_subject_receivers_and_facts(tmp_path: Path) -> None:
    received = received_mail(tmp_path, to=["ops@example.org", "dba@example.org"])
    assert received.sender == "agent@web-0"
    assert received.receivers == ("ops@example.org", "dba@example.org")
    assert received.mail["Subject"] == "[web-0] Reboot of web-0 not before Mon, 19 Sep 2016 18:42:50 GMT"
    assert received.mail["To"] == "ops@example.org, dba@example.org"
    assert received.mail["Auto-Submitted"] == "auto-generated"
    assert text_of(received) == SENT


def test_the_mail_about_the_end_replies_to_the_mail_about_the_notice(tmp_path: Path) -> None:
    async def scenario() -> list[ReceivedMail]:
        async with SmtpServer() as server:
            await make_reaction(server, tmp_path).do()
            await make_reaction(server, tmp_path).undo()
            return server.mails

    noticed, gone = (received.mail for received in asyncio.run(scenario()))
    assert gone["Subject"] == "[web-0] Reboot of web-0 is gone"
    assert gone["In-Reply-To"] == noticed["Message-ID"] == f"<{SAMPLE_EVENT.id}.mail.web-0@forewarn>"
    assert "is undoing its steps" in gone.get_content()


def test_the_mails_of_two_vms_about_one_event_have_different_ids(tmp_path: Path) -> None:
    """Mail systems drop the second mail with the same id."""
    ids = [received_mail(tmp_path, {"vm": vm}).mail["Message-ID"] for vm in ("web-0", "web-1", "web_1", "web.1", "ü")]
    assert len(set(ids)) == 5
    assert all(id_.isascii() and id_.count("@") == 1 for id_ in ids)


def test_texts_of_a_server_cannot_add_headers_or_lines(tmp_path: Path) -> None:
    facts = {"kind": "Reboot\r\nBcc: x@example.org", "description": "über\r\n.\r\nQUIT\r\n.dot"}
    received = received_mail(tmp_path, facts)
    assert received.mail["Bcc"] is None
    assert received.mail["Subject"].startswith("[web-0] Reboot Bcc: x@example.org of web-0")
    assert "Description: über . QUIT .dot\n" in text_of(received)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_password_is_sent_over_tls(tmp_path: Path, tls: Any, security: str) -> None:
    (tmp_path / "password").write_text("hush\n")
    account: dict[str, Any] = {
        "user": "agent",
        "password_file": str(tmp_path / "password"),
        "ca_file": str(tls.ca_file),
    }

    async def scenario() -> ReceivedMail:
        async with SmtpServer(tls=tls.server, implicit=security == "tls", password="hush") as server:
            outcome = await send(server, tmp_path, security=security, **account)
            assert outcome == StepOutcome(ok=True, text=f"accepted by {server.address} for ops@example.org")
            return server.mails[0]

    received = asyncio.run(scenario())
    assert received.was_encrypted
    assert received.user == "agent"


def test_a_wrong_password_is_reported_and_not_shown(tmp_path: Path, tls: Any) -> None:
    (tmp_path / "password").write_text("wrong-one\n")
    account: dict[str, Any] = {
        "user": "agent",
        "password_file": str(tmp_path / "password"),
        "ca_file": str(tls.ca_file),
    }

    async def scenario() -> tuple[StepOutcome, str]:
        async with SmtpServer(tls=tls.server, password="hush") as server:
            return await send(server, tmp_path, security="starttls", **account), server.address

    outcome, address = asyncio.run(scenario())
    assert outcome == StepOutcome(ok=False, text=f"{address} answers AUTH PLAIN with 535 no")


def test_a_server_without_starttls_gets_no_unencrypted_mail(tmp_path: Path) -> None:
    async def scenario() -> tuple[StepOutcome, int]:
        async with SmtpServer() as server:
            return await send(server, tmp_path, security="starttls"), len(server.mails)

    outcome, mail_count = asyncio.run(scenario())
    assert 'offers no STARTTLS: write security = "tls" or "none"' in outcome.text
    assert mail_count == 0


def test_an_untrusted_certificate_is_reported(tmp_path: Path, tls: Any) -> None:
    async def scenario() -> StepOutcome:
        async with SmtpServer(tls=tls.server) as server:
            return await send(server, tmp_path, {"within_s": 1}, security="starttls")

    assert "has a certificate that is not trusted" in asyncio.run(scenario()).text


def test_a_busy_server_is_retried_and_one_that_rejects_is_not(tmp_path: Path) -> None:
    async def scenario(*answers: str) -> tuple[StepOutcome, int]:
        async with SmtpServer() as server:
            server.answer_mail_with(*answers)
            return await send(server, tmp_path), server.connections

    busy, connections = asyncio.run(scenario("451 try later"))
    assert busy.ok
    assert connections == 2
    declined, connections = asyncio.run(scenario("550 not from you"))
    assert "answers MAIL FROM:<agent@web-0> with 550 not from you" in declined.text
    assert connections == 1


def test_a_silent_server_does_not_exceed_the_steps_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        given = {"server": address, "security": "none", "from": "a@b", "to": "c@d"}
        outcome = asyncio.run(ReactionHarness("mail", given, tmp_path / "case").do(within_s=0.3))
    assert outcome == StepOutcome(ok=False, text=f"{address} has not accepted the mail by the end of the step's time")
