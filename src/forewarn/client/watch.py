"""The talks that never end: documents, and the changes that they tell of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

from forewarn.client.change import Change, Scheduled
from forewarn.client.cursor import BadCursor, Cursor, load, save
from forewarn.client.exchange import HOLD_S, Step, Watch, after_answer, after_failure
from forewarn.client.following import follow, left_s, might_have_rebooted
from forewarn.client.move import Do, Pause, Talk, Tell
from forewarn.client.session import LOG, Session, warning
from forewarn.client.sight import Known, Sight, epoch_of, is_behind
from forewarn.client.version import OLDEST
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.protocol.codec import Received

_TOLD_FAILURES = 3  # in a row, before people are told that the service is away


class Ledger:
    """The cursor, and its file if there is one. Changes may be done with in any order, and from any thread."""

    def __init__(self, path: Path | None, cursor: Cursor) -> None:
        self.cursor = cursor
        self._path = path
        self._lock = Lock()

    def begin(self) -> None:
        """A place that cannot be written is refused now, not when something happens."""
        if self._path is not None:
            save(self._path, self.cursor)

    def note(self, known: Known, news: tuple[Change, ...], boot: str) -> None:
        with self._lock:
            self._put(Cursor(known=known, unhandled=(*self.cursor.unhandled, *news), boot=boot))

    def done(self, change: Change) -> None:
        """Handled; said again, it changes nothing."""
        with self._lock:
            left = tuple(other for other in self.cursor.unhandled if other is not change)
            self._put(replace(self.cursor, unhandled=left))

    def done_up_to(self, change: Change) -> None:
        """Handled, and all that were told before it."""
        with self._lock:
            left = self.cursor.unhandled
            place = next((place for place, other in enumerate(left) if other is change), -1)
            self._put(replace(self.cursor, unhandled=left[place + 1 :]))

    def _put(self, cursor: Cursor) -> None:
        is_new, self.cursor = cursor != self.cursor, cursor
        if self._path is None or not is_new:
            return
        try:
            save(self._path, cursor)
        except Rejected as error:  # a full disk must not keep anybody from hearing of an eviction
            LOG.warning("%s; what is handled may be told again", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How changes are told: `explicit` ones count as handled only by done(), and `in_order` with all before them, so
    that a thousand need one write. With `within_s` somebody has other things to do: it says how long the next poll may
    take, and None is told after each.
    """

    explicit: bool = False
    in_order: bool = False
    within_s: Callable[[], float] | None = None

    def hold_s(self) -> float:
        return HOLD_S if self.within_s is None else min(HOLD_S, max(0.0, self.within_s()))


def documents(session: Session) -> Talk[None]:
    watch = Watch()
    while True:
        step = yield from _step(session, watch, HOLD_S)
        watch = step.watch
        if step.news is not None:
            yield Tell(news=step.news)
        yield Pause(s=step.pause_s)


def changes(session: Session, path: Path | None, manner: Manner) -> Talk[None]:
    boot = yield Do(call=session.boot_id)
    ledger = Ledger(path, (yield from _loaded(path)))
    yield Do(call=ledger.begin)
    untold, watch, behind_at = ledger.cursor.unhandled, Watch(), math.inf
    while True:
        hold_s = manner.hold_s()
        step = yield from _step(session, watch, hold_s)
        watch = step.watch
        if watch.known is not None and not watch.failures:
            behind_at = min(behind_at, session.clock()) if is_behind(ledger.cursor.known, _sight(watch)) else math.inf
            behind_s = max(0.0, session.clock() - behind_at)
            sight = replace(_sight(watch), date=session.date, boot=boot, behind_s=behind_s)
            news = yield from _followed(session, ledger, sight)
            yield from _told(session, ledger, (*untold, *news), manner)
            untold = ()
        if manner.within_s is not None:
            yield Tell(news=None)
        yield Pause(s=step.pause_s if manner.within_s is None else min(step.pause_s, manner.hold_s()))


def _step(session: Session, watch: Watch, hold_s: float) -> Talk[Step]:
    """One poll and what follows from it. Outages of any length are waited out."""
    try:
        step = after_answer(watch, (yield from session.poll(watch, hold_s=int(hold_s))))
    except Unavailable as error:
        step = after_failure(watch, error)
        session.trouble = str(error)
        if step.watch.failures == _TOLD_FAILURES:
            yield warning(f"{error}; going on trying")
    return step


def _loaded(path: Path | None) -> Talk[Cursor]:
    if path is None:
        return Cursor()
    try:
        cursor: Cursor = yield Do(call=partial(load, path))
    except BadCursor as error:
        yield warning(f"the cursor {str(path)!r} is not used, because {error}: events may be told again")
        return Cursor()
    return cursor


def _sight(watch: Watch) -> Sight:
    known = watch.known or Received(incarnation=-1)
    return Sight(incarnation=known.incarnation, events=known.events, epoch=epoch_of(watch.tag))


def _followed(session: Session, ledger: Ledger, sight: Sight) -> Talk[tuple[Change, ...]]:
    """The news of a document, noted as unhandled before anybody is told."""
    known = ledger.cursor.known
    name = (yield from _name(session)) if might_have_rebooted(known, sight) else None
    after, news = follow(known, replace(sight, name=name, shows_all=session.version >= OLDEST))
    if news or after != known or sight.boot != ledger.cursor.boot:
        yield Do(call=partial(ledger.note, after, news, sight.boot))
    return news


def _name(session: Session) -> Talk[str | None]:
    """Not every endpoint tells."""
    try:
        return (yield from session.name())
    except ForewarnError:
        return None


def _told(session: Session, ledger: Ledger, news: tuple[Change, ...], manner: Manner) -> Talk[None]:
    for change in news:
        done = partial(ledger.done_up_to if manner.in_order else ledger.done, change)
        yield Tell(news=_fresh(change, session, done))
        if not manner.explicit:
            yield Do(call=done)


def _fresh(change: Change, session: Session, done: Callable[[], None]) -> Change:
    """With the time that is left now: it may have waited in a file, or for its turn."""
    if isinstance(change, Scheduled):
        return replace(change, left_s=left_s(change.event, session.date), when_done=done)
    return replace(change, when_done=done)
