"""Hears of events, for as long as the agent runs: whatever happens to the endpoint, it goes on asking."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from forewarn.agent.journal import Journal
from forewarn.agent.observer import Observer
from forewarn.client import AsyncClient, Change
from forewarn.client.cursor import BadCursor, Cursor, load, save
from forewarn.client.event import key_of
from forewarn.client.exchange import HOLD_S
from forewarn.client.sight import Seen
from forewarn.client.watching import Manner
from forewarn.errors import ForewarnError, Unavailable

LOG = logging.getLogger("forewarn.agent")
TRIES = 5  # of whoever looks once
AGAIN_S = 5.0  # after a refusal, which somebody may mend


class Watcher:
    """`hear` takes a change; only when it returns does that count as heard. `polled` is called after each answer."""

    def __init__(
        self,
        client: AsyncClient,
        cursor: Path,
        observer: Observer,
        *,
        hear: Callable[[Change], None],
        polled: Callable[[], None],
        hold_s: float = HOLD_S,
    ) -> None:
        self._client, self._cursor, self._observer = client, cursor, observer
        self._hear, self._polled, self._hold_s = hear, polled, hold_s
        self._answered_at: float | None = None
        self.trouble = ""

    async def run(self) -> None:
        while True:
            try:
                await self.watch()
            except ForewarnError as error:
                self._say(str(error))
            await asyncio.sleep(AGAIN_S)

    async def watch(self, *, once: bool = False) -> None:
        """Until the endpoint refuses; with `once` until its first answer, and not for long."""
        failures, latest = 0, _nothing
        within_s = 0.0 if once else self._hold_s
        manner = Manner(explicit=True, in_order=True, within_s=lambda: within_s)
        told = self._client.follow(self._cursor, manner)
        try:
            async for change in told:
                if change is not None:
                    self._hear(change)
                    latest = change.done
                    continue
                latest()  # once for all of a poll: each time the cursor is written
                latest = _nothing
                failures = 0 if self._note_poll() else failures + 1
                if once and failures == 0:
                    return
                if once and failures == TRIES:
                    raise Unavailable(self.trouble)
        finally:
            await told.aclose()

    def _note_poll(self) -> bool:
        """Whether the poll that has just been made was answered."""
        before, self._answered_at = self._answered_at, self._client.answered_at
        if self._answered_at is None or self._answered_at == before:
            self._say(self._client.trouble or "the endpoint gave no usable answer")
            return False
        if before is None or self.trouble:
            LOG.info("the endpoint answers%s", "" if before is None else " again")
        self.trouble = ""
        gap_s = 0.0 if before is None else self._answered_at - before
        self._observer.polled(max(0.0, gap_s - self._client.held_s))
        self._polled()
        return True

    def _say(self, why: str) -> None:
        if why != self.trouble:
            LOG.warning("%s", why)
        self.trouble = why
        self._observer.failed(why)


def _nothing() -> None:
    """Is what a poll without a change asks for."""


def mend(path: Path, journal: Journal, boot_id: str) -> None:
    """Make the cursor know exactly the events that the journal has open: what is missing in either is told anew."""
    try:
        cursor = load(path)
    except BadCursor as error:
        LOG.warning("the cursor %s is not used, because %s", path, error)
        cursor = Cursor()
    listed = {key_of(record.event): record for record in journal.book if record.gone_at is None}
    known = {key_of(seen.event): seen for seen in cursor.known.seen}
    if known.keys() == listed.keys():
        return
    seen = tuple(known.get(key) or Seen(event=record.event, boot=record.boot_id) for key, record in listed.items())
    save(path, replace(cursor, known=replace(cursor.known, seen=seen, is_exact=False), boot=boot_id))
