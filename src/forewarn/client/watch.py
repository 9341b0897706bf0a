"""The endless flows: each document, and each change of an event, with a durable cursor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

from forewarn.client.change_detection import (
    KnownDocument,
    ObservedDocument,
    detect_changes,
    epoch_from_etag,
    is_older_document,
    is_vm_name_needed,
    time_left_s,
)
from forewarn.client.cursor import BadCursor, WatchCursor, load_cursor, save_cursor
from forewarn.client.effects import CallFunction, Flow, Sleep, YieldItem
from forewarn.client.events import Change, Scheduled
from forewarn.client.requests import LONG_POLL_S, PollState, PollStep, step_after_answer, step_after_failure
from forewarn.client.session import LOG, OLDEST_COMPLETE_VERSION, ClientSession, warning_effect
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.protocol.codec import Received

_FAILURES_BEFORE_WARNING = 3  # in a row, before people are told that the service is away


class CursorStore:
    """The cursor, and its file if there is one. Changes may be done with in any order, and from any thread."""

    def __init__(self, path: Path | None, cursor: WatchCursor) -> None:
        self.cursor = cursor
        self._path = path
        self._lock = Lock()

    def save_initial(self) -> None:
        """A place that cannot be written is refused now, not when something happens."""
        if self._path is not None:
            save_cursor(self._path, self.cursor)

    def add_changes(self, known: KnownDocument, news: tuple[Change, ...], boot: str) -> None:
        with self._lock:
            self._replace(WatchCursor(known=known, unhandled=(*self.cursor.unhandled, *news), boot_id=boot))

    def mark_handled(self, change: Change) -> None:
        """Handled; said again, it changes nothing."""
        with self._lock:
            left = tuple(other for other in self.cursor.unhandled if other is not change)
            self._replace(replace(self.cursor, unhandled=left))

    def mark_handled_up_to(self, change: Change) -> None:
        """Handled, and all that were told before it."""
        with self._lock:
            left = self.cursor.unhandled
            place = next((place for place, other in enumerate(left) if other is change), -1)
            self._replace(replace(self.cursor, unhandled=left[place + 1 :]))

    def _replace(self, cursor: WatchCursor) -> None:
        is_new, self.cursor = cursor != self.cursor, cursor
        if self._path is None or not is_new:
            return
        try:
            save_cursor(self._path, cursor)
        except Rejected as error:  # a full disk must not keep anybody from hearing of an eviction
            LOG.warning("%s; what is handled may be told again", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How changes are told: `explicit` ones count as handled only by done(), and `in_order` with all before them, so
    that a thousand need one write. With `within_s` somebody has other things to do: it says how long the next poll may
    take, and None is told after each.
    """

    explicit: bool = False
    in_order: bool = False
    max_poll_s: Callable[[], float] | None = None

    def long_poll_s(self) -> float:
        return LONG_POLL_S if self.max_poll_s is None else min(LONG_POLL_S, max(0.0, self.max_poll_s()))


def documents_flow(session: ClientSession) -> Flow[None]:
    watch = PollState()
    while True:
        step = yield from _poll_once(session, watch, LONG_POLL_S)
        watch = step.state
        if step.new_document is not None:
            yield YieldItem(item=step.new_document)
        yield Sleep(seconds=step.pause_s)


def changes_flow(session: ClientSession, path: Path | None, manner: WatchOptions) -> Flow[None]:
    boot = yield CallFunction(function=session.boot_id)
    ledger = CursorStore(path, (yield from _load_or_create_cursor(path)))
    yield CallFunction(function=ledger.save_initial)
    untold, watch, behind_at = ledger.cursor.unhandled, PollState(), math.inf
    while True:
        hold_s = manner.long_poll_s()
        step = yield from _poll_once(session, watch, hold_s)
        watch = step.state
        if watch.document is not None and not watch.failures:
            behind_at = (
                min(behind_at, session.clock())
                if is_older_document(ledger.cursor.known, _observed_document(watch))
                else math.inf
            )
            behind_s = max(0.0, session.clock() - behind_at)
            sight = replace(_observed_document(watch), date=session.date, boot_id=boot, older_for_s=behind_s)
            news = yield from _record_changes(session, ledger, sight)
            yield from _yield_changes(session, ledger, (*untold, *news), manner)
            untold = ()
        if manner.max_poll_s is not None:
            yield YieldItem(item=None)
        yield Sleep(seconds=step.pause_s if manner.max_poll_s is None else min(step.pause_s, manner.long_poll_s()))


def _poll_once(session: ClientSession, watch: PollState, hold_s: float) -> Flow[PollStep]:
    """One poll and what follows from it. Outages of any length are waited out."""
    try:
        step = step_after_answer(watch, (yield from session.poll(watch, hold_s=int(hold_s))))
    except Unavailable as error:
        step = step_after_failure(watch, error)
        session.last_error = str(error)
        if step.state.failures == _FAILURES_BEFORE_WARNING:
            yield warning_effect(f"{error}; going on trying")
    return step


def _load_or_create_cursor(path: Path | None) -> Flow[WatchCursor]:
    if path is None:
        return WatchCursor()
    try:
        cursor: WatchCursor = yield CallFunction(function=partial(load_cursor, path))
    except BadCursor as error:
        yield warning_effect(f"the cursor {str(path)!r} is not used, because {error}: events may be told again")
        return WatchCursor()
    return cursor


def _observed_document(watch: PollState) -> ObservedDocument:
    known = watch.document or Received(incarnation=-1)
    return ObservedDocument(incarnation=known.incarnation, events=known.events, epoch=epoch_from_etag(watch.etag))


def _record_changes(session: ClientSession, ledger: CursorStore, sight: ObservedDocument) -> Flow[tuple[Change, ...]]:
    """The news of a document, noted as unhandled before anybody is told."""
    known = ledger.cursor.known
    name = (yield from _vm_name_or_none(session)) if is_vm_name_needed(known, sight) else None
    after, news = detect_changes(
        known, replace(sight, vm_name=name, shows_all_kinds=session.version >= OLDEST_COMPLETE_VERSION)
    )
    if news or after != known or sight.boot_id != ledger.cursor.boot_id:
        yield CallFunction(function=partial(ledger.add_changes, after, news, sight.boot_id))
    return news


def _vm_name_or_none(session: ClientSession) -> Flow[str | None]:
    """Not every endpoint tells."""
    try:
        return (yield from session.name())
    except ForewarnError:
        return None


def _yield_changes(
    session: ClientSession, ledger: CursorStore, news: tuple[Change, ...], manner: WatchOptions
) -> Flow[None]:
    for change in news:
        done = partial(ledger.mark_handled_up_to if manner.in_order else ledger.mark_handled, change)
        yield YieldItem(item=_with_current_time_left(change, session, done))
        if not manner.explicit:
            yield CallFunction(function=done)


def _with_current_time_left(change: Change, session: ClientSession, done: Callable[[], None]) -> Change:
    """With the time that is left now: it may have waited in a file, or for its turn."""
    if isinstance(change, Scheduled):
        return replace(change, left_s=time_left_s(change.event, session.date), when_done=done)
    return replace(change, when_done=done)
