"""In-memory work of rollouts on VMs, which may serve other rollouts too (spec §13.6).

It answers for one VM what `core.shared_work.shared_work` answers for all VMs of a rollout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from forewarn.base.times import LabTime
from forewarn.core.event import Event
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.rollout import rollout_vm_states
from forewarn.core.shared_work import VmInScope

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
