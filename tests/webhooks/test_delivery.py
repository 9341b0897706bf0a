"""What receivers are told: everything that is their business, in order, at least once, whoever else is in trouble."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import RequestedOperation
from forewarn.core.webhook import EventGridStatus, WebhookSchema
from forewarn.errors import Unavailable
from forewarn.store import MemoryStore
from forewarn.webhooks.sender import retry_delay_s
from tests.support.webhook_receiver import WebhookReceiver

RESTART = ["Scheduled", "Started", "Completed"]
DB = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/DB"
Make = Callable[[], WebhookReceiver]


def told(receiver: WebhookReceiver) -> list[str]:
    return [received.event_status for received in receiver.accepted]


def names(receiver: WebhookReceiver) -> list[str]:
    return [received.event["data"]["resourceInfo"]["properties"]["Resources"][0] for received in receiver.accepted]


def fill(post: Any, count: int) -> None:
    entries = tuple(HistoryEntry(at=1.0, what=EntryKind.SERVICE, text="nothing of interest") for _ in range(count))
    post.world.do(post.world.store.commit(Commit(entries=entries)))


def test_the_statuses_of_an_event_are_delivered_in_order(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)
    post.restart_of("web")
    post.tell(receiver, 3)
    assert told(receiver) == RESTART
    assert len({received.event["id"] for received in receiver.accepted}) == 3


def test_a_new_entry_is_delivered_at_once(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)

    async def story() -> None:
        async with post.running():
            await asyncio.sleep(0)
            await post.restarting("web")
            await asyncio.to_thread(receiver.wait_for, 1)

    post.world.do(story())
    assert told(receiver) == ["Scheduled"]
    assert post.naps.taken == []


def test_a_withdrawn_event_is_delivered_as_canceled(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)
    event = post.world.ask(RequestedOperation.RESTART, "web")[0]
    post.world.do(post.world.control.requests.withdraw(event.id, who="ann", reason="later"))
    post.tell(receiver, 2)
    assert told(receiver) == ["Scheduled", "Canceled"]


@pytest.mark.parametrize(
    ("schema", "content_type", "aeg"),
    [
        (WebhookSchema.EVENT_GRID, "application/json; charset=utf-8", "Notification"),
        (WebhookSchema.CLOUD_EVENTS, "application/cloudevents+json; charset=utf-8", None),
    ],
)
def test_every_message_is_signed_and_typed(
    post: Any, receiver: WebhookReceiver, schema: WebhookSchema, content_type: str, aeg: str | None
) -> None:
    webhook = post.hook(receiver, schema=schema)
    post.world.ask(RequestedOperation.RESTART, "web")
    (received,) = post.tell(receiver, 1)
    headers = received.headers
    expected = hmac.new(webhook.secret.encode(), b"5000." + received.body, hashlib.sha256).hexdigest()
    assert headers["x-forewarn-signature"] == f"sha256={expected}"
    assert headers["x-forewarn-timestamp"] == "5000"
    assert headers["x-forewarn-delivery"] == received.event["id"]
    assert (headers["content-type"], headers.get("aeg-event-type")) == (content_type, aeg)
    assert webhook.secret not in str(received)


def test_a_receiver_that_was_down_gets_everything_once_it_is_back(post: Any, receiver: WebhookReceiver) -> None:
    receiver.stop()
    post.hook(receiver)
    post.restart_of("web")

    async def story() -> None:
        async with post.running():
            for failures in range(1, 5):
                await post.naps.begun(failures)
                post.naps.allow()
            await post.naps.begun(5)
            report = post.outbox.delivery_report(post.world.store.webhooks()[0])
            assert (report.failures, report.error, report.pending) == (5, "it refused the connection", 3)
            assert report.next_try_at == 5016.0
            receiver.start()
            post.naps.allow()
            await asyncio.to_thread(receiver.wait_for, 3)
            await post.at_rest()
            report = post.outbox.delivery_report(post.world.store.webhooks()[0])
            assert (report.failures, report.error, report.last_success_at) == (0, "", 5000.0)
            assert (report.pending, report.next_try_at) == (0, None)

    post.world.do(story())
    assert told(receiver) == RESTART
    assert post.naps.taken == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410, 429, 500, 503])
def test_a_message_without_a_2xx_response_is_retried_with_the_same_id(
    post: Any, receiver: WebhookReceiver, status: int
) -> None:
    receiver.answer(status, status)
    post.hook(receiver)
    post.world.ask(RequestedOperation.RESTART, "web")
    post.naps.allow()
    post.naps.allow()
    post.tell(receiver, 1)
    assert [received.status for received in receiver.received] == [status, status, 200]
    assert len({received.event["id"] for received in receiver.received}) == 1
    assert len({received.body for received in receiver.received}) == 1


def test_the_delivery_report_words_the_receivers_response(post: Any, receiver: WebhookReceiver) -> None:
    webhook = post.hook(receiver)
    post.world.ask(RequestedOperation.RESTART, "web")
    receiver.answer(500, 410, 302)

    async def story() -> list[str]:
        errors = []
        async with post.running():
            for number in (1, 2, 3):
                await post.naps.begun(number)
                errors.append(post.outbox.delivery_report(webhook).error)
                post.naps.allow()
        return errors

    assert post.world.do(story()) == [
        "it answered 500",
        "it answered 410 (gone for good): remove the webhook if that is true",
        "it answered 302, and redirects are not followed: use the address it redirects to",
    ]


@pytest.mark.parametrize("trouble", ["down", "hangs", "refuses"])
def test_a_failing_receiver_delays_no_other_webhook(post: Any, receivers: Make, trouble: str) -> None:
    bad, good = receivers(), receivers()
    if trouble == "down":
        bad.stop()
    elif trouble == "hangs":
        bad.stop_answering()
    else:
        bad.answer(*[503] * 10)
    post.hook(bad, "bad")
    post.hook(good, "good")
    post.restart_of("web")

    async def story() -> None:
        async with post.running():
            await asyncio.to_thread(good.wait_for, 3)

    post.world.do(story())
    assert told(good) == RESTART
    assert bad.accepted == []
    assert post.cursor("bad") < post.cursor("good")


def test_a_hanging_receiver_times_out_and_is_retried(post: Any, receiver: WebhookReceiver) -> None:
    receiver.stop_answering()
    webhook = post.hook(receiver)
    post.world.ask(RequestedOperation.RESTART, "web")

    async def story() -> str:
        async with post.running():
            await post.naps.begun(1)
            return str(post.outbox.delivery_report(webhook).error)

    assert post.world.do(story()) == "there was no response within 2 s"


def test_a_removed_webhook_gets_no_more_messages(post: Any, receivers: Make) -> None:
    bad, good = receivers(), receivers()
    bad.answer(500)
    post.hook(bad, "bad")
    post.hook(good, "good")
    post.world.ask(RequestedOperation.RESTART, "web")

    async def story() -> None:
        async with post.running():
            await post.naps.begun(1)
            await post.world.store.commit(Commit(removed_webhooks=("bad",)))
            await asyncio.to_thread(good.wait_for, 1)
            post.naps.allow()
            await post.restarting("db")
            await asyncio.to_thread(good.wait_for, 2)

    post.world.do(story())
    assert len(bad.received) == 1
    assert [hook.id for hook in post.world.store.webhooks()] == ["good"]


def test_a_webhook_added_at_runtime_gets_messages_from_then_on(post: Any, receiver: WebhookReceiver) -> None:
    post.world.ask(RequestedOperation.RESTART, "web")

    async def story() -> None:
        async with post.running():
            await asyncio.sleep(0)
            await post.world.store.commit(Commit(webhooks=(post.webhook_for(receiver),)))
            await post.restarting("db")
            await asyncio.to_thread(receiver.wait_for, 1)

    post.world.do(story())
    assert names(receiver) == ["db"]


def test_a_webhook_gets_only_messages_that_match_its_filter(post: Any, receivers: Make) -> None:
    db_only, ends = receivers(), receivers()
    post.hook(db_only, "db", over=DB)
    post.hook(ends, "ends", happenings=(EventGridStatus.COMPLETED, EventGridStatus.CANCELED))
    post.restart_of("web")
    post.restart_of("db")
    post.tell(db_only, 3)
    assert names(db_only) == ["db"] * 3
    assert told(ends) == ["Completed", "Completed"]


def test_delivery_continues_at_the_cursor_after_a_restart(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)
    post.restart_of("web")
    post.tell(receiver, 3)
    post.world.restart()
    post.outbox = post.new_outbox()
    post.restart_of("db")
    post.tell(receiver, 6)
    assert names(receiver) == ["web"] * 3 + ["db"] * 3


def test_a_message_delivered_before_a_crash_is_repeated_with_the_same_id(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)
    post.world.ask(RequestedOperation.RESTART, "web")
    post.world.store.fail_next(Unavailable("the disk is full: make room"))
    post.tell(receiver, 1)
    post.outbox = post.new_outbox()  # a crash: what was in memory is gone
    post.tell(receiver, 2)
    first, second = receiver.accepted
    assert first.event == second.event


def test_a_cursor_that_cannot_be_saved_does_not_stop_delivery(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)
    post.restart_of("web")
    post.world.store.fail_next(Unavailable("the disk is full: make room"))
    post.tell(receiver, 3)
    assert told(receiver) == RESTART
    last = [entry.seq for entry in post.world.store.history() if entry.what is EntryKind.FINISHED]
    assert post.cursor() == last[-1]


class Unreadable(MemoryStore):
    is_broken = False

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        if self.is_broken:
            raise Unavailable("the disk does not answer: look at it")
        return super().entries_after(seq, limit)


def test_delivery_is_retried_if_the_history_cannot_be_read(
    post_over: Callable[..., Any], receiver: WebhookReceiver
) -> None:
    store = Unreadable()
    post = post_over(store)
    webhook = post.hook(receiver)
    post.world.ask(RequestedOperation.RESTART, "web")
    store.is_broken = True

    async def story() -> None:
        async with post.running():
            await post.naps.begun(1)
            store.is_broken = False
            assert "the disk does not answer" in post.outbox.delivery_report(webhook).error
            post.naps.allow()
            await asyncio.to_thread(receiver.wait_for, 1)

    post.world.do(story())
    assert told(receiver) == ["Scheduled"]


def test_unmatched_entries_cause_few_cursor_writes(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver)
    commits: list[Any] = []
    fill(post, 2500)
    stop = post.world.store.subscribe(lambda committed: commits.extend(committed.commit.cursors))
    post.world.ask(RequestedOperation.RESTART, "web")
    post.tell(receiver, 1)
    stop()
    assert len(commits) == 3
    assert commits[-1].seq > 2500


def test_a_long_history_does_not_block_the_event_loop(post: Any, receiver: WebhookReceiver) -> None:
    fill(post, 3000)
    post.world.ask(RequestedOperation.RESTART, "web")
    post.hook(receiver, cursor=0)

    async def story() -> int:
        rounds = 0
        async with post.running():
            while post.cursor() < 3000:
                await asyncio.sleep(0)
                rounds += 1
        return rounds

    assert post.world.do(story()) > 10


def test_pruning_entries_before_the_cursor_does_not_affect_delivery(post: Any, receiver: WebhookReceiver) -> None:
    post.hook(receiver, cursor=0)
    post.restart_of("web")
    post.world.advance(3 * 86400)
    post.world.do(post.world.store.prune(post.world.now - 86400))
    post.world.ask(RequestedOperation.RESTART, "db")
    post.tell(receiver, 1)
    assert names(receiver) == ["db"]


def test_pending_messages_are_counted_without_reading_the_whole_history(post: Any, receiver: WebhookReceiver) -> None:
    webhook = post.hook(receiver)
    post.restart_of("web")
    fill(post, 30)
    assert (post.outbox.delivery_report(webhook).pending, post.outbox.delivery_report(webhook).has_more) == (3, False)
    fill(post, 2000)
    post.restart_of("db")
    assert (post.outbox.delivery_report(webhook).pending, post.outbox.delivery_report(webhook).has_more) == (3, True)


def test_nothing_secret_is_logged(post: Any, receiver: WebhookReceiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    receiver.answer(500)
    webhook = post.hook(receiver, url=f"{receiver.url}?code=password")
    post.world.ask(RequestedOperation.RESTART, "web")
    post.naps.allow()
    post.tell(receiver, 1)
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
