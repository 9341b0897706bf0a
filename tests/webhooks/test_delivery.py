"""Delivery to receivers: every matching message, in order and at least once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.control.webhook_delivery import retry_delay_s
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestedOperation
from forewarn.core.webhook import EventGridStatus, WebhookSchema
from forewarn.errors import Unavailable
from forewarn.store import MemoryStore
from tests.support.webhook_receiver import WebhookReceiver

RESTART = ["Scheduled", "Started", "Completed"]
DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/DB"
Make = Callable[[], WebhookReceiver]


def statuses(receiver: WebhookReceiver) -> list[str]:
    return [received.event_status for received in receiver.accepted]


def names(receiver: WebhookReceiver) -> list[str]:
    return [received.event["data"]["resourceInfo"]["properties"]["Resources"][0] for received in receiver.accepted]


def add_unmatched_entries(delivery: Any, count: int) -> None:
    entries = tuple(HistoryEntry(at=1.0, kind=EntryKind.SERVICE, text="nothing of interest") for _ in range(count))
    delivery.world.do(delivery.world.store.commit(Commit(entries=entries)))


def test_the_statuses_of_an_event_are_delivered_in_order(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)
    delivery.restart_of("web")
    delivery.deliver(receiver, 3)
    assert statuses(receiver) == RESTART
    assert len({received.event["id"] for received in receiver.accepted}) == 3


def test_a_new_entry_is_delivered_at_once(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)

    async def scenario() -> None:
        async with delivery.running():
            await asyncio.sleep(0)
            await delivery.restarting("web")
            await asyncio.to_thread(receiver.wait_for, 1)

    delivery.world.do(scenario())
    assert statuses(receiver) == ["Scheduled"]
    assert delivery.retry_sleep.taken == []


def test_a_withdrawn_event_is_delivered_as_canceled(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)
    event = delivery.world.ask(RequestedOperation.RESTART, "web")[0]
    delivery.world.do(delivery.world.control.requests.withdraw(event.id, who="ann", reason="later"))
    delivery.deliver(receiver, 2)
    assert statuses(receiver) == ["Scheduled", "Canceled"]


@pytest.mark.parametrize(
    ("schema", "content_type", "aeg"),
    [
        (WebhookSchema.EVENT_GRID, "application/json; charset=utf-8", "Notification"),
        (WebhookSchema.CLOUD_EVENTS, "application/cloudevents+json; charset=utf-8", None),
    ],
)
def test_every_message_is_signed_and_typed(
    delivery: Any, receiver: WebhookReceiver, schema: WebhookSchema, content_type: str, aeg: str | None
) -> None:
    webhook = delivery.hook(receiver, schema=schema)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    (received,) = delivery.deliver(receiver, 1)
    headers = received.headers
    expected = hmac.new(webhook.secret.encode(), b"5000." + received.body, hashlib.sha256).hexdigest()
    assert headers["x-forewarn-signature"] == f"sha256={expected}"
    assert headers["x-forewarn-timestamp"] == "5000"
    assert headers["x-forewarn-delivery"] == received.event["id"]
    assert (headers["content-type"], headers.get("aeg-event-type")) == (content_type, aeg)
    assert webhook.secret not in str(received)


def test_a_receiver_that_was_down_gets_everything_once_it_is_back(delivery: Any, receiver: WebhookReceiver) -> None:
    receiver.stop()
    delivery.hook(receiver)
    delivery.restart_of("web")

    async def scenario() -> None:
        async with delivery.running():
            for failures in range(1, 5):
                await delivery.retry_sleep.begun(failures)
                delivery.retry_sleep.allow()
            await delivery.retry_sleep.begun(5)
            report = delivery.dispatcher.delivery_report(delivery.world.store.webhooks()[0])
            assert (report.failures, report.error, report.pending) == (5, "it refused the connection", 3)
            assert report.next_try_at == 5016.0
            receiver.start()
            delivery.retry_sleep.allow()
            await asyncio.to_thread(receiver.wait_for, 3)
            await delivery.at_rest()
            report = delivery.dispatcher.delivery_report(delivery.world.store.webhooks()[0])
            assert (report.failures, report.error, report.last_success_at) == (0, "", 5000.0)
            assert (report.pending, report.next_try_at) == (0, None)

    delivery.world.do(scenario())
    assert statuses(receiver) == RESTART
    assert delivery.retry_sleep.taken == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410, 429, 500, 503])
def test_a_message_without_a_2xx_response_is_retried_with_the_same_id(
    delivery: Any, receiver: WebhookReceiver, status: int
) -> None:
    receiver.answer(status, status)
    delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    delivery.retry_sleep.allow()
    delivery.retry_sleep.allow()
    delivery.deliver(receiver, 1)
    assert [received.status for received in receiver.received] == [status, status, 200]
    assert len({received.event["id"] for received in receiver.received}) == 1
    assert len({received.body for received in receiver.received}) == 1


def test_the_delivery_report_words_the_receivers_response(delivery: Any, receiver: WebhookReceiver) -> None:
    webhook = delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    receiver.answer(500, 410, 302)

    async def scenario() -> list[str]:
        errors = []
        async with delivery.running():
            for number in (1, 2, 3):
                await delivery.retry_sleep.begun(number)
                errors.append(delivery.dispatcher.delivery_report(webhook).error)
                delivery.retry_sleep.allow()
        return errors

    assert delivery.world.do(scenario()) == [
        "it answered 500",
        "it answered 410 (gone for good): remove the webhook if that is true",
        "it answered 302, and redirects are not followed: use the address it redirects to",
    ]


@pytest.mark.parametrize("trouble", ["down", "hangs", "refuses"])
def test_a_failing_receiver_delays_no_other_webhook(delivery: Any, receivers: Make, trouble: str) -> None:
    bad, good = receivers(), receivers()
    if trouble == "down":
        bad.stop()
    elif trouble == "hangs":
        bad.stop_answering()
    else:
        bad.answer(*[503] * 10)
    delivery.hook(bad, "bad")
    delivery.hook(good, "good")
    delivery.restart_of("web")

    async def scenario() -> None:
        async with delivery.running():
            await asyncio.to_thread(good.wait_for, 3)

    delivery.world.do(scenario())
    assert statuses(good) == RESTART
    assert bad.accepted == []
    assert delivery.cursor("bad") < delivery.cursor("good")


def test_a_hanging_receiver_times_out_and_is_retried(delivery: Any, receiver: WebhookReceiver) -> None:
    receiver.stop_answering()
    webhook = delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")

    async def scenario() -> str:
        async with delivery.running():
            await delivery.retry_sleep.begun(1)
            return str(delivery.dispatcher.delivery_report(webhook).error)

    assert delivery.world.do(scenario()) == "there was no response within 5 s"


def test_a_removed_webhook_gets_no_more_messages(delivery: Any, receivers: Make) -> None:
    bad, good = receivers(), receivers()
    bad.answer(500)
    delivery.hook(bad, "bad")
    delivery.hook(good, "good")
    delivery.world.ask(RequestedOperation.RESTART, "web")

    async def scenario() -> None:
        async with delivery.running():
            await delivery.retry_sleep.begun(1)
            await delivery.world.store.commit(Commit(removed_webhooks=("bad",)))
            await asyncio.to_thread(good.wait_for, 1)
            delivery.retry_sleep.allow()
            await delivery.restarting("db")
            await asyncio.to_thread(good.wait_for, 2)

    delivery.world.do(scenario())
    assert len(bad.received) == 1
    assert [hook.id for hook in delivery.world.store.webhooks()] == ["good"]


def test_a_webhook_added_at_runtime_gets_messages_from_then_on(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.world.ask(RequestedOperation.RESTART, "web")

    async def scenario() -> None:
        async with delivery.running():
            await asyncio.sleep(0)
            await delivery.world.store.commit(Commit(webhooks=(delivery.webhook_for(receiver),)))
            await delivery.restarting("db")
            await asyncio.to_thread(receiver.wait_for, 1)

    delivery.world.do(scenario())
    assert names(receiver) == ["db"]


def test_a_webhook_gets_only_messages_that_match_its_filter(delivery: Any, receivers: Make) -> None:
    db_only, ends = receivers(), receivers()
    delivery.hook(db_only, "db", resource=DB)
    delivery.hook(ends, "ends", statuses=(EventGridStatus.COMPLETED, EventGridStatus.CANCELED))
    delivery.restart_of("web")
    delivery.restart_of("db")
    delivery.deliver(db_only, 3)
    assert names(db_only) == ["db"] * 3
    assert statuses(ends) == ["Completed", "Completed"]


def test_delivery_continues_at_the_cursor_after_a_restart(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)
    delivery.restart_of("web")
    delivery.deliver(receiver, 3)
    delivery.world.restart()
    delivery.dispatcher = delivery.new_outbox()
    delivery.restart_of("db")
    delivery.deliver(receiver, 6)
    assert names(receiver) == ["web"] * 3 + ["db"] * 3


def test_a_message_delivered_before_a_crash_is_repeated_with_the_same_id(
    delivery: Any, receiver: WebhookReceiver
) -> None:
    delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    delivery.world.store.fail_next(Unavailable("the disk is full: make room"))
    delivery.deliver(receiver, 1)
    delivery.dispatcher = delivery.new_outbox()  # a crash: the memory is lost
    delivery.deliver(receiver, 2)
    first, second = receiver.accepted
    assert first.event == second.event


def test_a_cursor_that_cannot_be_saved_does_not_stop_delivery(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)
    delivery.restart_of("web")
    delivery.world.store.fail_next(Unavailable("the disk is full: make room"))
    delivery.deliver(receiver, 3)
    assert statuses(receiver) == RESTART
    last = [entry.seq for entry in delivery.world.store.history() if entry.kind is EntryKind.FINISHED]
    assert delivery.cursor() == last[-1]


class Unreadable(MemoryStore):
    is_broken = False

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        if self.is_broken:
            raise Unavailable("the disk does not answer: look at it")
        return super().entries_after(seq, limit)


def test_delivery_is_retried_if_the_history_cannot_be_read(
    make_delivery: Callable[..., Any], receiver: WebhookReceiver
) -> None:
    store = Unreadable()
    delivery = make_delivery(store)
    webhook = delivery.hook(receiver)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    store.is_broken = True

    async def scenario() -> None:
        async with delivery.running():
            await delivery.retry_sleep.begun(1)
            store.is_broken = False
            assert "the disk does not answer" in delivery.dispatcher.delivery_report(webhook).error
            delivery.retry_sleep.allow()
            await asyncio.to_thread(receiver.wait_for, 1)

    delivery.world.do(scenario())
    assert statuses(receiver) == ["Scheduled"]


def test_unmatched_entries_cause_few_cursor_writes(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver)
    commits: list[Any] = []
    add_unmatched_entries(delivery, 2500)
    stop = delivery.world.store.subscribe(lambda committed: commits.extend(committed.commit.cursors))
    delivery.world.ask(RequestedOperation.RESTART, "web")
    delivery.deliver(receiver, 1)
    stop()
    assert len(commits) == 3
    assert commits[-1].seq > 2500


def test_a_long_history_does_not_block_the_event_loop(delivery: Any, receiver: WebhookReceiver) -> None:
    add_unmatched_entries(delivery, 3000)
    delivery.world.ask(RequestedOperation.RESTART, "web")
    delivery.hook(receiver, cursor=0)

    async def scenario() -> int:
        rounds = 0
        async with delivery.running():
            while delivery.cursor() < 3000:
                await asyncio.sleep(0)
                rounds += 1
        return rounds

    assert delivery.world.do(scenario()) > 10


def test_pruning_entries_before_the_cursor_does_not_affect_delivery(delivery: Any, receiver: WebhookReceiver) -> None:
    delivery.hook(receiver, cursor=0)
    delivery.restart_of("web")
    delivery.world.advance(3 * 86400)
    delivery.world.do(delivery.world.store.prune(delivery.world.now - 86400))
    delivery.world.ask(RequestedOperation.RESTART, "db")
    delivery.deliver(receiver, 1)
    assert names(receiver) == ["db"]


def test_pending_messages_are_counted_without_reading_the_whole_history(
    delivery: Any, receiver: WebhookReceiver
) -> None:
    webhook = delivery.hook(receiver)
    delivery.restart_of("web")
    add_unmatched_entries(delivery, 30)
    assert (
        delivery.dispatcher.delivery_report(webhook).pending,
        delivery.dispatcher.delivery_report(webhook).has_more,
    ) == (3, False)
    add_unmatched_entries(delivery, 2000)
    delivery.restart_of("db")
    assert (
        delivery.dispatcher.delivery_report(webhook).pending,
        delivery.dispatcher.delivery_report(webhook).has_more,
    ) == (3, True)


def test_nothing_secret_is_logged(delivery: Any, receiver: WebhookReceiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    receiver.answer(500)
    webhook = delivery.hook(receiver, url=f"{receiver.url}?code=password")
    delivery.world.ask(RequestedOperation.RESTART, "web")
    delivery.retry_sleep.allow()
    delivery.deliver(receiver, 1)
    assert "webhook w: delivery failed, retrying: it answered 500" in caplog.text
    assert receiver.accepted[0].target == "/hook?code=password"
    assert webhook.secret not in caplog.text
    assert "password" not in caplog.text


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_retry_delays_grow_from_one_second_to_five_minutes(chance: float) -> None:
    waits = [retry_delay_s(failures, chance) for failures in range(1, 2000)]
    assert waits == sorted(waits)
    assert waits[0] == 1.0
    assert waits[-1] == 300 * (1 - chance / 2)
    assert waits[5] == 32 * (1 - chance / 2)
