"""Polls the endpoint for as long as the agent runs, through outages, and passes on each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from forewarn.agent.journal import AgentJournal
from forewarn.agent.reporting import AgentObserver
from forewarn.client import AsyncClient, Change, Gone
from forewarn.client.change_detection import KnownEvent
from forewarn.client.cursor import BadCursor, WatchCursor, load_cursor, save_cursor
from forewarn.client.events import event_key
from forewarn.client.requests import LONG_POLL_S
from forewarn.client.watch import WatchOptions
from forewarn.errors import ForewarnError, Unavailable

LOG = logging.getLogger("forewarn.agent")
MAX_FIRST_POLL_FAILURES = 5  # with `once`
RETRY_S = 5.0  # after the endpoint refused
JOURNAL_RETRY_S = 1.0  # the longest time between two polls while the journal cannot be written


class EventWatcher:
    """Polls the endpoint and passes the changes of events to `on_changes`, all changes of a poll at once.

    Changes count as handled once `on_changes` has returned, and may be passed again after a crash. If it raises
    Unavailable (the journal cannot be written), polling goes on, and the changes are passed again after each poll,
    together with later ones. The file `cursor` keeps this state.
    """

    def __init__(
        self,
        client: AsyncClient,
        cursor: Path,
        observer: AgentObserver,
        *,
        on_changes: Callable[[Sequence[Change]], None],
        on_poll: Callable[[], None],
        hold_s: float = LONG_POLL_S,
    ) -> None:
        self._client, self._cursor, self._observer = client, cursor, observer
        self._on_changes, self._on_poll, self._hold_s = on_changes, on_poll, hold_s
        self._answered_at: float | None = None
        self._waiting: list[Change] = []  # changes that `on_changes` has not taken yet, in order
        self._is_behind = False  # the journal could not be written after the latest poll
        self.problem = ""

    async def run(self) -> None:
        """Poll the endpoint for changes of events until cancelled, through all outages and refusals."""
        while True:
            try:
                await self.watch()
            except ForewarnError as error:
                self._report_problem(str(error))
            await asyncio.sleep(RETRY_S)

    async def watch(self, *, once: bool = False) -> None:
        """Poll the endpoint for changes, through outages of endpoint and disk, until the endpoint refuses."""
        failures, self._waiting, self._is_behind = 0, [], False
        options = WatchOptions(
            explicit=True,
            in_order=True,
            confirm_time=True,
            repeats_moved=True,
            max_poll_s=lambda: 0.0 if once else self._max_poll_s(),
        )
        changes = self._client.follow(self._cursor, options)
        try:
            async for change in changes:
                if change is not None:
                    self._waiting.append(change)
                    continue
                failures = 0 if self._finish_poll() else failures + 1
                if once and self._is_behind:
                    raise Unavailable(self.problem)
                if once and failures == 0:
                    return
                if once and failures == MAX_FIRST_POLL_FAILURES:
                    raise Unavailable(self.problem)
        finally:
            await changes.aclose()

    def _max_poll_s(self) -> float:
        return min(JOURNAL_RETRY_S, self._hold_s) if self._is_behind else self._hold_s

    def _finish_poll(self) -> bool:
        """Passes on the changes that wait, and records the latest poll; returns whether it succeeded."""
        try:
            if self._waiting:
                self._on_changes(tuple(self._waiting))
                self._waiting[-1].done()  # the earlier ones too; once per poll, because each call writes the cursor
                self._waiting.clear()
            is_answered = self._record_poll()
        except Unavailable as error:
            self._is_behind = True
            self._report_problem(str(error))
            return False
        self._is_behind = False
        return is_answered

    def _record_poll(self) -> bool:
        before, self._answered_at = self._answered_at, self._client.answered_at
        if self._answered_at is None or self._answered_at == before:
            self._report_problem(self._client.last_error or "the endpoint gave no usable answer")
            return False
        self._on_poll()
        if before is None or (self.problem and not self._client.last_error):
            LOG.info("the endpoint answers%s", "" if before is None else " again")
        self.problem = self._client.last_error  # the client has logged it
        gap_s = 0.0 if before is None else self._answered_at - before
        self._observer.poll_answered(max(0.0, gap_s - self._client.long_poll_s))
        return True

    def _report_problem(self, reason: str) -> None:
        if reason != self.problem:
            LOG.warning("%s", reason)
        self.problem = reason
        self._observer.poll_failed(reason)


def repair_cursor(path: Path, journal: AgentJournal, boot_id: str) -> None:
    """Make the cursor file at `path` contain exactly the events that the journal has as listed."""
    try:
        cursor = load_cursor(path)
    except BadCursor as error:
        LOG.warning("the cursor %s is not used, because %s", path, error)
        cursor = WatchCursor()
    records = (record for record in journal.open_records if record.gone_at is None)
    listed = {event_key(record.event): KnownEvent(event=record.event, boot_id=record.boot_id) for record in records}
    for change in cursor.unhandled:  # the watch delivers them first
        if isinstance(change, Gone):
            listed.pop(event_key(change.event), None)
        else:
            listed.setdefault(event_key(change.event), KnownEvent(event=change.event, boot_id=cursor.boot_id))
    known = {event_key(seen.event): seen for seen in cursor.known.events}
    if known.keys() == listed.keys():
        return
    seen = tuple(known.get(key, found) for key, found in listed.items())
    save_cursor(path, replace(cursor, known=replace(cursor.known, events=seen, is_exact=False), boot_id=boot_id))
