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
    """How often one VM polled, and which of the listed events were delivered to it."""

    vm_id: str = ""  # "": not known yet
    scope_id: str = ""
    count: int = 0  # polls; of a worker only those since its last report
    polled_at: float | None = None  # real time; None: not since this process started
    wait_s: int = 0  # longest hold of the last poll
    window: tuple[float, int] | None = None  # real time at its start, and the count then
    previous_window: tuple[float, int] | None = None
    latest_poll_at: float = 0.0  # lab time of the newest merged poll
    taken_at: float = _NEVER  # real time when the VM was last in a batch
    last_delivered: tuple[str, int, int, str] | None = None  # scope, epoch, incarnation, version
    delivered_events: set[tuple[str, wire.NoticeStatus]] = field(default_factory=set)


class GuestObservations:
    """Collects polls and event deliveries of VMs in memory until a writer takes them in batches.

    Times of polls and deliveries (`at`) are lab time; intervals are measured in real time.
    """

    def __init__(
        self,
        *,
        max_deliveries: int = _MAX_WAITING_DELIVERIES,
        max_vms: int = _MAX_OBSERVED_VMS,
        real_time: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_deliveries, self._max_vms, self._real_time = max_deliveries, max_vms, real_time
        self._started_at = real_time()
        self._flush_time = 0.0  # real time of a flush in progress, which is the same for all its polls
        self._polls: dict[str, LastPoll] = {}  # of VMs that were in a batch before, the longest waiting first
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
        """Continue the poll counts from the stored ones; call it after a restart, before the first poll."""
        for poll in polls:
            activity = self._activity_of(poll.vm)
            activity.count, activity.scope_id, activity.vm_id = poll.count, poll.scope_id, poll.vm_id

    def replace_vm(self, vm: str, vm_id: str) -> None:
        """Forget the polls of a removed VM, because another one, with this id, was added under its key.

        Late reports about the removed VM are ignored from now on.
        """
        self._flush_hits_of(vm)
        self._start_activity(vm, vm_id)

    def set_flush_hooks(self, flush: Callable[[], None], flush_vm: Callable[[str], None]) -> None:
        """Set the functions that record hits of the response cache which are not recorded yet.

        `flush` is called before a batch is taken and may record a part of the VMs; `flush_vm` records one VM.
        """
        self._flush_hits, self._flush_hits_of = flush, flush_vm

    def subscribe_deliveries(self, callback: Callable[[Sequence[EventDelivery]], None]) -> Callable[[], None]:
        """Call back with deliveries once they are stored (`notify_written`); returns an unsubscribe function."""
        self._delivery_subscribers.append(callback)
        return lambda: self._delivery_subscribers.remove(callback)

    def subscribe_polling_starts(self, callback: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call back with the keys of VMs that poll for the first time or after a silence.

        The call comes with the next `notify_written`. Returns an unsubscribe function.
        """
        self._start_subscribers.append(callback)
        return lambda: self._start_subscribers.remove(callback)

    def notify_written(self, deliveries: Sequence[EventDelivery]) -> None:
        """Notify subscribers that a batch with these deliveries is stored, and of VMs that started to poll."""
        for on_deliveries in tuple(self._delivery_subscribers) if deliveries else ():
            on_deliveries(deliveries)
        started, self._started_polling = tuple(self._started_polling), {}
        for on_started in tuple(self._start_subscribers) if started else ():
            on_started(started)

    def record_poll(
        self, view: GuestView, version: str, at: float, *, count: int = 1, user_agent: str = "", wait_s: int = 0
    ) -> None:
        """Record `count` polls or approvals of the VM, the last at `at` (lab time).

        `wait_s`: how long the response to the last one may be held; the VM is not silent meanwhile.
        """
        vm, vm_id, scope_id = view.vm, view.facts.vm_id, view.scope_id
        activity = self._activity.get(vm) or self._activity_of(vm)
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
            ),
        )

    def record_delivery(self, view: GuestView, version: str, at: float) -> None:
        """Record that the VM was sent the view's document in this version, at `at` (lab time).

        Adds one delivery for each listed event that the version shows and this VM has not yet received in this status.
        """
        activity = self._activity_of(view.vm)
        delivered = (view.scope_id, view.epoch, view.document.incarnation, version)
        if activity.last_delivered == delivered:
            return
        activity.last_delivered = delivered
        activity.delivered_events &= {(notice.id, notice.status) for notice in view.document.notices}
        for notice in view.document.notices:
            event = (notice.id, notice.status)
            if event not in activity.delivered_events and version_lists_kind(version, notice.kind):
                activity.delivered_events.add(event)
                self._queue_deliveries([_make_delivery(notice, view, version, at)])

    def take_increments(self, min_interval_s: float = 0.0) -> ObservationBatch:
        """Like `take_batch`, but each count is the increment since the VM's last batch; for workers."""
        polls, deliveries = self.take_batch(min_interval_s)
        for poll in polls:
            self._activity_of(poll.vm).count = 0
        return polls, deliveries

    def merge_increments(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Add the batch of another process (see `take_increments`); its counts are added to those here.

        Polls of a VM that was replaced (see `replace_vm`) are ignored.
        """
        for poll in polls:
            if self._is_of_replaced_vm(poll):
                continue
            activity = self._activity_of(poll.vm)
            activity.vm_id = poll.vm_id
            self._count_polls(poll.vm, activity, poll.scope_id, poll.count, poll.wait_s)
            activity.latest_poll_at = max(activity.latest_poll_at, poll.at)
            self._queue_poll(activity, replace(poll, at=activity.latest_poll_at, count=activity.count))
        self._queue_deliveries(deliveries)

    def take_batch(self, min_interval_s: float = 0.0) -> ObservationBatch:
        """Take the last polls of at most BATCH_SIZE VMs, new ones first, and all deliveries.

        Leaves out VMs that were in a batch less than `min_interval_s` ago (real time). If the batch cannot be stored,
        give it back with `return_batch`.
        """
        now = self._flush_time = self._real_time()
        self._flush_hits()
        self._flush_time = 0.0
        new_vms = tuple(islice(self._new_vm_polls, BATCH_SIZE))
        due = takewhile(lambda vm: self._activity_of(vm).taken_at <= now - min_interval_s, self._polls)
        others = tuple(islice(due, BATCH_SIZE - len(new_vms)))
        polls = [*map(self._new_vm_polls.pop, new_vms), *map(self._polls.pop, others)]
        for poll in polls:
            self._activity_of(poll.vm).taken_at = now
        deliveries, self._deliveries = self._deliveries, []
        return polls, deliveries

    def return_batch(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Give back a batch that could not be stored, to be taken again first.

        A poll is dropped if a newer one of the same VM waits, or if another VM has its key now.
        """
        older = {poll.vm: poll for poll in polls if poll.vm not in self._polls and not self._is_of_replaced_vm(poll)}
        self._new_vm_polls = older | self._new_vm_polls
        newer, self._deliveries = self._deliveries, []
        self._queue_deliveries(deliveries)
        self._queue_deliveries(newer)

    def pace(self, vm: str) -> PollingPace | None:
        """Return how often this VM (its key) polls, and how long ago it did; None if it never has.

        A VM that has not polled since this process started counts as silent since then.
        """
        self._flush_hits_of(vm)
        activity = self._activity.get(vm)
        return None if activity is None or not activity.count else self._pace(activity, self._real_time())

    def paces(self) -> Iterator[tuple[str, PollingPace]]:
        """Yield (scope id, pace) of every VM that has polled, also of removed ones.

        VMs that start to poll meanwhile may be missing.
        """
        now = self._real_time()
        for vm, activity in tuple(self._activity.items()):
            self._flush_hits_of(vm)
            if activity.count:
                yield activity.scope_id, self._pace(activity, now)

    def _pace(self, activity: _VmActivity, now: float) -> PollingPace:
        if activity.polled_at is None:
            return PollingPace(max(0.0, now - self._started_at))
        window = activity.previous_window or activity.window
        gap_s = None
        if window is not None and activity.count > window[1] and activity.polled_at > window[0]:
            gap_s = (activity.polled_at - window[0]) / (activity.count - window[1])
        return PollingPace(max(0.0, now - activity.polled_at - activity.wait_s), gap_s)

    def _queue_poll(self, activity: _VmActivity, poll: LastPoll) -> None:
        """Replace the queued poll of the VM, if there is one."""
        is_new = activity.taken_at == _NEVER or poll.vm in self._new_vm_polls
        (self._new_vm_polls if is_new else self._polls)[poll.vm] = poll

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
