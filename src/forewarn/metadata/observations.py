"""What was seen of the VMs: when each last asked and how often, and which event each was given when. Gathered in
memory, handed out in batches to whoever writes them down.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from msgspec.structs import replace

from forewarn.core.event import Status
from forewarn.core.history import Sighting
from forewarn.core.pace import Pace
from forewarn.metadata.seam import View
from forewarn.protocol import document as wire
from forewarn.protocol.versions import shows_kind
from forewarn.store.seam import Polled

_log = logging.getLogger(__name__)

REST_S = 10.0  # after which a VM that goes on asking is told of again, unless somebody looks
PORTION = 500  # VMs that are told of at once: more would make others wait
PORTIONS = 10  # in a second: of 100,000 VMs each is told of every 20 seconds, well before it would be called silent
_NEVER = -math.inf
_MOST_SIGHTINGS = 100_000
_MOST_VMS = 200_000  # as many as polls are remembered for
_WINDOW_S = 60.0  # of real time: how often a VM asks is told of the last one or two of these
_SPELLED = {wire.Status.SCHEDULED: Status.SCHEDULED.value, wire.Status.STARTED: Status.STARTED.value}

Batch = tuple[list[Polled], list[Sighting]]


@dataclass(slots=True)
class _Seen:
    """How often one VM asked, and what it has been given of the events that are listed now."""

    scope_id: str = ""
    count: int = 0
    asked_at: float | None = None  # in real time; None: not since we are here
    wait_s: int = 0  # that it was content to wait then
    window: tuple[float, int] | None = None  # when that began, and the count then
    earlier: tuple[float, int] | None = None  # the one before
    at: float = 0.0  # when, as far as others told
    told_at: float = _NEVER  # in real time: when what it asked was last handed out
    mark: tuple[str, int, int, str] | None = None  # scope, epoch, incarnation, version: the last 200 looked at
    events: set[tuple[str, wire.Status]] = field(default_factory=set)


class Observations:
    def __init__(
        self,
        *,
        most_sightings: int = _MOST_SIGHTINGS,
        most_vms: int = _MOST_VMS,
        real: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_sightings, self._most_vms, self._real = most_sightings, most_vms, real
        self._began_at = real()
        self._moment = 0.0  # at which much is told together: it is one and the same
        self._polls: dict[str, Polled] = {}  # of VMs that were told of before, the longest waiting first
        self._first: dict[str, Polled] = {}  # of those that never were
        self._sightings: list[Sighting] = []
        self._seen: dict[str, _Seen] = {}
        self._settle: Callable[[], None] = lambda: None
        self._settle_for: Callable[[str], None] = lambda vm: None
        self._hears: list[Callable[[Sequence[Sighting]], None]] = []
        self._hears_begin: list[Callable[[Sequence[str]], None]] = []
        self._begun: dict[str, None] = {}  # VMs that began to ask since others were last told
        self.lost = 0  # sightings that found no room while the writer was away

    def count_on(self, polls: Iterable[Polled]) -> None:
        """Go on counting where what is written stopped: a restart takes no request back."""
        for poll in polls:
            seen = self._seen_of(poll.vm)
            seen.count, seen.scope_id = poll.count, poll.scope_id

    def settle_with(self, settle: Callable[[], None], settle_for: Callable[[str], None]) -> None:
        """Call the first before a batch is handed out: it tells what was asked and not told yet, of many VMs a

        part. The second does that for one VM.
        """
        self._settle, self._settle_for = settle, settle_for

    def follow(self, hear: Callable[[Sequence[Sighting]], None]) -> Callable[[], None]:
        """Tell of sightings once they are written down; what is returned stops that."""
        self._hears.append(hear)
        return lambda: self._hears.remove(hear)

    def follow_asking(self, hear: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Tell of VMs that begin to ask, for the first time or after a silence; what is returned stops that."""
        self._hears_begin.append(hear)
        return lambda: self._hears_begin.remove(hear)

    def written(self, sightings: Sequence[Sighting]) -> None:
        """A batch has been."""
        for hear in tuple(self._hears) if sightings else ():
            hear(sightings)
        begun, self._begun = tuple(self._begun), {}
        for hear_begin in tuple(self._hears_begin) if begun else ():
            hear_begin(begun)

    def asked(self, view: View, version: str, at: float, *, count: int = 1, agent: str = "", wait_s: int = 0) -> None:
        """So many times, the last of them at this moment, in this version and by this program."""
        vm, scope_id = view.vm, view.scope_id
        seen = self._seen.get(vm) or self._seen_of(vm)
        self._count(vm, seen, scope_id, count, wait_s)
        self._put(
            seen,
            Polled(vm=vm, scope_id=scope_id, at=at, version=version, count=seen.count, agent=agent, wait_s=wait_s),
        )

    def given(self, view: View, version: str, at: float) -> None:
        """The VM was given the whole document, as this version shows it."""
        seen = self._seen_of(view.vm)
        mark = (view.scope_id, view.epoch, view.document.incarnation, version)
        if seen.mark == mark:
            return
        seen.mark = mark
        seen.events &= {(notice.id, notice.status) for notice in view.document.notices}
        for notice in view.document.notices:
            event = (notice.id, notice.status)
            if event not in seen.events and shows_kind(version, notice.kind):
                seen.events.add(event)
                self._keep([_sighting(notice, view, version, at)])

    def take_new(self, rest_s: float = 0.0) -> Batch:
        """As `take`, but counts are those since the last batch: for whoever gathers them from several."""
        polls, sightings = self.take(rest_s)
        for poll in polls:
            self._seen_of(poll.vm).count = 0
        return polls, sightings

    def gather(self, polls: Sequence[Polled], sightings: Sequence[Sighting]) -> None:
        """What another has seen, as its `take_new` gave it."""
        for poll in polls:
            seen = self._seen_of(poll.vm)
            self._count(poll.vm, seen, poll.scope_id, poll.count, poll.wait_s)
            seen.at = max(seen.at, poll.at)
            self._put(seen, replace(poll, at=seen.at, count=seen.count))
        self._keep(sightings)

    def take(self, rest_s: float = 0.0) -> Batch:
        """What is new since the last batch; of many VMs a part, newcomers and then those that wait longest.

        Nothing of a VM that was in a batch less than `rest_s` ago: it asks as it did. `put_back` what could not be
        written.
        """
        now = self._moment = self._real()
        self._settle()
        self._moment = 0.0
        newcomers = tuple(islice(self._first, PORTION))
        rested = takewhile(lambda vm: self._seen_of(vm).told_at <= now - rest_s, self._polls)
        others = tuple(islice(rested, PORTION - len(newcomers)))
        polls = [*map(self._first.pop, newcomers), *map(self._polls.pop, others)]
        for poll in polls:
            self._seen_of(poll.vm).told_at = now
        sightings, self._sightings = self._sightings, []
        return polls, sightings

    def put_back(self, polls: Sequence[Polled], sightings: Sequence[Sighting]) -> None:
        older = {poll.vm: poll for poll in polls if poll.vm not in self._polls}
        self._first = older | self._first  # and so among the next
        newer, self._sightings = self._sightings, []
        self._keep(sightings)
        self._keep(newer)

    def pace(self, vm: str) -> Pace | None:
        """How this VM asks; None: it never has."""
        self._settle_for(vm)
        seen = self._seen.get(vm)
        return None if seen is None or not seen.count else self._pace(seen, self._real())

    def paces(self) -> Iterator[tuple[str, Pace]]:
        """How every VM asks that ever has, each with its scope; changes meanwhile may be missed."""
        now = self._real()
        for vm, seen in tuple(self._seen.items()):
            self._settle_for(vm)
            if seen.count:
                yield seen.scope_id, self._pace(seen, now)

    def _pace(self, seen: _Seen, now: float) -> Pace:
        if seen.asked_at is None:
            return Pace(max(0.0, now - self._began_at))
        began = seen.earlier or seen.window
        gap_s = None
        if began is not None and seen.count > began[1] and seen.asked_at > began[0]:
            gap_s = (seen.asked_at - began[0]) / (seen.count - began[1])
        return Pace(max(0.0, now - seen.asked_at - seen.wait_s), gap_s)

    def _put(self, seen: _Seen, poll: Polled) -> None:
        """In place of what waits of the VM, if anything does."""
        is_first = seen.told_at == _NEVER or poll.vm in self._first
        (self._first if is_first else self._polls)[poll.vm] = poll

    def _count(self, vm: str, seen: _Seen, scope_id: str, count: int, wait_s: int) -> None:
        now = self._moment or self._real()
        window = seen.window
        is_over = window is None or now - window[0] > _WINDOW_S
        # Nobody was silent within a window: most calls need not look.
        if is_over and self._hears_begin and (not seen.count or self._pace(seen, now).is_silent):
            self._begun[vm] = None
        seen.count += count
        seen.scope_id, seen.asked_at, seen.wait_s = scope_id, now, wait_s
        if is_over:
            # What came after a long silence says nothing about the time before it.
            was_silent = window is None or now - window[0] > 3 * _WINDOW_S
            seen.earlier, seen.window = None if was_silent else window, (now, seen.count)

    def _seen_of(self, vm: str) -> _Seen:
        seen = self._seen.get(vm)
        if seen is None:
            if len(self._seen) >= self._most_vms:
                # Forgetting the oldest repeats a sighting at most, and the store keeps the first.
                del self._seen[next(iter(self._seen))]
            seen = self._seen[vm] = _Seen()
        return seen

    def _keep(self, sightings: Sequence[Sighting]) -> None:
        room = max(0, self._most_sightings - len(self._sightings))
        self._sightings.extend(sightings[:room])
        lost = len(sightings) - room
        if lost > 0:
            if not self.lost:
                _log.warning("%d sightings wait to be written; further ones are lost", self._most_sightings)
            self.lost += lost


def _sighting(notice: wire.Notice, view: View, version: str, at: float) -> Sighting:
    return Sighting(
        event_id=notice.id,
        scope_id=view.scope_id,
        vm=view.vm,
        status=_SPELLED[notice.status],
        version=version,
        incarnation=view.document.incarnation,
        at=at,
    )
