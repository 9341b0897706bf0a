"""Records when VMs poll and which events were delivered to them, in memory, for batched writing.

The process that owns the store takes batches and writes them; workers send increments to that process, which merges
them. Batches are bounded, so that a large fleet does not block the event loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from msgspec.structs import replace

from forewarn.core.event import EventState
from forewarn.core.history import EventDelivery
from forewarn.explain.polling import PollingPace
from forewarn.metadata.interface import GuestView
from forewarn.protocol import document as wire
from forewarn.protocol.versions import version_lists_kind
from forewarn.store.interface import LastPoll

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0  # after which a VM that goes on asking is told of again, unless somebody looks
BATCH_SIZE = 500  # VMs that are told of at once: more would make others wait
BATCHES_PER_SECOND = (
    10  # in a second: of 100,000 VMs each is told of every 20 seconds, well before it would be called silent
)
_NEVER = -math.inf
_MAX_WAITING_DELIVERIES = 100_000
_MAX_OBSERVED_VMS = 200_000  # as many as polls are remembered for
_PACE_WINDOW_S = 60.0  # of real time: how often a VM asks is told of the last one or two of these
_STATUS_VALUES = {
    wire.NoticeStatus.SCHEDULED: EventState.SCHEDULED.value,
    wire.NoticeStatus.STARTED: EventState.STARTED.value,
}

ObservationBatch = tuple[list[LastPoll], list[EventDelivery]]


@dataclass(slots=True)
class _VmActivity:
    """How often one VM asked, and what it has been given of the events that are listed now."""

    scope_id: str = ""
    count: int = 0
    polled_at: float | None = None  # in real time; None: not since we are here
    wait_s: int = 0  # that it was content to wait then
    window: tuple[float, int] | None = None  # when that began, and the count then
    previous_window: tuple[float, int] | None = None  # the one before
    latest_poll_at: float = 0.0  # when, as far as others told
    taken_at: float = _NEVER  # in real time: when what it asked was last handed out
    last_delivered: tuple[str, int, int, str] | None = (
        None  # scope, epoch, incarnation, version: the last 200 looked at
    )
    delivered_events: set[tuple[str, wire.NoticeStatus]] = field(default_factory=set)


class GuestObservations:
    def __init__(
        self,
        *,
        most_sightings: int = _MAX_WAITING_DELIVERIES,
        most_vms: int = _MAX_OBSERVED_VMS,
        real: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_deliveries, self._max_vms, self._real_time = most_sightings, most_vms, real
        self._started_at = real()
        self._flush_time = 0.0  # at which much is told together: it is one and the same
        self._polls: dict[str, LastPoll] = {}  # of VMs that were told of before, the longest waiting first
        self._new_vm_polls: dict[str, LastPoll] = {}  # of those that never were
        self._deliveries: list[EventDelivery] = []
        self._activity: dict[str, _VmActivity] = {}
        self._flush_hits: Callable[[], None] = lambda: None
        self._flush_hits_of: Callable[[str], None] = lambda vm: None
        self._delivery_subscribers: list[Callable[[Sequence[EventDelivery]], None]] = []
        self._start_subscribers: list[Callable[[Sequence[str]], None]] = []
        self._started_polling: dict[str, None] = {}  # VMs that began to ask since others were last told
        self.lost_deliveries = 0  # sightings that found no room while the writer was away

    def restore_counts(self, polls: Iterable[LastPoll]) -> None:
        """Go on counting where what is written stopped: a restart takes no request back."""
        for poll in polls:
            seen = self._activity_of(poll.vm)
            seen.count, seen.scope_id = poll.count, poll.scope_id

    def set_flush_hooks(self, settle: Callable[[], None], settle_for: Callable[[str], None]) -> None:
        """Call the first before a batch is handed out: it tells what was asked and not told yet, of many VMs a

        part. The second does that for one VM.
        """
        self._flush_hits, self._flush_hits_of = settle, settle_for

    def subscribe_deliveries(self, hear: Callable[[Sequence[EventDelivery]], None]) -> Callable[[], None]:
        """Tell of sightings once they are written down; what is returned stops that."""
        self._delivery_subscribers.append(hear)
        return lambda: self._delivery_subscribers.remove(hear)

    def subscribe_polling_starts(self, hear: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Tell of VMs that begin to ask, for the first time or after a silence; what is returned stops that."""
        self._start_subscribers.append(hear)
        return lambda: self._start_subscribers.remove(hear)

    def notify_written(self, sightings: Sequence[EventDelivery]) -> None:
        """A batch has been."""
        for hear in tuple(self._delivery_subscribers) if sightings else ():
            hear(sightings)
        begun, self._started_polling = tuple(self._started_polling), {}
        for hear_begin in tuple(self._start_subscribers) if begun else ():
            hear_begin(begun)

    def record_poll(
        self, view: GuestView, version: str, at: float, *, count: int = 1, agent: str = "", wait_s: int = 0
    ) -> None:
        """So many times, the last of them at this moment, in this version and by this program."""
        vm, scope_id = view.vm, view.scope_id
        seen = self._activity.get(vm) or self._activity_of(vm)
        self._count_polls(vm, seen, scope_id, count, wait_s)
        self._queue_poll(
            seen,
            LastPoll(vm=vm, scope_id=scope_id, at=at, version=version, count=seen.count, agent=agent, wait_s=wait_s),
        )

    def record_delivery(self, view: GuestView, version: str, at: float) -> None:
        """The VM was given the whole document, as this version shows it."""
        seen = self._activity_of(view.vm)
        mark = (view.scope_id, view.epoch, view.document.incarnation, version)
        if seen.last_delivered == mark:
            return
        seen.last_delivered = mark
        seen.delivered_events &= {(notice.id, notice.status) for notice in view.document.notices}
        for notice in view.document.notices:
            event = (notice.id, notice.status)
            if event not in seen.delivered_events and version_lists_kind(version, notice.kind):
                seen.delivered_events.add(event)
                self._queue_deliveries([_make_delivery(notice, view, version, at)])

    def take_increments(self, rest_s: float = 0.0) -> ObservationBatch:
        """As `take`, but counts are those since the last batch: for whoever gathers them from several."""
        polls, sightings = self.take_batch(rest_s)
        for poll in polls:
            self._activity_of(poll.vm).count = 0
        return polls, sightings

    def merge_increments(self, polls: Sequence[LastPoll], sightings: Sequence[EventDelivery]) -> None:
        """What another has seen, as its `take_new` gave it."""
        for poll in polls:
            seen = self._activity_of(poll.vm)
            self._count_polls(poll.vm, seen, poll.scope_id, poll.count, poll.wait_s)
            seen.latest_poll_at = max(seen.latest_poll_at, poll.at)
            self._queue_poll(seen, replace(poll, at=seen.latest_poll_at, count=seen.count))
        self._queue_deliveries(sightings)

    def take_batch(self, rest_s: float = 0.0) -> ObservationBatch:
        """What is new since the last batch; of many VMs a part, newcomers and then those that wait longest.

        Nothing of a VM that was in a batch less than `rest_s` ago: it asks as it did. `put_back` what could not be
        written.
        """
        now = self._flush_time = self._real_time()
        self._flush_hits()
        self._flush_time = 0.0
        newcomers = tuple(islice(self._new_vm_polls, BATCH_SIZE))
        rested = takewhile(lambda vm: self._activity_of(vm).taken_at <= now - rest_s, self._polls)
        others = tuple(islice(rested, BATCH_SIZE - len(newcomers)))
        polls = [*map(self._new_vm_polls.pop, newcomers), *map(self._polls.pop, others)]
        for poll in polls:
            self._activity_of(poll.vm).taken_at = now
        sightings, self._deliveries = self._deliveries, []
        return polls, sightings

    def return_batch(self, polls: Sequence[LastPoll], sightings: Sequence[EventDelivery]) -> None:
        older = {poll.vm: poll for poll in polls if poll.vm not in self._polls}
        self._new_vm_polls = older | self._new_vm_polls  # and so among the next
        newer, self._deliveries = self._deliveries, []
        self._queue_deliveries(sightings)
        self._queue_deliveries(newer)

    def pace(self, vm: str) -> PollingPace | None:
        """How this VM asks; None: it never has."""
        self._flush_hits_of(vm)
        seen = self._activity.get(vm)
        return None if seen is None or not seen.count else self._pace(seen, self._real_time())

    def paces(self) -> Iterator[tuple[str, PollingPace]]:
        """How every VM asks that ever has, each with its scope; changes meanwhile may be missed."""
        now = self._real_time()
        for vm, seen in tuple(self._activity.items()):
            self._flush_hits_of(vm)
            if seen.count:
                yield seen.scope_id, self._pace(seen, now)

    def _pace(self, seen: _VmActivity, now: float) -> PollingPace:
        if seen.polled_at is None:
            return PollingPace(max(0.0, now - self._started_at))
        began = seen.previous_window or seen.window
        gap_s = None
        if began is not None and seen.count > began[1] and seen.polled_at > began[0]:
            gap_s = (seen.polled_at - began[0]) / (seen.count - began[1])
        return PollingPace(max(0.0, now - seen.polled_at - seen.wait_s), gap_s)

    def _queue_poll(self, seen: _VmActivity, poll: LastPoll) -> None:
        """In place of what waits of the VM, if anything does."""
        is_first = seen.taken_at == _NEVER or poll.vm in self._new_vm_polls
        (self._new_vm_polls if is_first else self._polls)[poll.vm] = poll

    def _count_polls(self, vm: str, seen: _VmActivity, scope_id: str, count: int, wait_s: int) -> None:
        now = self._flush_time or self._real_time()
        window = seen.window
        is_over = window is None or now - window[0] > _PACE_WINDOW_S
        # Nobody was silent within a window: most calls need not look.
        if is_over and self._start_subscribers and (not seen.count or self._pace(seen, now).is_silent):
            self._started_polling[vm] = None
        seen.count += count
        seen.scope_id, seen.polled_at, seen.wait_s = scope_id, now, wait_s
        if is_over:
            # What came after a long silence says nothing about the time before it.
            was_silent = window is None or now - window[0] > 3 * _PACE_WINDOW_S
            seen.previous_window, seen.window = None if was_silent else window, (now, seen.count)

    def _activity_of(self, vm: str) -> _VmActivity:
        seen = self._activity.get(vm)
        if seen is None:
            if len(self._activity) >= self._max_vms:
                # Forgetting the oldest repeats a sighting at most, and the store keeps the first.
                del self._activity[next(iter(self._activity))]
            seen = self._activity[vm] = _VmActivity()
        return seen

    def _queue_deliveries(self, sightings: Sequence[EventDelivery]) -> None:
        room = max(0, self._max_deliveries - len(self._deliveries))
        self._deliveries.extend(sightings[:room])
        lost = len(sightings) - room
        if lost > 0:
            if not self.lost_deliveries:
                _log.warning("%d sightings wait to be written; further ones are lost", self._max_deliveries)
            self.lost_deliveries += lost


def _make_delivery(notice: wire.EventNotice, view: GuestView, version: str, at: float) -> EventDelivery:
    return EventDelivery(
        event_id=notice.id,
        scope_id=view.scope_id,
        vm=view.vm,
        status=_STATUS_VALUES[notice.status],
        version=version,
        incarnation=view.document.incarnation,
        at=at,
    )
