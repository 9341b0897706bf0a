"""The webhook commands: what they print, and where the secret appears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.webhook_receiver import WebhookReceiver

URL = "https://example.org/hook?code=password"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("a secret of one's own\n")
    return path


def test_adding_a_webhook_shows_its_generated_secret_and_next_commands(lab: Any) -> None:
    message = lab.good("webhook", "add", URL, "--over", "/subscriptions/sub", "--opted-in-only")
    assert "is notified of events of VMs that opted in within /subscriptions/sub." in message
    assert "Its secret, which is not shown again: " in message
    assert "forewarn webhook test" in message
    secret = message.partition("not shown again: ")[2].split()[0]
    assert len(secret) == 43
    shown = lab.good("webhook", "list") + str(lab.json("webhook", "list")) + lab.good("history")
    assert secret not in shown
    assert "password" not in shown


def test_a_webhook_may_be_limited_to_one_group_or_one_vm(lab: Any) -> None:
    message = lab.good("webhook", "add", URL, "--over-group", "LAB")
    assert "is notified of events of all VMs within resource group lab of subscription sub." in message
    assert "all of all VMs within resource group lab of subscription sub" in lab.good("webhook", "list")
    message = lab.good("webhook", "add", URL, "--over", "web")
    assert "is notified of events of all VMs within VM web of resource group lab of subscription sub." in message
    assert "no VM is in resource group 'x'" in lab.refused("webhook", "add", URL, "--over-group", "x")
    assert lab.refused("webhook", "add", URL, "--over-group", "lab", "--over", "web") == (
        "--over and --over-group exclude each other: give only one of them"
    )


def test_a_secret_from_a_file_is_used_and_not_shown(lab: Any, secret_file: Path) -> None:
    with WebhookReceiver() as receiver:
        message = lab.good("webhook", "add", receiver.url, "--secret-file", str(secret_file))
    assert "secret" not in message
    assert lab.json("webhook", "add", URL, "--secret-file", str(secret_file))["secret"] == "a secret of one's own"


def test_a_secret_file_that_other_users_can_read_is_refused(lab: Any, secret_file: Path) -> None:
    secret_file.chmod(0o644)
    assert "run chmod 600 on it" in lab.refused("webhook", "add", URL, "--secret-file", str(secret_file))


def test_the_webhook_list_shows_receivers_and_filters(lab: Any) -> None:
    assert lab.good("webhook", "list") == "There are no webhooks. Add one with `forewarn webhook add URL`.\n"
    first = lab.json("webhook", "add", URL)["id"]
    second = lab.json("webhook", "add", "http://127.0.0.1:1/x", "--status", "started", "--from-start")["id"]
    head, *rows = lab.good("webhook", "list", COLUMNS="400").splitlines()
    assert head.split()[:2] == ["WEBHOOK", "RECEIVER"]
    assert [row.split()[0] for row in rows] == [first, second]  # these ids differ only at their end
    assert "https://example.org/hook?…" in rows[0]
    assert "all of all VMs, and rollouts (eventgrid)" in rows[0]
    assert "Started of all VMs (eventgrid)" in rows[1]


def test_removing_a_webhook_says_how_many_messages_are_dropped(lab: Any) -> None:
    webhook = lab.json("webhook", "add", URL)["id"]
    lab.good("restart", "web")
    message = lab.good("webhook", "remove", webhook)
    assert message == f"Webhook {webhook[:8]} (https://example.org/hook?…) is removed; 1 pending message dropped.\n"
    assert "does not exist" in lab.refused("webhook", "remove", webhook)


def test_testing_a_webhook_shows_the_receivers_answer(lab: Any) -> None:
    with WebhookReceiver() as receiver:
        webhook = lab.json("webhook", "add", receiver.url)["id"]
        assert (
            lab.good("webhook", "test", webhook)
            == f"Webhook {webhook[:8]} accepted the test message: it answered 200.\n"
        )
        assert lab.json("webhook", "test", webhook)["ok"] is True
        receiver.answer(403)
        message = lab.refused("webhook", "test", webhook, code=1)
    assert message == f"webhook {webhook[:8]} did not accept the test message: it answered 403"


def test_a_receiver_that_fails_the_handshake_is_not_added(lab: Any) -> None:
    with WebhookReceiver() as receiver:
        assert "was not validated" in lab.refused("webhook", "add", receiver.url, "--validate")
    assert lab.json("webhook", "list") == {"webhooks": []}
