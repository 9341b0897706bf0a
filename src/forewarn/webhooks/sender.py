"""One webhook's courier: tells its receiver what is next in the history, in order, and goes on when that was taken.

`turn` is one pass over a piece of the history; `run` repeats it. A failure is tried again for as long as the webhook
exists: what is accepted is never dropped, and nobody but this receiver waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from forewarn.core.change import Commit
from forewarn.core.history import Entry
from forewarn.core.notification import Notification, is_wanted, message_of, notification_for, tells, vm_keys
from forewarn.core.webhook import Cursor, Webhook
from forewarn.errors import ForewarnError
from forewarn.outbox.letter import letter_for
from forewarn.outbox.patience import wait_s
from forewarn.outbox.seam import Record, Reply, Send, Unreached

log = logging.getLogger(__name__)
_PIECE = 200  # entries read at a time
_SKIPPED = 1000  # entries that were none of its business are written down as passed in such steps
_COUNTED = 1000  # entries looked at to count what is pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What couriers share: the record, the way out, real time and chance."""

    record: Record
    send: Send
    real_time: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float]  # from 0 to 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How telling one webhook goes, since the service was started. Instants are real time."""

    last_success_at: float | None = None
    failures: int = 0  # in a row
    error: str = ""  # of the last one
    next_try_at: float | None = None
    pending: int = 0
    has_more: bool = False  # that many at least


class Courier:
    def __init__(self, webhook: Webhook, means: Means) -> None:
        self._webhook = webhook
        self._means = means
        self._news = asyncio.Event()
        self._seen = webhook.cursor  # told, or none of its business
        self._written = webhook.cursor  # as much of that as is durable
        self._report = Report()

    def wake(self) -> None:
        self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            wait = await self._turn_or_wait()
            if wait is None:
                await self._news.wait()
            elif wait:
                await self._means.sleep(wait)
            else:
                await asyncio.sleep(0)  # a long history is nobody else's trouble

    async def turn(self) -> float | None:
        """Tell a piece of the history. How long to wait before the next turn; None: until there is news."""
        entries = self._means.record.entries_after(self._seen, _PIECE)
        for entry in entries:
            notification = self._wanted(entry)
            if notification is not None:
                if (failure := await self._deliver(notification)) is not None:
                    return self._failed(failure)
                self._succeeded()
            self._seen = entry.seq
            if notification is not None or self._seen - self._written >= _SKIPPED:
                await self._write_down()
        return 0 if len(entries) == _PIECE else None

    def report(self) -> Report:
        coming = self._means.record.entries_after(self._seen, _COUNTED)
        pending = sum(self._wanted(entry) is not None for entry in coming)
        return msgspec.structs.replace(self._report, pending=pending, has_more=len(coming) == _COUNTED)

    async def _turn_or_wait(self) -> float | None:
        try:
            return await self.turn()
        except ForewarnError as error:
            return self._failed(f"the history cannot be read: {error}")
        except Exception as error:
            log.exception("webhook %s: what is next cannot be told", self._webhook.id)
            return self._failed(f"forewarn failed inside ({type(error).__name__}): its log says more")

    def _wanted(self, entry: Entry) -> Notification | None:
        record = self._means.record
        event = record.event(entry.event_id) if tells(entry) else None
        if event is None:
            return None
        vms = [vm for vm in map(record.vm, vm_keys(event)) if vm is not None]
        notification = notification_for(entry, event, vms)
        return notification if notification is not None and is_wanted(self._webhook, notification, vms) else None

    async def _deliver(self, notification: Notification) -> str | None:
        """None if it was taken, else why not."""
        letter = letter_for(self._webhook, message_of(notification), self._means.real_time())
        try:
            reply = await self._means.send(letter)
        except Unreached as error:
            return str(error)
        return None if reply.is_good else refusal(reply)

    def _succeeded(self) -> None:
        if self._report.failures:
            log.info("webhook %s: told again, after %d failures", self._webhook.id, self._report.failures)
        self._report = Report(last_success_at=self._means.real_time())

    def _failed(self, error: str) -> float:
        failures = self._report.failures + 1
        wait = wait_s(failures, self._means.chance())
        if error != self._report.error:
            log.warning("webhook %s: not told, trying again: %s", self._webhook.id, error)
        self._report = msgspec.structs.replace(
            self._report, failures=failures, error=error, next_try_at=self._means.real_time() + wait
        )
        return wait

    async def _write_down(self) -> None:
        """Where that fails, the next cursor says this too; a crash before then tells some of it twice."""
        seen = self._seen
        try:
            await self._means.record.commit(Commit(cursors=(Cursor(webhook_id=self._webhook.id, seq=seen),)))
        except ForewarnError as error:
            log.warning("webhook %s: how far it was told cannot be written down: %s", self._webhook.id, error)
        else:
            self._written = seen


def refusal(reply: Reply) -> str:
    if reply.status == 410:
        return "it answered 410, which means gone for good: remove the webhook if that is so"
    if 300 <= reply.status < 400:
        return f"it answered {reply.status}, and redirects are not followed: add the address it leads to"
    return f"it answered {reply.status}"
