"""Polls the endpoint for as long as the agent runs, through outages, and passes on each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from forewarn.agent.journal import AgentJournal
from forewarn.agent.reporting import AgentObserver
from forewarn.client import AsyncClient, Change
from forewarn.client.change_detection import KnownEvent
from forewarn.client.cursor import BadCursor, WatchCursor, load_cursor, save_cursor
from forewarn.client.events import event_key
from forewarn.client.requests import LONG_POLL_S
from forewarn.client.watch import WatchOptions
from forewarn.errors import ForewarnError, Unavailable

LOG = logging.getLogger("forewarn.agent")
MAX_FIRST_POLL_FAILURES = 5  # of whoever looks once
RETRY_S = 5.0  # after a refusal, which somebody may mend


class EventWatcher:
    """`hear` takes a change; only when it returns does that count as heard. `polled` is called after each answer."""

    def __init__(
        self,
        client: AsyncClient,
        cursor: Path,
        observer: AgentObserver,
        *,
        hear: Callable[[Change], None],
        polled: Callable[[], None],
        hold_s: float = LONG_POLL_S,
    ) -> None:
        self._client, self._cursor, self._observer = client, cursor, observer
        self._on_change, self._on_poll, self._hold_s = hear, polled, hold_s
        self._answered_at: float | None = None
        self.problem = ""

    async def run(self) -> None:
        while True:
            try:
                await self.watch()
            except ForewarnError as error:
                self._report_problem(str(error))
            await asyncio.sleep(RETRY_S)

    async def watch(self, *, once: bool = False) -> None:
        """Until the endpoint refuses; with `once` until its first answer, and not for long."""
        failures, latest = 0, _do_nothing
        within_s = 0.0 if once else self._hold_s
        manner = WatchOptions(explicit=True, in_order=True, max_poll_s=lambda: within_s)
        told = self._client.watch_with(self._cursor, manner)
        try:
            async for change in told:
                if change is not None:
                    self._on_change(change)
                    latest = change.done
                    continue
                latest()  # once for all of a poll: each time the cursor is written
                latest = _do_nothing
                failures = 0 if self._record_poll() else failures + 1
                if once and failures == 0:
                    return
                if once and failures == MAX_FIRST_POLL_FAILURES:
                    raise Unavailable(self.problem)
        finally:
            await told.aclose()

    def _record_poll(self) -> bool:
        """Whether the poll that has just been made was answered."""
        before, self._answered_at = self._answered_at, self._client.answered_at
        if self._answered_at is None or self._answered_at == before:
            self._report_problem(self._client.last_error or "the endpoint gave no usable answer")
            return False
        if before is None or self.problem:
            LOG.info("the endpoint answers%s", "" if before is None else " again")
        self.problem = ""
        gap_s = 0.0 if before is None else self._answered_at - before
        self._observer.poll_answered(max(0.0, gap_s - self._client.held_s))
        self._on_poll()
        return True

    def _report_problem(self, why: str) -> None:
        if why != self.problem:
            LOG.warning("%s", why)
        self.problem = why
        self._observer.poll_failed(why)


def _do_nothing() -> None:
    """Is what a poll without a change asks for."""


def repair_cursor(path: Path, journal: AgentJournal, boot_id: str) -> None:
    """Make the cursor know exactly the events that the journal has open: what is missing in either is told anew."""
    try:
        cursor = load_cursor(path)
    except BadCursor as error:
        LOG.warning("the cursor %s is not used, because %s", path, error)
        cursor = WatchCursor()
    listed = {event_key(record.event): record for record in journal.open_records if record.gone_at is None}
    known = {event_key(seen.event): seen for seen in cursor.known.events}
    if known.keys() == listed.keys():
        return
    seen = tuple(
        known.get(key) or KnownEvent(event=record.event, boot_id=record.boot_id) for key, record in listed.items()
    )
    save_cursor(path, replace(cursor, known=replace(cursor.known, events=seen, is_exact=False), boot_id=boot_id))
