"""In-memory progress of open rollouts, counted as their events change.

A rollout may affect the whole fleet, so the overview does not read its VMs and events at each view. The counts are
those of `core.rollout.count_rollout_vms`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from forewarn.base.times import LabSeconds, LabTime, Timestamp, timestamp
from forewarn.control.rollouts import RolloutService
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.commit import Commit
from forewarn.core.event import Event
from forewarn.core.fleet import Vm, vm_key_in_scope
from forewarn.core.history import EntryKind
from forewarn.core.request import MaintenanceRequest, PlannedEvent, Rollout, RolloutState, RolloutTally
from forewarn.core.rollout import handled_vms, rollout_vm_states
from forewarn.core.shared_work import VmInScope
from forewarn.core.waves import covers_vm
from forewarn.errors import Unavailable
from forewarn.store.interface import Store

log = logging.getLogger(__name__)


# In-memory work of rollouts on VMs, which may serve other rollouts too (spec §13.6).
#
# It answers for one VM what `core.shared_work.shared_work` answers for all VMs of a rollout.

_SERVING_STATES = ("scheduled", "started", "done")


class _Work(NamedTuple):
    request_id: str
    host: str
    state: str  # the field of RolloutTally that counts the VM
    over_at: LabTime | None  # None: it is live or planned
    is_planned: bool


class ServingEvents:
    """The published and planned events of rollouts, to find VMs that one rollout serves for another.

    It knows the rollouts that are open, or that closed since the oldest open one was requested. Pass every rollout's
    request to `on_request` before its events.
    """

    def __init__(self) -> None:
        self._requests: dict[str, MaintenanceRequest] = {}
        self._numbers: dict[str, int] = {}  # request id → its place in the order in which they were added
        self._next_number = itertools.count()
        self._work: dict[VmInScope, dict[str, _Work]] = {}  # VM → event id → what it does
        self._vms: dict[str, set[VmInScope]] = {}  # request id → VMs that its events list
        self._planned: dict[str, tuple[VmInScope, ...]] = {}  # id of a planned event → its VMs

    @property
    def is_of_several(self) -> bool:
        """Whether more than one rollout is known, so that one may serve VMs for another."""
        return len(self._requests) > 1

    def on_request(self, request: MaintenanceRequest) -> None:
        """Take in the newest state of a rollout's request; call it before the events of the rollout."""
        if request.id not in self._numbers:
            self._numbers[request.id] = next(self._next_number)
        self._requests[request.id] = request

    def forget_old(self) -> None:
        """Forget the rollouts that closed before the oldest open one was requested, with their events."""
        oldest = min((request.requested_at for request in self._requests.values() if request.is_open), default=math.inf)
        for request_id in [id_ for id_, request in self._requests.items() if _closed_before(request, oldest)]:
            del self._requests[request_id], self._numbers[request_id]
            for vm in self._vms.pop(request_id, ()):
                for event_id in [id_ for id_, work in self._work.get(vm, {}).items() if work.request_id == request_id]:
                    self._drop(vm, event_id)

    def on_event(self, event: Event) -> Iterator[VmInScope]:
        """Take in an event that was published or changed, and yield its VMs; none if its rollout is unknown."""
        # This is a generator: only what is iterated over is taken in.
        request = self._requests.get(event.request_id)
        if request is None or request.rollout is None or request.rollout.cause is not event.cause:
            return
        for name, state in rollout_vm_states(event):
            vm = (event.scope_id, name)
            if state in _SERVING_STATES:
                work = _Work(event.request_id, event.host, state, event.over_at, False)
                self._add(vm, event.id, work)
            else:
                self._drop(vm, event.id)
            yield vm

    def on_planned(self, planned: Iterable[PlannedEvent], unplanned: Iterable[str] = ()) -> Iterator[VmInScope]:
        """Take in planned events, and ids of those that were published or dropped, and yield their VMs.

        Call it before `on_event` for the events of the same commit. This is a generator: only what is iterated over is
        taken in.
        """
        for event_id in unplanned:
            for vm in self._planned.pop(event_id, ()):
                self._drop(vm, event_id)
                yield vm
        for item in planned:
            request = self._requests.get(item.request_id)
            if request is None or request.rollout is None or request.rollout.cause is not item.cause:
                continue
            vms = self._planned[item.event_id] = tuple((item.scope_id, name) for name in item.vms)
            for vm in vms:
                self._add(vm, item.event_id, _Work(item.request_id, item.host, "scheduled", None, True))
                yield vm

    def _add(self, vm: VmInScope, event_id: str, work: _Work) -> None:
        self._work.setdefault(vm, {})[event_id] = work
        self._vms.setdefault(work.request_id, set()).add(vm)

    def _drop(self, vm: VmInScope, event_id: str) -> None:
        work = self._work.get(vm, {})
        work.pop(event_id, None)
        if not work:
            self._work.pop(vm, None)

    def state_for(self, request: MaintenanceRequest, vm: VmInScope, host: str) -> str:
        """Return the field of RolloutTally that counts a VM, on this host, which another rollout serves."""
        serving = [work for work in self._work.get(vm, {}).values() if self._serves(work, request, host)]
        # As `shared_work` has it: the last event of the newest rollout counts, and planned ones before all.
        serving.sort(key=lambda work: (work.is_planned, self._numbers[work.request_id]))
        return serving[-1].state if serving else ""

    def _serves(self, work: _Work, request: MaintenanceRequest, host: str) -> bool:
        """Return whether `may_share_work` holds, and the work is on this host and not over before the request."""
        other = self._requests.get(work.request_id)
        if other is None or other.rollout is None or request.rollout is None or other.id == request.id:
            return False
        if (
            work.host != host
            or other.rollout.cause is not request.rollout.cause
            or _closed_before(other, request.requested_at)
        ):
            return False
        return work.over_at is None or work.over_at >= request.requested_at


def _closed_before(request: MaintenanceRequest, at: float) -> bool:
    rollout = request.rollout
    return rollout is not None and rollout.closed and (rollout.closed_at is None or rollout.closed_at < at)


STALL_S: LabSeconds = 300.0  # without any progress that was due, after which a rollout counts as stalled
_UNKNOWN_ACT_S = 60.0  # assumed for acts whose duration no document shows, until one of the rollout has ended
_MAX_REQUESTS_READ = 500  # the newest ones, to find rollouts that stopped
_MAX_STOPPED = 20
_BATCH_SIZE = 1000  # events counted before other tasks run
_NO_EVENT = "no event"  # in place of a tally field: of a VM that waits, and no event lists


class RolloutTracker:
    """The progress of one open rollout: its tally, and whether it stalls."""

    # A RolloutIndex makes and changes it. `request` is the rollout's request as of the last commit; `serving` knows
    # what all rollouts do to VMs. The VMs of the rollout are counted host by host when the tracker is new: until that
    # is done, it has fewer VMs than the rollout.

    def __init__(self, request: MaintenanceRequest, serving: ServingEvents) -> None:
        self.request = request
        self._serving = serving  # of other rollouts too
        self._hosts = frozenset(self.rollout.hosts)
        # VM → publication of its newest event, and the tally field that counts it.
        self._event_states: dict[VmInScope, tuple[float, str]] = {}
        self._handling: dict[VmInScope, set[str]] = {}  # VM → ids of the events that handle it
        self._covered: dict[str, Vm] = {}  # by key: the present VMs that it covers
        self._awaited: set[VmInScope] = set()  # VMs that another rollout works on, or has planned to
        self._counted: dict[VmInScope, str] = {}  # VM → tally field that counts it now, or _NO_EVENT
        self._counts: Counter[str] = Counter()  # of VMs by tally field, or _NO_EVENT
        self._last_not_before = 0.0  # of all its events
        self._changed_at = request.requested_at  # the time of the last change of one of its events
        self._ended: set[str] = set()  # ids of events that started and are over
        self._act_s = 0.0  # of these: the sum of the times from start to end

    @property
    def rollout(self) -> Rollout:
        """The rollout of the tracked request, as of the last commit."""
        assert self.request.rollout is not None
        return self.request.rollout

    @property
    def tally(self) -> RolloutTally:
        """The progress of the rollout in VMs, each counted once."""
        # VMs that it would cover, and that came after it completed, are not part of it.
        left_out = self._counts[_NO_EVENT] if self.rollout.progress is RolloutState.COMPLETED else 0
        # A health check has withdrawn the events of those that count as "waiting" already.
        waiting = self._counts[_NO_EVENT] - left_out + self._counts["waiting"]
        return RolloutTally(total=self._counts.total() - left_out, waiting=waiting, **self._field_counts())

    def _field_counts(self) -> dict[str, int]:
        return {name: self._counts[name] for name in RolloutTally.__struct_fields__ if name not in ("total", "waiting")}

    def stalled_s(self, now: float) -> float | None:
        """Return the seconds for which a stalled rollout made no progress; None if not stalled."""
        if self.rollout.progress is not RolloutState.RUNNING or self._awaited:
            return None
        due_at = max(self._changed_at, self._last_not_before if self._counts["scheduled"] else 0.0)
        if self._counts["started"]:
            due_at += self._mean_act_s()
        if self.rollout.wave_over_at is not None:
            due_at = max(due_at, self.rollout.wave_over_at + self.rollout.settle_s)
        return now - self._changed_at if now - due_at > STALL_S else None

    def _mean_act_s(self) -> float:
        if self._ended:
            return self._act_s / len(self._ended)
        known_s = CAUSE_RULES[self.rollout.cause].duration_s
        return float(known_s) if known_s >= 0 else _UNKNOWN_ACT_S

    def on_vm(self, vm: Vm) -> None:
        """Count a VM that was added, changed, moved or removed. Only the RolloutIndex calls it."""
        before = self._covered.pop(vm.key, None)
        is_target = vm.host in self._hosts if self._hosts else covers_vm(self.rollout, vm)
        if vm.removed_at is None and is_target:
            self._covered[vm.key] = vm
        if before is not None:
            self.recount((before.scope_id, before.name))
        self.recount((vm.scope_id, vm.name))

    def recount(self, name: VmInScope) -> None:
        """Count a VM again, by what the events of all rollouts now do to it. Only the RolloutIndex calls it."""
        key = vm_key_in_scope(*name)
        vm = self._covered.get(key)
        if vm is not None and (vm.scope_id, vm.name) != name:
            vm = None  # it is in another scope now
        shared = ""
        if vm is not None and not self._handling.get(name):
            shared = self._serving.state_for(self.request, name, vm.host)
        self._awaited.discard(name)
        if shared and shared != "done":
            self._awaited.add(name)
        _, own = self._event_states.get(name, (0.0, ""))
        state = shared or own or (_NO_EVENT if vm is not None else "")
        before = self._counted.pop(name, "")
        self._counts[before] -= bool(before)
        if state:
            self._counted[name] = state
            self._counts[state] += 1

    def on_event(self, event: Event) -> None:
        """Count the VMs of an event of the rollout that was published or changed. Only the index calls it."""
        handled = handled_vms(self.rollout, (event,), ())
        for name, state in rollout_vm_states(event):
            vm = (event.scope_id, name)
            handling = self._handling.setdefault(vm, set())
            if vm in handled:
                handling.add(event.id)
            else:
                handling.discard(event.id)
            if self._event_states.get(vm, (0.0, ""))[0] <= event.published_at:
                self._event_states[vm] = (event.published_at, state)
            # Otherwise the VM came back to a host, and a newer event counts.
            self.recount(vm)
        self._last_not_before = max(self._last_not_before, event.not_before)
        times = (event.published_at, event.started_at, event.over_at)
        self._changed_at = max(self._changed_at, *(at for at in times if at is not None))
        if event.started_at is not None and event.over_at is not None and event.id not in self._ended:
            self._ended.add(event.id)
            self._act_s += event.over_at - event.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRollout:
    """A rollout that stopped by itself, as when too many VMs failed."""

    request: MaintenanceRequest  # with the stopped rollout
    at: Timestamp  # when it stopped


class RolloutIndex:
    """Tracks all open rollouts, and the last ones that stopped by themselves, in memory.

    An EventIndex has one. Await `build` first; then pass every commit since the build began to `on_commit`, in order.
    `rollouts` finds the VMs of a rollout. Use it on one event loop.
    """

    def __init__(self, store: Store, rollouts: RolloutService) -> None:
        self._store = store
        self._rollouts = rollouts
        self._serving = ServingEvents()
        self._trackers: dict[str, RolloutTracker] = {}  # by request id
        self._stopped: dict[str, StoppedRollout] = {}  # likewise; at most _MAX_STOPPED
        self._counting: set[asyncio.Task[None]] = set()  # the VMs of rollouts that have just started

    async def build(self) -> None:
        """Read the open rollouts with their VMs and events, and recent rollouts that stopped, from the store."""
        open_requests = self._store.requests(open_only=True)
        await self._read_serving_events(open_requests)
        for request in open_requests:
            await self._track(request)
        for request in self._store.requests(limit=_MAX_REQUESTS_READ):
            self._note_stop(request, self._stop_time(request))

    async def _read_serving_events(self, open_requests: list[MaintenanceRequest]) -> None:
        rollouts = [request for request in open_requests if request.rollout is not None]
        oldest = min((request.requested_at for request in rollouts), default=math.inf)
        open_ids = {request.id for request in rollouts}
        recent = self._store.requests(limit=_MAX_REQUESTS_READ) if rollouts else []
        older = [request for request in rollouts if request.id not in {known.id for known in recent}]
        for request in (*older, *recent):
            rollout = request.rollout
            if rollout is None or (request.id not in open_ids and (rollout.closed_at or 0.0) < oldest):
                continue
            self._serving.on_request(request)
            for number, event in enumerate(self._store.events(request_id=request.id), 1):
                list(self._serving.on_event(event))
                if number % _BATCH_SIZE == 0:
                    await asyncio.sleep(0)
            list(self._serving.on_planned(self._store.planned(request_id=request.id)))

    async def _track(self, request: MaintenanceRequest) -> None:
        if request.rollout is None or request.id in self._trackers:
            return
        tracker = self._trackers[request.id] = RolloutTracker(request, self._serving)
        for number, event in enumerate(self._store.events(request_id=request.id), 1):
            tracker.on_event(event)
            if number % _BATCH_SIZE == 0:
                await asyncio.sleep(0)
        await self._count_vms(tracker)

    async def _count_vms(self, tracker: RolloutTracker) -> None:
        rollout = tracker.rollout
        for part in [replace(rollout, hosts=(host,)) for host in rollout.hosts] or [rollout]:
            for vm in self._rollouts.vms_of(part):
                tracker.on_vm(vm)
            await asyncio.sleep(0)
            if self._trackers.get(tracker.request.id) is not tracker:
                return  # the rollout has ended

    async def _count_vms_of_new(self, tracker: RolloutTracker) -> None:
        try:
            await self._count_vms(tracker)
        except Unavailable as error:
            log.warning("the overview does not count all VMs of rollout %s: %s", tracker.request.id, error)

    def on_commit(self, commit: Commit, now: float) -> None:
        """Take in a commit: new, changed and closed rollouts, their events and VMs; `now` is lab time."""
        for request in commit.requests:
            self._on_request(request, now)
        if not self._trackers:
            return
        served = set(self._serving.on_planned(commit.planned, commit.unplanned))
        for event in commit.events:
            served.update(self._serving.on_event(event))
            if (tracker := self._trackers.get(event.request_id)) is not None:
                tracker.on_event(event)
        if self._serving.is_of_several:
            for tracker in self._trackers.values():
                for name in served:
                    tracker.recount(name)
        for vm in commit.vms:
            for tracker in self._trackers.values():
                tracker.on_vm(vm)

    def _on_request(self, request: MaintenanceRequest, now: float) -> None:
        if request.rollout is None:
            return
        self._note_stop(request, now)
        self._serving.on_request(request)
        tracker = self._trackers.get(request.id)
        if not request.is_open:
            self._serving.forget_old()
            self._trackers.pop(request.id, None)
        elif tracker is not None:
            tracker.request = request
        else:
            tracker = self._trackers[request.id] = RolloutTracker(request, self._serving)
            task = asyncio.create_task(self._count_vms_of_new(tracker))
            self._counting.add(task)
            task.add_done_callback(self._counting.discard)

    def _note_stop(self, request: MaintenanceRequest, at: float) -> None:
        if request.rollout is None:
            return
        for known in [known for known in self._stopped.values() if _has_same_target(known.request, request)]:
            if known.request.requested_at < request.requested_at:
                del self._stopped[known.request.id]  # a newer rollout of the same target replaces it
        if request.rollout.progress is RolloutState.STOPPED:
            at = self._stopped[request.id].at if request.id in self._stopped else at
            self._stopped[request.id] = StoppedRollout(request=request, at=timestamp(at))
            if len(self._stopped) > _MAX_STOPPED:
                del self._stopped[next(iter(self._stopped))]

    def _stop_time(self, request: MaintenanceRequest) -> float:
        if request.rollout is None or request.rollout.progress is not RolloutState.STOPPED:
            return request.requested_at
        entries = self._store.history(request_id=request.id, limit=_MAX_STOPPED)
        return next((entry.at for entry in reversed(entries) if entry.kind is EntryKind.STOPPED), request.requested_at)

    def open_rollouts(self) -> list[RolloutTracker]:
        """Return the live trackers of all open rollouts, oldest first, in a new list; [] before `build`."""
        return list(self._trackers.values())

    def stopped_since(self, since: float) -> Iterator[StoppedRollout]:
        """Yield the rollouts that stopped by themselves at or after lab time `since`."""
        return (stopped for stopped in self._stopped.values() if stopped.at >= since)


def _has_same_target(one: MaintenanceRequest, other: MaintenanceRequest) -> bool:
    assert one.rollout is not None
    assert other.rollout is not None
    return _target_of(one.rollout) == _target_of(other.rollout)


def _target_of(rollout: Rollout) -> tuple[object, ...]:
    return rollout.hosts, rollout.scope_id, rollout.tag, rollout.location, rollout.everything
