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
from heapq import heappop, heappush
from itertools import islice

from msgspec.structs import replace

from forewarn.base.clock import real_now
from forewarn.base.times import LabTime, RealTime
from forewarn.core.event import EventState
from forewarn.core.explain.polling import PollingPace
from forewarn.core.history import EventDelivery, LastPoll
from forewarn.metadata.interface import GuestView
from forewarn.protocol import document as wire
from forewarn.protocol.versions import version_lists_kind

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 10.0  # between two reports of a VM that keeps polling, unless a user is watching
BATCH_SIZE = 500  # VMs per batch; more would delay requests
BATCHES_PER_SECOND = 10  # so 100,000 VMs are each reported every 20 s, well before they would count as silent
_NEVER = -math.inf
_MAX_WAITING_DELIVERIES = 100_000
_MAX_OBSERVED_VMS = 200_000  # the same as the VMs in the response cache
_PACE_WINDOW_S = 60.0  # real time; the polling interval is measured over the last one or two windows
_STATUS_VALUES = {
    wire.NoticeStatus.SCHEDULED: EventState.SCHEDULED.value,
    wire.NoticeStatus.STARTED: EventState.STARTED.value,
}

ObservationBatch = tuple[list[LastPoll], list[EventDelivery]]  # the last poll of each VM, and deliveries


@dataclass(slots=True)
class _VmActivity:
    vm_id: str = ""  # "": not known yet
    scope_id: str = ""
    count: int = 0  # polls; of a worker only those since its last report
    polled_at: float | None = None  # real time; None: not since this process started
    silent_before_s: float = 0.0  # real time from its last poll to the start of this process, if it polled before
    wait_s: int = 0  # longest hold of the last poll
    window: tuple[float, int] | None = None  # real time at its start, and the count then
    previous_window: tuple[float, int] | None = None
    latest_poll_at: LabTime = 0.0  # of the newest merged poll
    taken_at: float = _NEVER  # real time when the VM was last in a batch
    last_delivered: tuple[str, int, int, str] | None = None  # scope, epoch, incarnation, version
    delivered_events: set[tuple[str, wire.NoticeStatus]] = field(default_factory=set)


class GuestObservations:
    """Collects polls and event deliveries of VMs in memory until a writer takes them in batches.

    A delivery is the first time that a VM was sent an event in a status. At most `max_deliveries` wait; further ones
    are dropped and counted in `lost_deliveries`. Beyond `max_vms` VMs, the one that was first seen longest ago is
    forgotten. What was not taken is lost when the process ends.
    """

    def __init__(
        self,
        *,
        max_deliveries: int = _MAX_WAITING_DELIVERIES,
        max_vms: int = _MAX_OBSERVED_VMS,
        real_time: Callable[[], float] = time.monotonic,
        wall_time: Callable[[], RealTime] = real_now,
    ) -> None:
        self._max_deliveries, self._max_vms, self._real_time = max_deliveries, max_vms, real_time
        self._wall_time = wall_time  # POSIX seconds, which mean the same after a restart
        self._started_at = real_time()
        self._flush_time = 0.0  # real time of a flush in progress, which is the same for all its polls
        self._polls: dict[str, LastPoll] = {}  # of VMs that were in a batch before
        self._taken_times: list[tuple[float, str]] = []  # heap of (`taken_at`, VM), at least one for each of `_polls`
        self._new_vm_polls: dict[str, LastPoll] = {}  # of VMs that were not
        self._deliveries: list[EventDelivery] = []
        self._activity: dict[str, _VmActivity] = {}
        self._flush_hits: Callable[[], None] = lambda: None
        self._flush_hits_of: Callable[[str], None] = lambda vm: None
        self._delivery_subscribers: list[Callable[[Sequence[EventDelivery]], None]] = []
        self._start_subscribers: list[Callable[[Sequence[str]], None]] = []
        self._started_polling: dict[str, None] = {}  # VMs, until subscribers are notified
        self.lost_deliveries = 0  # dropped because too many waited to be written

    def restore_counts(self, polls: Iterable[LastPoll]) -> None:
        """Continue the poll counts from these stored polls; call it after a restart, before the first poll."""
        for poll in polls:
            activity = self._activity_of(poll.vm)
            activity.count, activity.scope_id, activity.vm_id = poll.count, poll.scope_id, poll.vm_id
            if poll.real_at:
                # The silence goes on over a restart of this process.
                activity.silent_before_s = max(0.0, self._wall_time() - poll.real_at - poll.wait_s)

    def replace_vm(self, vm: str, vm_id: str) -> None:
        """Forget the polls of a removed VM, because another one, with this id, was added under its key."""
        self._flush_hits_of(vm)
        self._start_activity(vm, vm_id)

    def set_flush_hooks(self, flush: Callable[[], None], flush_vm: Callable[[str], None]) -> None:
        """Set the functions that record here the hits which the response cache has only counted so far.

        `flush()` is called before a batch is taken, and may record a part of the VMs; `flush_vm(vm)` before the data of
        one VM are read or replaced.
        """
        self._flush_hits, self._flush_hits_of = flush, flush_vm

    def subscribe_deliveries(self, callback: Callable[[Sequence[EventDelivery]], None]) -> Callable[[], None]:
        """Call back with each batch of deliveries once it is stored (`notify_written`), unless it is empty."""
        self._delivery_subscribers.append(callback)
        return lambda: self._delivery_subscribers.remove(callback)

    def subscribe_polling_starts(self, callback: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call back with the keys of VMs that poll for the first time or after a silence."""
        self._start_subscribers.append(callback)
        return lambda: self._start_subscribers.remove(callback)

    def notify_written(self, deliveries: Sequence[EventDelivery]) -> None:
        """Call the subscribers of deliveries with these, which are stored now, and those of polling starts."""
        for on_deliveries in tuple(self._delivery_subscribers) if deliveries else ():
            on_deliveries(deliveries)
        started, self._started_polling = tuple(self._started_polling), {}
        for on_started in tuple(self._start_subscribers) if started else ():
            on_started(started)

    def record_poll(
        self, view: GuestView, version: str, at: float, *, count: int = 1, user_agent: str = "", wait_s: int = 0
    ) -> None:
        """Record `count` polls or approvals of the view's VM, the last at `at` in this api-version."""
        vm, vm_id, scope_id = view.vm, view.facts.vm_id, view.scope_id
        activity = self._activity.get(vm) or self._activity_of(vm)
        # Another VM under the same name: its counts begin at zero.
        if activity.vm_id != vm_id:
            activity = self._start_activity(vm, vm_id) if activity.vm_id else activity
            activity.vm_id = vm_id
        self._count_polls(vm, activity, scope_id, count, wait_s)
        self._queue_poll(
            activity,
            LastPoll(
                vm=vm,
                scope_id=scope_id,
                at=at,
                version=version,
                count=activity.count,
                agent=user_agent,
                wait_s=wait_s,
                vm_id=vm_id,
                real_at=self._wall_time(),
            ),
        )

    def record_delivery(self, view: GuestView, version: str, at: float) -> None:
        """Record that the view's VM was sent its document in this api-version, at `at`."""
        activity = self._activity_of(view.vm)
        delivered = (view.scope_id, view.epoch, view.document.incarnation, version)
        # The usual case: nothing in the document is new to this VM.
        if activity.last_delivered == delivered:
            return
        activity.last_delivered = delivered
        # What is not listed any more is forgotten, so that the set stays small.
        activity.delivered_events &= {(notice.id, notice.status) for notice in view.document.notices}
        for notice in view.document.notices:
            event = (notice.id, notice.status)
            # An api-version that does not know the kind has not delivered the event.
            if event not in activity.delivered_events and version_lists_kind(version, notice.kind):
                activity.delivered_events.add(event)
                self._queue_deliveries([_make_delivery(notice, view, version, at)])

    def take_increments(self, min_interval_s: float = 0.0) -> ObservationBatch:
        """Remove and return, as a pair, polls of VMs since their last batch, and all deliveries that wait."""
        # Each poll's count is that increment, not the total. For workers; the owner process passes the result to
        # `merge_increments`.
        polls, deliveries = self.take_batch(min_interval_s)
        for poll in polls:
            self._activity_of(poll.vm).count = 0
        return polls, deliveries

    def merge_increments(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Queue the batch of another process (see `take_increments`); its poll counts are added to those here."""
        for poll in polls:
            if self._is_of_replaced_vm(poll):
                continue
            activity = self._activity_of(poll.vm)
            activity.vm_id = poll.vm_id
            self._count_polls(poll.vm, activity, poll.scope_id, poll.count, poll.wait_s)
            # Workers report in any order.
            activity.latest_poll_at = max(activity.latest_poll_at, poll.at)
            # The worker may be on another machine, whose clock differs.
            at, real_at = activity.latest_poll_at, self._wall_time()
            self._queue_poll(activity, replace(poll, at=at, count=activity.count, real_at=real_at))
        self._queue_deliveries(deliveries)

    def take_batch(self, min_interval_s: float = 0.0) -> ObservationBatch:
        """Remove and return, as a pair, the last polls of VMs that wait, and all deliveries that wait.

        At most BATCH_SIZE VMs are taken, those first that were in a batch the longest time ago. If the batch cannot be
        stored, give it back with `return_batch`; else call `notify_written`.
        """
        now = self._flush_time = self._real_time()
        self._flush_hits()
        self._flush_time = 0.0
        # New VMs first: they were never in a batch.
        new_vms = tuple(islice(self._new_vm_polls, BATCH_SIZE))
        polls = list(map(self._new_vm_polls.pop, new_vms))
        while self._taken_times and self._taken_times[0][0] <= now - min_interval_s and len(polls) < BATCH_SIZE:
            _, vm = heappop(self._taken_times)
            if (poll := self._polls.pop(vm, None)) is not None:  # None: the VM was replaced since
                polls.append(poll)
        for poll in polls:
            self._activity_of(poll.vm).taken_at = now
        deliveries, self._deliveries = self._deliveries, []
        return polls, deliveries

    def return_batch(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Put back a batch of `take_batch` that could not be stored; the next calls take it first."""
        # Newer polls of the same VMs have come meanwhile: they count.
        older = {poll.vm: poll for poll in polls if poll.vm not in self._polls and not self._is_of_replaced_vm(poll)}
        self._new_vm_polls = older | self._new_vm_polls
        newer, self._deliveries = self._deliveries, []
        self._queue_deliveries(deliveries)
        self._queue_deliveries(newer)

    def pace(self, vm: str) -> PollingPace | None:
        """Return the gap between this VM's polls and how long it has been silent, in seconds of real time."""
        # None if it has never polled, or was forgotten. The gap is None while it is not known. The silence of a VM that
        # has not polled since this process started began with its last stored poll.
        self._flush_hits_of(vm)
        activity = self._activity.get(vm)
        return None if activity is None or not activity.count else self._pace(activity, self._real_time())

    def paces(self) -> Iterator[tuple[str, PollingPace]]:
        """Yield (scope id, `pace`) for each known VM that has ever polled, also a removed one, in no order."""
        now = self._real_time()
        for vm, activity in tuple(self._activity.items()):
            self._flush_hits_of(vm)
            if activity.count:
                yield activity.scope_id, self._pace(activity, now)

    def _pace(self, activity: _VmActivity, now: float) -> PollingPace:
        if activity.polled_at is None:
            since_start_s = max(0.0, now - self._started_at)
            return PollingPace(activity.silent_before_s + since_start_s, listened_s=since_start_s)
        window = activity.previous_window or activity.window
        gap_s = None
        if window is not None and activity.count > window[1] and activity.polled_at > window[0]:
            gap_s = (activity.polled_at - window[0]) / (activity.count - window[1])
        return PollingPace(max(0.0, now - activity.polled_at - activity.wait_s), gap_s)

    def _queue_poll(self, activity: _VmActivity, poll: LastPoll) -> None:
        if activity.taken_at == _NEVER or poll.vm in self._new_vm_polls:
            self._new_vm_polls[poll.vm] = poll
            self._polls.pop(poll.vm, None)  # an older one, of a VM that was forgotten because of `max_vms`
            return
        if poll.vm not in self._polls:
            heappush(self._taken_times, (activity.taken_at, poll.vm))
        self._polls[poll.vm] = poll

    def _count_polls(self, vm: str, activity: _VmActivity, scope_id: str, count: int, wait_s: int) -> None:
        now = self._flush_time or self._real_time()
        window = activity.window
        is_window_over = window is None or now - window[0] > _PACE_WINDOW_S
        # A VM is never silent within a window, so most calls skip the rest of this test.
        if is_window_over and self._start_subscribers and (not activity.count or self._pace(activity, now).is_silent):
            self._started_polling[vm] = None
        activity.count += count
        activity.scope_id, activity.polled_at, activity.wait_s = scope_id, now, wait_s
        if is_window_over:
            # After a long silence the previous window would distort the interval.
            was_silent = window is None or now - window[0] > 3 * _PACE_WINDOW_S
            activity.previous_window, activity.window = None if was_silent else window, (now, activity.count)

    def _is_of_replaced_vm(self, poll: LastPoll) -> bool:
        activity = self._activity.get(poll.vm)
        return activity is not None and activity.vm_id not in ("", poll.vm_id)

    def _start_activity(self, vm: str, vm_id: str) -> _VmActivity:
        """Replace the activity of an earlier VM with this key."""
        for polls in (self._polls, self._new_vm_polls):
            polls.pop(vm, None)
        self._activity.pop(vm, None)
        activity = self._activity_of(vm)
        activity.vm_id = vm_id
        return activity

    def _activity_of(self, vm: str) -> _VmActivity:
        activity = self._activity.get(vm)
        if activity is None:
            if len(self._activity) >= self._max_vms:
                # At worst a delivery is recorded again; the store keeps the first.
                del self._activity[next(iter(self._activity))]
            activity = self._activity[vm] = _VmActivity()
        return activity

    def _queue_deliveries(self, deliveries: Sequence[EventDelivery]) -> None:
        capacity = max(0, self._max_deliveries - len(self._deliveries))
        self._deliveries.extend(deliveries[:capacity])
        lost = len(deliveries) - capacity
        if lost > 0:
            if not self.lost_deliveries:
                _log.warning("%d event deliveries wait to be stored; further ones are lost", self._max_deliveries)
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
