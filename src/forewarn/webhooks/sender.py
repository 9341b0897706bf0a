"""Sends one webhook's messages in the order of the history, and retries with backoff.

A failed message is retried for as long as the webhook exists. A slow receiver delays no other webhook.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from forewarn.core.commit import Commit
from forewarn.core.history import HistoryEntry
from forewarn.core.webhook import WebhookCursor, WebhookSubscription
from forewarn.errors import ForewarnError
from forewarn.explain.notification import (
    EventNotification,
    event_vm_keys,
    is_subscribed,
    may_notify,
    notification_for,
    notification_message,
)
from forewarn.webhooks.message import ReceiverUnreachable, SendRequest, WebhookResponse, WebhookStore, build_request

_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 1.0, 300.0


def retry_delay_s(failures: int, chance: float) -> float:
    """After so many failures in a row; `chance`, from 0 to 1, takes up to half of it away."""
    full = min(_MAX_RETRY_DELAY_S, _MIN_RETRY_DELAY_S * 2.0 ** min(failures - 1, 30))
    return max(_MIN_RETRY_DELAY_S, full * (1 - chance / 2))


log = logging.getLogger(__name__)
_BATCH_ENTRIES = 200  # entries read at a time
_MAX_UNSAVED_ENTRIES = 1000  # entries that were none of its business are written down as passed in such steps
_MAX_COUNTED_ENTRIES = 1000  # entries looked at to count what is pending


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderDependencies:
    """What couriers share: the record, the way out, real time and chance."""

    store: WebhookStore
    send: SendRequest
    real_time: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    random: Callable[[], float]  # from 0 to 1


class DeliveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """How telling one webhook goes, since the service was started. Instants are real time."""

    last_success_at: float | None = None
    failures: int = 0  # in a row
    error: str = ""  # of the last one
    next_try_at: float | None = None
    pending: int = 0
    has_more: bool = False  # that many at least


class WebhookSender:
    def __init__(self, webhook: WebhookSubscription, means: SenderDependencies) -> None:
        self._webhook = webhook
        self._dependencies = means
        self._new_entries = asyncio.Event()
        self._position = webhook.cursor  # told, or none of its business
        self._saved_position = webhook.cursor  # as much of that as is durable
        self._last_report = DeliveryReport()

    def wake(self) -> None:
        self._new_entries.set()

    async def run(self) -> None:
        while True:
            self._new_entries.clear()
            wait = await self._try_batch()
            if wait is None:
                await self._new_entries.wait()
            elif wait:
                await self._dependencies.sleep(wait)
            else:
                await asyncio.sleep(0)  # a long history is nobody else's trouble

    async def send_batch(self) -> float | None:
        """Tell a piece of the history. How long to wait before the next turn; None: until there is news."""
        entries = self._dependencies.store.entries_after(self._position, _BATCH_ENTRIES)
        for entry in entries:
            notification = self._notification_to_send(entry)
            if notification is not None:
                if (failure := await self._deliver(notification)) is not None:
                    return self._record_failure(failure)
                self._record_success()
            self._position = entry.seq
            if notification is not None or self._position - self._saved_position >= _MAX_UNSAVED_ENTRIES:
                await self._save_cursor()
        return 0 if len(entries) == _BATCH_ENTRIES else None

    def delivery_report(self) -> DeliveryReport:
        coming = self._dependencies.store.entries_after(self._position, _MAX_COUNTED_ENTRIES)
        pending = sum(self._notification_to_send(entry) is not None for entry in coming)
        return msgspec.structs.replace(self._last_report, pending=pending, has_more=len(coming) == _MAX_COUNTED_ENTRIES)

    async def _try_batch(self) -> float | None:
        try:
            return await self.send_batch()
        except ForewarnError as error:
            return self._record_failure(f"the history cannot be read: {error}")
        except Exception as error:
            log.exception("webhook %s: what is next cannot be told", self._webhook.id)
            return self._record_failure(f"forewarn failed inside ({type(error).__name__}): its log says more")

    def _notification_to_send(self, entry: HistoryEntry) -> EventNotification | None:
        record = self._dependencies.store
        event = record.event(entry.event_id) if may_notify(entry) else None
        if event is None:
            return None
        vms = [vm for vm in map(record.vm, event_vm_keys(event)) if vm is not None]
        notification = notification_for(entry, event, vms)
        return notification if notification is not None and is_subscribed(self._webhook, notification, vms) else None

    async def _deliver(self, notification: EventNotification) -> str | None:
        """None if it was taken, else why not."""
        letter = build_request(self._webhook, notification_message(notification), self._dependencies.real_time())
        try:
            reply = await self._dependencies.send(letter)
        except ReceiverUnreachable as error:
            return str(error)
        return None if reply.is_success else describe_refusal(reply)

    def _record_success(self) -> None:
        if self._last_report.failures:
            log.info("webhook %s: told again, after %d failures", self._webhook.id, self._last_report.failures)
        self._last_report = DeliveryReport(last_success_at=self._dependencies.real_time())

    def _record_failure(self, error: str) -> float:
        failures = self._last_report.failures + 1
        wait = retry_delay_s(failures, self._dependencies.random())
        if error != self._last_report.error:
            log.warning("webhook %s: not told, trying again: %s", self._webhook.id, error)
        self._last_report = msgspec.structs.replace(
            self._last_report, failures=failures, error=error, next_try_at=self._dependencies.real_time() + wait
        )
        return wait

    async def _save_cursor(self) -> None:
        """Where that fails, the next cursor says this too; a crash before then tells some of it twice."""
        seen = self._position
        try:
            await self._dependencies.store.commit(
                Commit(cursors=(WebhookCursor(webhook_id=self._webhook.id, seq=seen),))
            )
        except ForewarnError as error:
            log.warning("webhook %s: how far it was told cannot be written down: %s", self._webhook.id, error)
        else:
            self._saved_position = seen


def describe_refusal(reply: WebhookResponse) -> str:
    if reply.status == 410:
        return "it answered 410, which means gone for good: remove the webhook if that is so"
    if 300 <= reply.status < 400:
        return f"it answered {reply.status}, and redirects are not followed: add the address it leads to"
    return f"it answered {reply.status}"
