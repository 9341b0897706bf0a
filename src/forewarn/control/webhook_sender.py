"""Sends one webhook's messages in the order of the history, and retries with backoff.

It retries a failed message as long as the webhook exists. A slow receiver delays no other webhook.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from forewarn.base.times import RealTime
from forewarn.control.webhook_message import (
    ReceiverUnreachable,
    SendRequest,
    WebhookResponse,
    WebhookStore,
    build_request,
)
from forewarn.core.commit import Commit
from forewarn.core.explain.notification import (
    NotificationMessage,
    event_vm_keys,
    is_subscribed,
    may_notify,
    notification_for,
    notification_message,
)
from forewarn.core.explain.rollout_notification import may_notify_of_rollout, rollout_message
from forewarn.core.history import HistoryEntry
from forewarn.core.webhook import WebhookCursor, WebhookSubscription
from forewarn.errors import ForewarnError

log = logging.getLogger(__name__)
_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 1.0, 300.0
_BATCH_ENTRIES = 200  # history entries read at a time
_MAX_UNSAVED_ENTRIES = 1000  # the cursor is saved at least this often while no entry is for this webhook
_MAX_COUNTED_ENTRIES = 1000  # history entries scanned to count pending messages


def retry_delay_s(failures: int, random: float) -> float:
    """Return the delay before the next try, in seconds, after this many failures in a row (1 or more)."""
    full = min(_MAX_RETRY_DELAY_S, _MIN_RETRY_DELAY_S * 2.0 ** min(failures - 1, 30))
    return max(_MIN_RETRY_DELAY_S, full * (1 - random / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderDependencies:
    """What the senders of all webhooks share: the store, the HTTP client, real time, sleep and randomness."""

    store: WebhookStore  # has the history and the cursors
    send: SendRequest  # sends one request, and raises ReceiverUnreachable
    real_time: Callable[[], RealTime]  # POSIX seconds
    sleep: Callable[[float], Awaitable[None]]  # waits this many seconds of real time
    random: Callable[[], float]  # from 0 to 1


class DeliveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery state of one webhook since its sender was created; times are real, in POSIX seconds."""

    last_success_at: RealTime | None = None  # when the receiver last accepted a message; None: none yet
    failures: int = 0  # tries that failed in a row, since the last success
    error: str = ""  # the error of the last failure, for people; "" after a success
    next_try_at: RealTime | None = None  # None: the last delivery succeeded, or there was none
    pending: int = 0  # messages that wait for delivery, among the next 1000 history entries
    has_more: bool = False  # more than `pending` may be pending


class WebhookSender:
    """Delivers the messages of one webhook while `run` runs: in order, at least once, from its cursor on.

    Delivered means that the receiver answered 2xx; a message that fails delays those after it, and is retried for ever.
    The filters read the event and its VMs as they are stored now; messages about events that were pruned are left out.
    """

    def __init__(self, webhook: WebhookSubscription, dependencies: SenderDependencies) -> None:
        self._webhook = webhook
        self._dependencies = dependencies
        self._new_entries = asyncio.Event()
        self._position = webhook.cursor  # the last entry that was delivered or is not for this webhook
        self._saved_position = webhook.cursor  # the durable part of that
        self._last_report = DeliveryReport()

    def wake(self) -> None:
        """Tell `run` that the history has new entries. It does not shorten the delay after a failure."""
        self._new_entries.set()

    async def run(self) -> None:
        """Deliver the webhook's messages until it is cancelled; failures are logged and retried, never raised.

        It saves the webhook's cursor after each delivered message; if that fails, a restart repeats messages.
        """
        while True:
            self._new_entries.clear()
            wait = await self._try_batch()
            if wait is None:
                await self._new_entries.wait()
            elif wait:
                await self._dependencies.sleep(wait)
            else:
                await asyncio.sleep(0)  # lets other tasks run while it reads a long history

    async def _send_batch(self) -> float | None:
        """Delivers the messages of the next 200 history entries, up to the first failure."""
        # Returns the seconds to wait before the next batch: 0 if more entries may follow, None to wait for new entries.
        entries = self._dependencies.store.entries_after(self._position, _BATCH_ENTRIES)
        for entry in entries:
            message = self._message_to_send(entry)
            if message is not None:
                if (failure := await self._deliver(message)) is not None:
                    return self._record_failure(failure)
                self._record_success()
            self._position = entry.seq
            if message is not None or self._position - self._saved_position >= _MAX_UNSAVED_ENTRIES:
                await self._save_cursor()
        return 0 if len(entries) == _BATCH_ENTRIES else None

    def delivery_report(self) -> DeliveryReport:
        """Return the current delivery state, with the messages pending among the next 1000 history entries."""
        entries = self._dependencies.store.entries_after(self._position, _MAX_COUNTED_ENTRIES)
        pending = sum(self._message_to_send(entry) is not None for entry in entries)
        has_more = len(entries) == _MAX_COUNTED_ENTRIES
        return msgspec.structs.replace(self._last_report, pending=pending, has_more=has_more)

    async def _try_batch(self) -> float | None:
        try:
            return await self._send_batch()
        except ForewarnError as error:
            return self._record_failure(f"the history cannot be read: {error}")
        except Exception as error:
            log.exception("webhook %s: delivery failed with an internal error", self._webhook.id)
            return self._record_failure(f"forewarn failed with an internal error ({type(error).__name__}): see its log")

    def _message_to_send(self, entry: HistoryEntry) -> NotificationMessage | None:
        store = self._dependencies.store
        if self._webhook.rollouts and may_notify_of_rollout(entry):
            return rollout_message(entry, store.request(entry.request_id) if entry.request_id else None)
        event = store.event(entry.event_id) if may_notify(entry) else None
        if event is None:
            return None
        vms = [vm for vm in map(store.vm, event_vm_keys(event)) if vm is not None]
        notification = notification_for(entry, event, vms)
        if notification is None or not is_subscribed(self._webhook, notification, vms):
            return None
        return notification_message(notification)

    async def _deliver(self, message: NotificationMessage) -> str | None:
        request = build_request(self._webhook, message, self._dependencies.real_time())
        try:
            response = await self._dependencies.send(request)
        except ReceiverUnreachable as error:
            return str(error)
        return None if response.is_success else describe_refusal(response)

    def _record_success(self) -> None:
        if self._last_report.failures:
            log.info("webhook %s: delivered again after %d failures", self._webhook.id, self._last_report.failures)
        self._last_report = DeliveryReport(last_success_at=self._dependencies.real_time())

    def _record_failure(self, error: str) -> float:
        failures = self._last_report.failures + 1
        wait = retry_delay_s(failures, self._dependencies.random())
        if error != self._last_report.error:
            log.warning("webhook %s: delivery failed, retrying: %s", self._webhook.id, error)
        self._last_report = msgspec.structs.replace(
            self._last_report, failures=failures, error=error, next_try_at=self._dependencies.real_time() + wait
        )
        return wait

    async def _save_cursor(self) -> None:
        # If that fails, the next save covers it; a crash before then repeats some messages.
        position = self._position
        try:
            await self._dependencies.store.commit(
                Commit(cursors=(WebhookCursor(webhook_id=self._webhook.id, seq=position),))
            )
        except ForewarnError as error:
            log.warning("webhook %s: its cursor cannot be saved: %s", self._webhook.id, error)
        else:
            self._saved_position = position


def describe_refusal(response: WebhookResponse) -> str:
    """Return why a response other than 2xx is a failure: a clause for people, such as `it answered 500`."""
    if response.status == 410:
        return "it answered 410 (gone for good): remove the webhook if that is true"
    if 300 <= response.status < 400:
        return f"it answered {response.status}, and redirects are not followed: use the address it redirects to"
    return f"it answered {response.status}"
