"""The reaction `webhook`: CloudEvents, signed and retried."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Any

from forewarn.agent.model import StepOutcome
from tests.support.reaction_harness import SAMPLE_EVENT, ReactionHarness
from tests.support.webhook_receiver import WebhookReceiver


def make_reaction(receiver: WebhookReceiver, tmp_path: Path, **options: Any) -> ReactionHarness:
    return ReactionHarness("webhook", {"url": receiver.url, **options}, tmp_path / "case")


def test_the_notice_and_the_end_of_an_event_are_cloud_events(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        webhook = make_reaction(receiver, tmp_path)
        assert asyncio.run(webhook.do()) == StepOutcome(ok=True, text="the receiver answered 200")
        asyncio.run(webhook.undo())
    noticed, gone = (each.event for each in receiver.received)
    assert receiver.received[0].headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert noticed["specversion"] == "1.0"
    assert (noticed["type"], gone["type"]) == ("Forewarn.Agent.EventNoticed", "Forewarn.Agent.EventGone")
    assert (noticed["source"], noticed["subject"]) == ("/forewarn/agent/web-0", SAMPLE_EVENT.id)
    assert noticed["data"]["Message"] == "Reboot of web-0 not before Mon, 19 Sep 2016 18:42:50 GMT"
    assert noticed["data"]["EventId"] == SAMPLE_EVENT.id
    assert noticed["id"] != gone["id"]


def test_a_repeated_message_has_the_same_id(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        for _ in range(2):
            asyncio.run(make_reaction(receiver, tmp_path).do())
    first, second = (each.event["id"] for each in receiver.received)
    assert first == second


def test_an_event_that_comes_again_has_another_id(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        for key in (SAMPLE_EVENT.id, f"{SAMPLE_EVENT.id}#2"):
            asyncio.run(make_reaction(receiver, tmp_path).do(key=key))
    first, second = (each.event["id"] for each in receiver.received)
    assert first != second


def test_a_secret_signs_the_message(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    with WebhookReceiver() as receiver:
        asyncio.run(make_reaction(receiver, tmp_path, secret_file=str(tmp_path / "secret")).do())
    (message,) = receiver.received
    signed = message.headers["x-forewarn-timestamp"].encode() + b"." + message.body
    expected = hmac.new(b"hush", signed, hashlib.sha256).hexdigest()
    assert message.headers["x-forewarn-signature"] == f"sha256={expected}"


def test_a_failing_receiver_is_retried(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        receiver.answer(500)
        assert asyncio.run(make_reaction(receiver, tmp_path).do()).ok
    first, second = receiver.received
    assert first.body == second.body


def test_a_receiver_that_rejects_is_not_retried(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver:
        receiver.answer(400)
        outcome = asyncio.run(make_reaction(receiver, tmp_path).do())
    assert outcome == StepOutcome(ok=False, text="the receiver answered 400")
    assert len(receiver.received) == 1


def test_a_receiver_that_is_down_gets_the_message_when_it_is_back(tmp_path: Path) -> None:
    async def scenario(receiver: WebhookReceiver) -> StepOutcome:
        receiver.stop()
        sending = asyncio.create_task(make_reaction(receiver, tmp_path).do())
        await asyncio.sleep(0)
        receiver.start()
        return await sending

    with WebhookReceiver() as receiver:
        assert asyncio.run(scenario(receiver)).ok
        assert len(receiver.accepted) == 1


def test_an_error_shows_only_the_host_of_the_url(tmp_path: Path) -> None:
    webhook = ReactionHarness("webhook", {"url": "http://127.0.0.1:9/hook?token=hush"}, tmp_path / "case")
    assert asyncio.run(webhook.do(within_s=0.3)) == StepOutcome(ok=False, text="127.0.0.1:9 refuses connections")


def test_a_receivers_certificate_is_verified_by_the_configured_ca(tmp_path: Path, tls: Any) -> None:
    with WebhookReceiver(wrap=lambda sock: tls.server.wrap_socket(sock, server_side=True)) as receiver:
        distrusted = asyncio.run(make_reaction(receiver, tmp_path).do(within_s=3))
        believed = asyncio.run(make_reaction(receiver, tmp_path, ca_file=str(tls.ca_file)).do())
    assert "has a certificate that is not trusted" in distrusted.text
    assert "set ca_file to its CA" in distrusted.text
    assert believed.ok
