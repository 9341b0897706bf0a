"""The events that a rollout publishes next, one update domain of each scope at a time (spec §6.2).

A VM is handled once an event of the rollout has listed it, unless it left its host before the event started. All
VMs of a host are published together, so that two hosts never wait for each other; a host waits while another update
domain of one of its scopes is busy in this rollout.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from forewarn.base.duration import duration_text
from forewarn.base.wording import first_clauses
from forewarn.core.acts import can_act_on
from forewarn.core.budgets import BudgetGroup, BudgetLedger, BudgetShortage
from forewarn.core.cause import CAUSE_RULES
from forewarn.core.event import Ending, Event, EventState, Gate
from forewarn.core.fleet import Vm
from forewarn.core.maintenance_configuration import GroupCalendar, TargetWindows
from forewarn.core.request import MaintenanceRequest, PlannedEvent, Rollout, RolloutState, RolloutTally
from forewarn.core.windows import local_time_text, next_start, window_text
from forewarn.errors import Rejected

PUBLISHES_NOTHING = "publishes nothing for now"  # after `rollout ID` in the entry of one whose checks are unclear
_MAX_NAMED_FAILURES = 3  # more failed VMs are counted instead of named
BusyDomains = dict[str, int]  # scope id → the update domain that this rollout is working on there


class InvalidRollout(Rejected):
    """A rollout that can never work; `path` leads to the wrong value, such as `("waves", 0, "share")`."""

    def __init__(self, message: str, path: tuple[str | int, ...]) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The events that a rollout publishes together, and their gates, new or not yet released. The caller commits it."""

    planned: tuple[PlannedEvent, ...] = ()  # (): there is nothing to publish now
    gates: tuple[Gate, ...] = ()  # at most one per host; (): this work needs none, or nothing is planned
    shortages: tuple[BudgetShortage, ...] = ()  # what other VMs wait for, the first in each group of a budget


def next_batch(
    request: MaintenanceRequest,
    vms: Iterable[Vm],
    events: Sequence[Event],
    planned: Sequence[PlannedEvent],
    new_id: Callable[[], str],
    closed_gates: Mapping[str, Gate] = MappingProxyType({}),
    *,
    among: Sequence[Vm] | None = None,
    budgets: BudgetLedger | None = None,
    windows: TargetWindows | None = None,
) -> RolloutBatch:
    """Return what a rollout publishes next: planned events, their gates, and which budgets hold VMs back.

    `vms` are the VMs that it covers now, including those that it has done; `events` and `planned` all its events so
    far. `closed_gates` are its gates that are not released, by host name: a VM that arrived on such a host starts
    together with the others (spec §6.4). `among` are the remaining VMs of its current wave, None for all remaining
    ones. `budgets` get a reservation for each VM in the result; what does not fit is left out, and all VMs that wait
    for one gate go together or not at all (spec §13.2). VMs that could never start together in `windows` are left out.

    VMs wait while another update domain of their scope has an event of the rollout that is planned or not over. Work on
    whole hosts takes, of each scope on a host, only the lowest update domain; if one scope must wait, all scopes on
    that host do. Does not check whether the rollout is paused or has ended.
    """
    rollout = _rollout_of(request)
    remaining = remaining_vms(rollout, vms, events, planned) if among is None else among
    busy: BusyDomains = {p.scope_id: p.update_domain for p in planned}
    busy |= {e.scope_id: e.update_domain for e in events if e.is_live}
    batch_planned: list[PlannedEvent] = []
    gates: list[Gate] = []
    shortages: dict[BudgetGroup, BudgetShortage] = {}
    for host, group in hosts_in_order(remaining):
        for vm_group in _publishable_groups(rollout, group):
            # All VMs of the group or none, so that two hosts never wait for each other behind their gates.
            if any(busy.get(vm.scope_id, vm.update_domain) != vm.update_domain for vm in vm_group):
                continue
            calendar = GroupCalendar(common=rollout.calendar)
            if windows is not None:
                calendar = windows.calendar_for(vm_group, rollout.calendar)
                # An event that can never start would keep its update domain busy.
                if not windows.can_start(calendar.common):
                    continue
            if budgets is not None:
                vm_group = _take_within_budgets(budgets, rollout, host, vm_group, shortages)
                if not vm_group:
                    continue
            # Later groups of this batch must keep to the domain that this one takes.
            busy.update({vm.scope_id: vm.update_domain for vm in vm_group})
            # A VM that arrived after the others joins their gate, as long as that is closed.
            gate = closed_gates.get(host) or _gate_for(request, host, new_id)
            gates.extend([gate] if gate else [])
            batch_planned.extend(_planned_events(request, host, vm_group, gate, calendar, new_id))
    return RolloutBatch(planned=tuple(batch_planned), gates=tuple(gates), shortages=tuple(shortages.values()))


def _take_within_budgets(
    budgets: BudgetLedger, rollout: Rollout, host: str, vm_group: list[Vm], shortages: dict[BudgetGroup, BudgetShortage]
) -> list[Vm]:
    # What one gate starts goes together, so its VMs are reserved together or not at all.
    parts = [vm_group] if needs_gate(rollout) else [[vm] for vm in vm_group]
    taken: list[Vm] = []
    for part in parts:
        shortage = budgets.reserve(part, host if len(part) > 1 else "")
        if shortage is None:
            taken += part
        else:
            shortages.setdefault(shortage.group, shortage)
    return taken


def remaining_vms(
    rollout: Rollout, vms: Iterable[Vm], events: Sequence[Event], planned: Sequence[PlannedEvent]
) -> list[Vm]:
    """Return the VMs among `vms` for which the rollout has yet to plan events, in their order."""
    handled = handled_vms(rollout, events, planned)
    verb = CAUSE_RULES[rollout.cause].verb
    return [vm for vm in vms if (vm.scope_id, vm.name) not in handled and can_act_on(vm, verb)]


def handled_vms(rollout: Rollout, events: Sequence[Event], planned: Sequence[PlannedEvent]) -> set[tuple[str, str]]:
    """Return (scope id, name) of each VM that an event of the rollout handles, published or planned."""
    handled = {(e.scope_id, name) for e in events for name in _handled_vms(rollout, e)}
    return handled | {(p.scope_id, name) for p in planned for name in p.vms}


def _handled_vms(rollout: Rollout, event: Event) -> Iterable[str]:
    if event.is_postponed:
        return ()
    if not rollout.hosts or event.status is EventState.SCHEDULED or event.ending is Ending.WITHDRAWN:
        return [name for name in event.vms if name not in event.removed_vms]
    # Over hosts only acts count: a VM that had left and came back has had no maintenance.
    return [act.name for act in event.acts]


def _rollout_of(request: MaintenanceRequest) -> Rollout:
    assert request.rollout is not None
    return request.rollout


def hosts_in_order(vms: Iterable[Vm]) -> list[tuple[str, list[Vm]]]:
    by_host: dict[str, list[Vm]] = defaultdict(list)
    for vm in vms:
        by_host[vm.host].append(vm)
    return sorted(by_host.items(), key=lambda item: (min(vm.update_domain for vm in item[1]), item[0]))


def host_units(rollout: Rollout, vms: Iterable[Vm]) -> list[tuple[str, list[Vm]]]:
    """Return (host, VMs that are published together), in the order in which a rollout takes them."""
    units: list[tuple[str, list[Vm]]] = []
    for host, group in hosts_in_order(vms):
        while group:
            groups = _publishable_groups(rollout, group)
            units += [(host, unit) for unit in groups]
            taken = {vm.key for unit in groups for vm in unit}
            group = [vm for vm in group if vm.key not in taken]
    return sorted(units, key=lambda unit: (min(vm.update_domain for vm in unit[1]), unit[0]))


def _publishable_groups(rollout: Rollout, group: list[Vm]) -> list[list[Vm]]:
    # Work on the whole host takes the lowest update domain of each scope on it as one group; VMs that move go alone.
    if not CAUSE_RULES[rollout.cause].whole_host:
        return [[vm] for vm in sorted(group, key=lambda vm: vm.update_domain)]
    lowest: dict[str, int] = {}
    for vm in group:
        lowest[vm.scope_id] = min(vm.update_domain, lowest.get(vm.scope_id, vm.update_domain))
    return [[vm for vm in group if vm.update_domain == lowest[vm.scope_id]]]


def needs_gate(rollout: Rollout) -> bool:
    """Return whether all VMs of a host are in one wave and start together: it is not about one scope."""
    return CAUSE_RULES[rollout.cause].whole_host and not rollout.scope_id


def _gate_for(request: MaintenanceRequest, host: str, new_id: Callable[[], str]) -> Gate | None:
    """Return a gate for work on a whole host, which waits for all scopes on it; None for other work."""
    if not needs_gate(_rollout_of(request)):
        return None
    return Gate(id=new_id(), request_id=request.id, host=host)


def _planned_events(
    request: MaintenanceRequest,
    host: str,
    vm_group: list[Vm],
    gate: Gate | None,
    calendar: GroupCalendar,
    new_id: Callable[[], str],
) -> list[PlannedEvent]:
    rollout = _rollout_of(request)
    by_scope: dict[str, list[Vm]] = defaultdict(list)
    for vm in vm_group:
        by_scope[vm.scope_id].append(vm)
    return [
        PlannedEvent(
            event_id=new_id(),
            request_id=request.id,
            scope_id=scope_id,
            cause=rollout.cause,
            requested_by=request.requested_by,
            vms=tuple(vm.name for vm in members),
            notice_s=request.notice_s,
            update_domain=members[0].update_domain,
            host=host,
            gate_id=gate.id if gate else "",
            calendar=calendar.for_scope(scope_id),
        )
        for scope_id, members in by_scope.items()
    ]


def has_window_left(rollout: Rollout, at: float) -> bool:
    """Return whether an event whose notice ends at `at` could ever start without an approval."""
    return rollout.calendar is None or next_start(rollout.calendar, at) is not None


def can_any_group_start(rollout: Rollout, remaining: Iterable[Vm], windows: TargetWindows) -> bool:
    """Return whether maintenance configurations let any of the remaining VMs start without an approval."""
    return any(
        windows.can_start(windows.calendar_for(vm_group, rollout.calendar).common)
        for _, group in hosts_in_order(remaining)
        for vm_group in _publishable_groups(rollout, group)
    )


def require_usable_calendar(rollout: Rollout, now: float, notice_s: float) -> None:
    """Raise InvalidRollout if the rollout's deadline is over, or no maintenance window follows the notice."""
    calendar = rollout.calendar
    if calendar is None:
        return
    if calendar.deadline is not None and calendar.deadline <= now:
        when = local_time_text(calendar, calendar.deadline)
        text = f"the deadline {when} is over: give a later one, or leave the windows out to start at any time"
        raise InvalidRollout(text, ("windows", "deadline"))
    if not has_window_left(rollout, now + notice_s):
        windows = ", ".join(map(window_text, calendar.windows))
        raise InvalidRollout(
            f"no maintenance window ({windows}) follows the notice of {duration_text(notice_s)}: "
            "give a later window, or a deadline",
            ("windows", "open"),
        )


def next_rollout_state(
    rollout: Rollout,
    events: Sequence[Event],
    remaining: int,
    *,
    has_window: bool = True,
    now: float = 0.0,
    is_settling: bool = False,
) -> RolloutState:
    """Return the next state of a rollout: stopped after `max_failures` failed VMs, completed, or as it is.

    `remaining` counts the `remaining_vms` and the planned events. It completes, even while it is paused, when none
    remain and all events are over. A running one stops if its events that are not over are all scheduled, without an
    approval and without a window left at `now`; or if all are over, VMs remain, and `has_window` is False.
    """
    if rollout.progress not in (RolloutState.RUNNING, RolloutState.PAUSED):
        return rollout.progress
    # A paused rollout stops as well: acts under way may fail after the pause.
    if sum(len(event.failed_acts) for event in events) >= rollout.max_failures > 0:
        return RolloutState.STOPPED
    live = [event for event in events if event.is_live]
    if any(not _is_past_windows(event, now) for event in live):
        return rollout.progress
    if not live and remaining == 0:
        return rollout.progress if is_settling else RolloutState.COMPLETED
    # Only events without a window left are live here, or none: nothing but an approval goes on.
    is_stuck = bool(live) or not has_window
    return RolloutState.STOPPED if is_stuck and rollout.progress is RolloutState.RUNNING else rollout.progress


def _is_past_windows(event: Event, now: float) -> bool:
    """Return whether only an approval could start the event, because its last window is over."""
    if event.calendar is None or event.status is not EventState.SCHEDULED or event.approved_at is not None:
        return False
    return next_start(event.calendar, now) is None


def rollout_end_reason(rollout: Rollout, events: Sequence[Event], progress: RolloutState) -> str:
    """Return why a rollout whose state becomes `progress` stopped, or which VMs failed, for people."""
    failed = [act for event in events for act in event.failed_acts]
    if progress is RolloutState.STOPPED and not 0 < rollout.max_failures <= len(failed):
        return "no maintenance window follows in which the other VMs could start"
    if not failed or progress not in (RolloutState.STOPPED, RolloutState.COMPLETED):
        return ""
    failures = first_clauses(
        [f"{act.name}: {act.outcome.note or 'no reason given'}" for act in failed if act.outcome], _MAX_NAMED_FAILURES
    )
    if progress is RolloutState.COMPLETED:
        return failures
    count = f"{len(failed)} {'VM' if len(failed) == 1 else 'VMs'} failed"
    return f"{count}, and it stops after {rollout.max_failures} ({failures})"


def count_rollout_vms(
    vms: Iterable[Vm], events: Sequence[Event], shared: Mapping[tuple[str, str], str] = MappingProxyType({})
) -> RolloutTally:
    """Return how many VMs of a rollout are done, failed, started, scheduled, waiting and so on.

    A VM counts once, by its newest event: a VM that came back to a host has several. `shared` has, by (scope id, name),
    the states of VMs on which another rollout does the work; they win over the rollout's own events.
    """
    states = {(vm.scope_id, vm.name): "waiting" for vm in vms}
    for event in events:
        states |= {(event.scope_id, name): state for name, state in rollout_vm_states(event)}
    # Last: where another rollout does the work, its state of the VM wins.
    states |= shared
    counts = Counter(states.values())
    return RolloutTally(total=len(states), **{name: counts[name] for name in _TALLY_STATES})


_TALLY_STATES = ("done", "failed", "withdrawn", "not_needed", "started", "scheduled", "waiting")


def rollout_vm_states(event: Event) -> Iterator[tuple[str, str]]:
    """Yield, for each VM of a rollout's event in its order, (name, field of RolloutTally that counts it)."""
    failed = {act.name for act in event.failed_acts}
    acted = {act.name for act in event.acts}
    for name in event.vms:
        if name in failed:
            yield name, "failed"
        elif event.status is EventState.SCHEDULED:
            yield name, "scheduled"
        elif event.is_postponed:
            yield name, "waiting"
        elif event.ending is Ending.WITHDRAWN:
            yield name, "withdrawn"
        elif name not in acted:
            yield name, "not_needed"
        else:
            yield name, "started" if event.is_live else "done"
