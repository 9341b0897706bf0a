"""Webhooks over the API: secrets, addresses without passwords, delivery state."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.base.times import time_text
from forewarn.errors import Unavailable
from tests.support.webhook_receiver import WebhookReceiver

NEW = {
    "url": "https://example.org/hook?code=password",
    "statuses": ["Completed", "Started"],
    "resource": "/subscriptions/sub",
}


def test_the_secret_of_a_webhook_is_shown_only_once(api: Any) -> None:
    added = api.post("/webhooks", NEW)
    secret = added.pop("secret")
    assert len(secret) == 43
    assert api.get("/webhooks") == {"webhooks": [added]}
    removed = api.call("DELETE", f"/webhooks/{added['id'][:36]}")
    assert removed.json == added
    shown = str(api.get("/webhooks")) + str(api.get("/history")) + str(removed.content)
    assert secret not in shown
    assert "password" not in shown


def test_a_webhook_is_shown_with_its_filter_and_delivery_state(api: Any) -> None:
    api.post("/webhooks", NEW)
    api.restart_of("db")
    (shown,) = api.get("/webhooks")["webhooks"]
    assert shown["url"] == "https://example.org/hook?…"
    assert (shown["schema"], shown["resource"], shown["opted_in_only"]) == ("eventgrid", "/subscriptions/sub", False)
    assert shown["statuses"] == ["Started", "Completed"]
    assert (shown["created_by"], shown["created_at"]) == ("local user ann", time_text(api.world.now))
    assert (shown["last_delivery_ago_s"], shown["failures"], shown["error"], shown["next_attempt_in_s"]) == (
        None,
        0,
        "",
        None,
    )
    assert (shown["pending"], shown["pending_at_least"]) == (0, False)


def test_a_webhook_from_the_start_has_past_messages_pending(api: Any) -> None:
    api.restart_of("db")
    added = api.post("/webhooks", {"url": "https://example.org", "from_start": True})
    assert added["pending"] == 1


OVER = [
    ("db", "virtualMachines/db"),
    ("lab/web-0", "virtualMachines/web-0"),
    ("web", "availabilitySets/web"),
    ("pool_1", "virtualMachineScaleSets/pool/virtualMachines/1"),
    ("pool", "virtualMachineScaleSets/pool"),
]


@pytest.mark.parametrize(("name", "resource"), OVER)
def test_the_resource_of_a_webhook_may_be_given_by_name(api: Any, name: str, resource: str) -> None:
    added = api.post("/webhooks", {"url": "https://example.org", "resource": name})
    assert added["resource"] == f"/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/{resource}"


@pytest.mark.parametrize(("name", "status"), [("nothing", 404), ("/nothing", 400)])
def test_an_unknown_or_invalid_resource_is_refused(api: Any, name: str, status: int) -> None:
    found = api.refused("POST", "/webhooks", {"url": "https://example.org", "resource": name})
    assert found[0] == status
    assert repr(name) in found[2]


def test_a_webhook_may_be_added_with_a_given_secret(api: Any) -> None:
    assert api.post("/webhooks", {"url": "https://example.org", "secret": "0123456789abcdef"})["secret"][:4] == "0123"
    status, code, message = api.refused("POST", "/webhooks", {"url": "https://example.org", "secret": "hunter2"})
    assert (status, code) == (400, "Rejected")
    assert "hunter2" not in message


def test_a_test_message_shows_the_receivers_response(api: Any) -> None:
    with WebhookReceiver() as receiver:
        webhook = api.post("/webhooks", {"url": receiver.url})["id"]
        good = api.post(f"/webhooks/{webhook}/test")
    assert good == {"id": webhook, "ok": True, "status": 200, "text": "it answered 200"}
    bad = api.post(f"/webhooks/{webhook}/test")
    assert bad == {"id": webhook, "ok": False, "status": None, "text": "it refused the connection"}


def test_a_webhook_is_not_added_if_its_receiver_does_not_validate(api: Any) -> None:
    with WebhookReceiver() as receiver:
        status, code, message = api.refused("POST", "/webhooks", {"url": receiver.url, "validate": True})
    assert (status, code) == (409, "Refused")
    assert "was not validated" in message
    assert api.get("/webhooks") == {"webhooks": []}


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "https://ann:password@example.org"])
def test_an_invalid_webhook_address_is_rejected(api: Any, url: str) -> None:
    status, code, message = api.refused("POST", "/webhooks", {"url": url})
    assert (status, code) == (400, "Rejected")
    assert "password@" not in message


def test_an_unavailable_store_adds_no_webhook(api: Any) -> None:
    api.world.store.fail_next(Unavailable("the disk is full: make room"))
    assert api.refused("POST", "/webhooks", NEW)[:2] == (503, "Unavailable")
    assert api.get("/webhooks") == {"webhooks": []}
