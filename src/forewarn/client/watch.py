"""The endless flows: each document, and each change of an event, with a durable cursor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
from forewarn.client.requests import (
    LONG_POLL_S,
    PollState,
    PollStep,
    partial_document_warning,
    step_after_answer,
    step_after_failure,
)
from forewarn.client.session import LOG, OLDEST_COMPLETE_VERSION, ClientSession, warning_effect
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.protocol.codec import Received

_FAILURES_BEFORE_WARNING = 3  # in a row


class _CursorStore:
    """Keeps a watcher's cursor in `cursor`, and writes it to the file at `path` whenever it changes."""

    # Threads may mark changes as handled in any order. A write that fails after `save_initial` is only logged: changes
    # may then be delivered again.

    def __init__(self, path: Path | None, cursor: WatchCursor) -> None:
        self.cursor = cursor
        self._path = path
        self._lock = Lock()

    def save_initial(self) -> None:
        """Writes the cursor once at the start, so that an unusable path raises Rejected now."""
        if self._path is not None:
            save_cursor(self._path, self.cursor)

    def add_changes(self, known: KnownDocument, changes: tuple[Change, ...], boot_id: str) -> None:
        with self._lock:
            self._replace(WatchCursor(known=known, unhandled=(*self.cursor.unhandled, *changes), boot_id=boot_id))

    def mark_handled(self, change: Change) -> None:
        """Removes this very object from `cursor.unhandled`, and writes the file."""
        with self._lock:
            left = tuple(other for other in self.cursor.unhandled if other is not change)
            self._replace(replace(self.cursor, unhandled=left))

    def mark_all_handled(self, changes: Sequence[Change]) -> None:
        """Removes these changes from `cursor.unhandled`, with one write of the file; as `mark_handled`."""
        handled = {id(change) for change in changes}
        with self._lock:
            left = tuple(other for other in self.cursor.unhandled if id(other) not in handled)
            self._replace(replace(self.cursor, unhandled=left))

    def mark_handled_up_to(self, change: Change) -> None:
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
        except Rejected as error:  # a full disk must not hide an eviction
            LOG.warning("%s; handled changes may be delivered again", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MarkHandled:
    """The `when_done` of a delivered change: marks the change as handled in its store."""

    store: _CursorStore
    change: Change  # the object in `store.cursor.unhandled`

    def __call__(self) -> None:
        self.store.mark_handled(self.change)


def mark_all_handled(changes: Iterable[Change]) -> None:
    """Call `done()` on these changes, but write the cursor file only once for all changes of a watch.

    A file with thousands of events takes a while to write, and a document can have as many new events.
    """
    by_store: dict[_CursorStore, list[Change]] = {}
    for change in changes:
        if isinstance(change.when_done, _MarkHandled):
            by_store.setdefault(change.when_done.store, []).append(change.when_done.change)
        else:
            change.done()
    for store, handled in by_store.items():
        store.mark_all_handled(handled)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How a watch delivers changes; the defaults are what `Client.watch` does.

    `explicit`: a change is handled only by its `done()`, not when the next one is requested. `in_order`: `done()` also
    handles all changes before it, so that a thousand changes need one write. `max_poll_s` returns for how many seconds
    the next poll may be held (at most LONG_POLL_S, 10); the watch then yields None after each poll, so that the caller
    gets control. `confirm_time`: the first Date of the service counts only once several answers agree about it.
    `repeats_moved`: an event whose NotBefore changes before it starts is delivered as Scheduled again.
    """

    explicit: bool = False  # a change is handled only by its `done()`
    in_order: bool = False  # `done()` also handles all earlier changes
    confirm_time: bool = False  # the first Date counts once others agree
    repeats_moved: bool = False  # another NotBefore is a Scheduled again
    max_poll_s: Callable[[], float] | None = None  # called before and after each poll

    def _long_poll_s(self) -> float:
        return LONG_POLL_S if self.max_poll_s is None else min(LONG_POLL_S, max(0.0, self.max_poll_s()))


def documents_flow(session: ClientSession) -> Flow[None]:
    """Flow: yield the current document (`Received`), then each one that differs from the last, for ever."""
    state = PollState()
    while True:
        step = yield from _poll_once(session, state, LONG_POLL_S)
        state = step.state
        if step.new_document is not None:
            yield YieldItem(item=step.new_document)
        yield Sleep(seconds=step.pause_s)


def changes_flow(session: ClientSession, path: Path | None, options: WatchOptions) -> Flow[None]:
    """Flow: yield each change at least once, for ever; `path` is the cursor file, None keeps no file.

    Changes are written to the file before they are yielded. It first yields the unhandled changes of the file, once a
    poll has succeeded. A damaged file is replaced, with a warning.
    """
    boot_id = yield CallFunction(function=session.boot_id)
    store = _CursorStore(path, (yield from _load_or_create_cursor(path)))
    yield CallFunction(function=store.save_initial)
    unhandled, state, older_since = store.cursor.unhandled, PollState(), math.inf
    while True:
        hold_s = options._long_poll_s()
        step = yield from _poll_once(session, state, hold_s, confirm_time=options.confirm_time)
        state = step.state
        if state.document is not None and not state.failures:
            older_since = (
                min(older_since, session.clock())
                if is_older_document(store.cursor.known, _observed_document(state))
                else math.inf
            )
            older_for_s = max(0.0, session.clock() - older_since)
            observed = replace(
                _observed_document(state),
                date=session.date,
                boot_id=boot_id,
                older_for_s=older_for_s,
                repeats_moved=options.repeats_moved,
            )
            changes = yield from _record_changes(session, store, observed)
            yield from _yield_changes(session, store, (*unhandled, *changes), options)
            unhandled = ()
        if options.max_poll_s is not None:
            yield YieldItem(item=None)
        yield Sleep(seconds=step.pause_s if options.max_poll_s is None else min(step.pause_s, options._long_poll_s()))


def _poll_once(
    session: ClientSession, state: PollState, hold_s: float, *, confirm_time: bool = False
) -> Flow[PollStep]:
    """Polls once and returns the next step. It logs outages (Unavailable) and does not raise them."""
    try:
        answer = yield from session.poll(state, hold_s=int(hold_s), confirm_time=confirm_time)
    except Unavailable as error:
        step = step_after_failure(state, error)
        session.last_error = str(error)
        if step.state.failures == _FAILURES_BEFORE_WARNING:
            yield warning_effect(f"{error}; retrying")
        return step
    step = step_after_answer(state, answer)
    session.last_error = partial_document_warning(step.state.document)
    if session.last_error and step.new_document is not None:
        yield warning_effect(session.last_error)
    return step


def _load_or_create_cursor(path: Path | None) -> Flow[WatchCursor]:
    if path is None:
        return WatchCursor()
    try:
        cursor: WatchCursor = yield CallFunction(function=partial(load_cursor, path))
    except BadCursor as error:
        yield warning_effect(f"the cursor {str(path)!r} is not used, because {error}: changes may be delivered again")
        return WatchCursor()
    return cursor


def _observed_document(state: PollState) -> ObservedDocument:
    received = state.document or Received(incarnation=-1)
    return ObservedDocument(
        incarnation=received.incarnation,
        events=received.events,
        unusable=received.unusable,
        epoch=epoch_from_etag(state.etag),
    )


def _record_changes(
    session: ClientSession, store: _CursorStore, observed: ObservedDocument
) -> Flow[tuple[Change, ...]]:
    """Detects the changes of a document, and records them as unhandled before they are delivered."""
    known = store.cursor.known
    name = (yield from _vm_name_or_none(session)) if is_vm_name_needed(known, observed) else None
    after, changes = detect_changes(
        known, replace(observed, vm_name=name, shows_all_kinds=session.version >= OLDEST_COMPLETE_VERSION)
    )
    if changes or after != known or observed.boot_id != store.cursor.boot_id:
        yield CallFunction(function=partial(store.add_changes, after, changes, observed.boot_id))
    return changes


def _vm_name_or_none(session: ClientSession) -> Flow[str | None]:
    """This VM's name; None if the endpoint does not give it."""
    try:
        return (yield from session.name())
    except ForewarnError:
        return None


def _yield_changes(
    session: ClientSession, store: _CursorStore, changes: tuple[Change, ...], options: WatchOptions
) -> Flow[None]:
    for change in changes:
        done: Callable[[], None] = (
            partial(store.mark_handled_up_to, change) if options.in_order else _MarkHandled(store=store, change=change)
        )
        yield YieldItem(item=_with_current_time_left(change, session, done))
        if not options.explicit:
            yield CallFunction(function=done)


def _with_current_time_left(change: Change, session: ClientSession, done: Callable[[], None]) -> Change:
    """The change with the time left now, and its `done()` callback."""
    if isinstance(change, Scheduled):
        return replace(change, left_s=time_left_s(change.event, session.date), when_done=done)
    return replace(change, when_done=done)
