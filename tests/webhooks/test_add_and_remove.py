"""Adding and removing webhooks: validation, history entries, secrets."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.control.webhooks import WebhookSpec
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation
from forewarn.core.webhook import EventGridStatus, WebhookSchema
from forewarn.errors import NotFound, Refused, Rejected, Remedy
from tests.support.webhook_receiver import WebhookReceiver

URL = "https://hooks.example.org/path-password/x?code=query-password"


def add(delivery: Any, **wanted: Any) -> Any:
    return delivery.world.do(delivery.world.control.webhooks.add(WebhookSpec(**{"url": URL, **wanted}), who="ann"))


def remove(delivery: Any, webhook_id: str) -> Any:
    return delivery.world.do(delivery.world.control.webhooks.remove(webhook_id, who="bob"))


def entries(delivery: Any) -> list[tuple[str, str]]:
    return [(entry.actor, entry.text) for entry in delivery.world.store.history() if entry.kind is EntryKind.WEBHOOK]


def test_a_webhook_is_stored_as_specified(delivery: Any) -> None:
    given = {
        "schema": WebhookSchema.CLOUD_EVENTS,
        "resource": "/subscriptions/sub/",
        "opted_in_only": True,
        "secret": "s" * 16,
    }
    statuses = (EventGridStatus.CANCELED, EventGridStatus.STARTED, EventGridStatus.STARTED)
    webhook = add(delivery, statuses=statuses, **given)
    assert delivery.world.store.webhooks() == [webhook]
    assert (webhook.url, webhook.resource, webhook.secret) == (URL, "/subscriptions/sub", "s" * 16)
    assert webhook.statuses == (EventGridStatus.STARTED, EventGridStatus.CANCELED)
    assert (webhook.created_by, webhook.created_at) == ("ann", delivery.world.now)


def test_a_webhook_gets_all_statuses_and_a_strong_secret_by_default(delivery: Any) -> None:
    first, second = add(delivery), add(delivery)
    assert first.statuses == tuple(EventGridStatus)
    assert len(first.secret) == 43
    assert first.secret != second.secret


def test_an_address_that_the_service_may_not_call_is_rejected_at_once(delivery: Any) -> None:
    before = delivery.world.store.last_seq()
    with pytest.raises(Rejected, match="is a link-local address, which the setting 'local_targets' does not allow"):
        add(delivery, url="http://169.254.169.254/hook")
    assert (delivery.world.store.webhooks(), delivery.world.store.last_seq()) == ([], before)


def test_the_history_names_who_added_and_removed_a_webhook_without_secrets(delivery: Any) -> None:
    webhook = add(delivery, resource="/subscriptions/sub")
    assert remove(delivery, webhook.id) == webhook
    assert delivery.world.store.webhooks() == []
    name = f"webhook {webhook.id} (hooks.example.org)"
    assert entries(delivery) == [
        ("ann", f"{name} gets notifications about /subscriptions/sub from now on"),
        ("bob", f"{name} was removed"),
    ]
    shown = repr(delivery.world.store.history())
    assert "password" not in shown
    assert webhook.secret not in shown


def test_a_new_webhook_starts_now_unless_it_is_from_the_start(delivery: Any) -> None:
    delivery.restart_of("web")
    with WebhookReceiver() as late, WebhookReceiver() as early:
        add(delivery, url=late.url)
        add(delivery, url=early.url, from_start=True)
        delivery.world.ask(RequestedOperation.RESTART, "db")
        delivery.deliver(early, 4)
        assert [received.event_status for received in late.accepted] == ["Scheduled"]


BAD_URLS = [
    ("", "is not a URL"),
    ("example.org/hook", "is not a URL"),
    ("ftp://example.org/", "is not a URL"),
    ("https://", "is not a URL"),
    ("https:///hook", "is not a URL"),
    ("https://example.org:0/", "is not a URL"),
    ("https://example.org:99999/", "is not a URL"),
    ("https://example.org/a b", "is not a URL"),
    ("https://example.org/\r\nX-Other: 1", "is not a URL"),
    ("https://exämple.org/", "is not a URL"),
    ("https://[::1/", "is not a URL"),
    ("https://example.org/" + "x" * 2000, "is not a URL"),
    ("https://ann:password@example.org/", "contains a user or password"),
    ("https://ann@example.org/", "contains a user or password"),
    ("https://example.org/#part", "after '#'"),
]


@pytest.mark.parametrize(("url", "why"), BAD_URLS, ids=range(len(BAD_URLS)))
def test_an_invalid_address_is_rejected_with_a_sentence(delivery: Any, url: str, why: str) -> None:
    with pytest.raises(Rejected, match=why) as caught:
        add(delivery, url=url)
    assert "password@" not in str(caught.value)
    assert delivery.world.store.webhooks() == []


@pytest.mark.parametrize("secret", ["hunter2", "x" * 15, "with a\nline break in it"])
def test_a_weak_secret_is_rejected_and_not_repeated(delivery: Any, secret: str) -> None:
    with pytest.raises(Rejected, match="give 16 characters or more") as caught:
        add(delivery, secret=secret)
    assert secret not in str(caught.value)


def test_an_invalid_resource_is_rejected(delivery: Any) -> None:
    with pytest.raises(Rejected, match="'/nothing' is not a resource"):
        add(delivery, resource="/nothing")


def test_a_webhook_whose_receiver_fails_validation_is_not_added(delivery: Any, receiver: WebhookReceiver) -> None:
    before = delivery.world.store.last_seq()
    with pytest.raises(Refused, match="was not validated"):
        add(delivery, url=receiver.url, validate=True)
    assert delivery.world.store.webhooks() == []
    assert delivery.world.store.last_seq() == before


def test_a_webhook_is_found_by_an_id_prefix(delivery: Any) -> None:
    first, second = add(delivery), add(delivery)
    webhooks = delivery.world.control.webhooks
    assert webhooks.find(f" {first.id.upper()} ") == first
    with pytest.raises(Refused, match="is ambiguous, 2 ids start with it"):
        webhooks.find(second.id[:8])
    for name in ("nothing", "000", ""):
        with pytest.raises(NotFound, match="does not exist") as raised:
            webhooks.find(name)
        assert raised.value.remedy_code is Remedy.LIST_WEBHOOKS
    remove(delivery, second.id)
    assert webhooks.find(first.id[:8]) == first
