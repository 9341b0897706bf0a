"""Webhooks from the command line: what people read, and where the secret is and is not."""

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


def test_adding_shows_a_secret_that_was_made_and_how_to_go_on(lab: Any) -> None:
    told = lab.good("webhook", "add", URL, "--over", "/subscriptions/sub", "--opted-in-only")
    assert "is told what happens to VMs that opted in within /subscriptions/sub." in told
    assert "Its secret, which is not shown again: " in told
    assert "forewarn webhook test" in told
    secret = told.partition("not shown again: ")[2].split()[0]
    assert len(secret) == 43
    shown = lab.good("webhook", "list") + str(lab.json("webhook", "list")) + lab.good("history")
    assert secret not in shown
    assert "password" not in shown


def test_a_webhook_may_be_told_of_one_group_or_one_vm_alone(lab: Any) -> None:
    told = lab.good("webhook", "add", URL, "--over-group", "LAB")
    assert "is told what happens to all VMs within resource group lab of subscription sub." in told
    assert "all of all VMs within resource group lab of subscription sub" in lab.good("webhook", "list")
    told = lab.good("webhook", "add", URL, "--over", "web")
    assert "is told what happens to all VMs within VM web of resource group lab of subscription sub." in told
    assert "no VM is in a resource group 'x'" in lab.refused("webhook", "add", URL, "--over-group", "x")
    assert lab.refused("webhook", "add", URL, "--over-group", "lab", "--over", "web") == (
        "say over what once: give --over RESOURCE or --over-group GROUP"
    )


def test_a_secret_from_a_file_is_used_and_not_shown(lab: Any, secret_file: Path) -> None:
    with WebhookReceiver() as receiver:
        told = lab.good("webhook", "add", receiver.url, "--secret-file", str(secret_file))
    assert "secret" not in told
    assert lab.json("webhook", "add", URL, "--secret-file", str(secret_file))["secret"] == "a secret of one's own"


def test_a_secret_that_others_can_read_is_refused(lab: Any, secret_file: Path) -> None:
    secret_file.chmod(0o644)
    assert "run chmod 600 on it" in lab.refused("webhook", "add", URL, "--secret-file", str(secret_file))


def test_the_list_says_who_is_told_what(lab: Any) -> None:
    assert lab.good("webhook", "list") == "There is no webhook. `forewarn webhook add URL` adds one.\n"
    first = lab.json("webhook", "add", URL)["id"]
    second = lab.json("webhook", "add", "http://127.0.0.1:1/x", "--happening", "started", "--from-start")["id"]
    head, *rows = lab.good("webhook", "list", COLUMNS="400").splitlines()
    assert head.split()[:2] == ["WEBHOOK", "RECEIVER"]
    assert [row.split()[0] for row in rows] == [first, second]  # ids that count differ at their end
    assert "https://example.org/hook?…" in rows[0]
    assert "all of all VMs (eventgrid)" in rows[0]
    assert "Started of all VMs (eventgrid)" in rows[1]


def test_removing_says_what_is_dropped(lab: Any) -> None:
    webhook = lab.json("webhook", "add", URL)["id"]
    lab.good("restart", "web")
    told = lab.good("webhook", "remove", webhook)
    assert told == f"Webhook {webhook[:8]} (https://example.org/hook?…) is removed; 1 pending for it are dropped.\n"
    assert "does not exist" in lab.refused("webhook", "remove", webhook)


def test_testing_shows_the_answer(lab: Any) -> None:
    with WebhookReceiver() as receiver:
        webhook = lab.json("webhook", "add", receiver.url)["id"]
        assert (
            lab.good("webhook", "test", webhook) == f"Webhook {webhook[:8]} took the test message: it answered 200.\n"
        )
        assert lab.json("webhook", "test", webhook)["ok"] is True
        receiver.answer(403)
        told = lab.refused("webhook", "test", webhook, code=1)
    assert told == f"webhook {webhook[:8]} did not take the test message: it answered 403"


def test_a_receiver_that_must_agree_and_does_not_is_refused(lab: Any) -> None:
    with WebhookReceiver() as receiver:
        assert "was not validated" in lab.refused("webhook", "add", receiver.url, "--validate")
    assert lab.json("webhook", "list") == {"webhooks": []}
