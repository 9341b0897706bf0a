"""Rollouts: platform maintenance over hosts or a scope, update domain by update domain (spec §6.2).

What a rollout publishes next is read off its events: a VM is done with once an event of the rollout has listed it.
A host is published as a whole, so that no two hosts ever wait for each other; it waits while, in some scope on it,
another update domain of this rollout is still busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forewarn.core.cause import CAUSES
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.gate import Gate
from forewarn.core.impact import can_hit
from forewarn.core.request import Planned, Progress, Request, Rollout, Tally

_TOLD = 3  # failed VMs that are named; the others are counted
Busy = dict[str, int]  # scope → the update domain that this rollout has under way there


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """What to publish now."""

    planned: tuple[Planned, ...] = ()
    gates: tuple[Gate, ...] = ()


def next_wave(
    request: Request,
    vms: Iterable[Vm],
    events: Sequence[Event],
    planned: Sequence[Planned],
    new_id: Callable[[], str],
) -> Wave:
    """The next events of a running rollout; `vms` are those it is about, wherever they are in it by now."""
    rollout = _rollout(request)
    left = remaining(rollout, vms, events, planned)
    busy: Busy = {p.scope_id: p.update_domain for p in planned}
    busy |= {e.scope_id: e.update_domain for e in events if e.is_live}
    wave_planned: list[Planned] = []
    gates: list[Gate] = []
    for host, group in _in_order(left):
        for unit in _units(rollout, group):
            if any(busy.get(vm.scope_id, vm.update_domain) != vm.update_domain for vm in unit):
                continue
            busy.update({vm.scope_id: vm.update_domain for vm in unit})
            gate = _gate_for(request, host, unit, new_id)
            gates.extend([gate] if gate else [])
            wave_planned.extend(_planned(request, host, unit, gate, new_id))
    return Wave(planned=tuple(wave_planned), gates=tuple(gates))


def remaining(rollout: Rollout, vms: Iterable[Vm], events: Sequence[Event], planned: Sequence[Planned]) -> list[Vm]:
    """The VMs that no event of the rollout has listed yet, and that it could hit."""
    handled = {(e.scope_id, name) for e in events for name in e.vms}
    handled |= {(p.scope_id, name) for p in planned for name in p.vms}
    verb = CAUSES[rollout.cause].verb
    return [vm for vm in vms if (vm.scope_id, vm.name) not in handled and can_hit(vm, verb)]


def _rollout(request: Request) -> Rollout:
    assert request.rollout is not None
    return request.rollout


def _in_order(vms: Iterable[Vm]) -> list[tuple[str, list[Vm]]]:
    """Hosts with their VMs, lowest update domain first."""
    by_host: dict[str, list[Vm]] = defaultdict(list)
    for vm in vms:
        by_host[vm.host].append(vm)
    return sorted(by_host.items(), key=lambda item: (min(vm.update_domain for vm in item[1]), item[0]))


def _units(rollout: Rollout, group: list[Vm]) -> list[list[Vm]]:
    """What is published together or not at all: of each scope on a host, its lowest update domain; a move alone."""
    if not CAUSES[rollout.cause].whole_host:
        return [[vm] for vm in sorted(group, key=lambda vm: vm.update_domain)]
    lowest: dict[str, int] = {}
    for vm in group:
        lowest[vm.scope_id] = min(vm.update_domain, lowest.get(vm.scope_id, vm.update_domain))
    return [[vm for vm in group if vm.update_domain == lowest[vm.scope_id]]]


def _gate_for(request: Request, host: str, unit: list[Vm], new_id: Callable[[], str]) -> Gate | None:
    """Work on a whole host waits for all scopes on it; a rollout over one scope is no such work."""
    rollout = _rollout(request)
    if not CAUSES[rollout.cause].whole_host or rollout.scope_id:
        return None
    return Gate(id=new_id(), request_id=request.id, host=host)


def _planned(
    request: Request, host: str, unit: list[Vm], gate: Gate | None, new_id: Callable[[], str]
) -> list[Planned]:
    rollout = _rollout(request)
    by_scope: dict[str, list[Vm]] = defaultdict(list)
    for vm in unit:
        by_scope[vm.scope_id].append(vm)
    return [
        Planned(
            event_id=new_id(),
            request_id=request.id,
            scope_id=scope_id,
            cause=rollout.cause,
            who=request.who,
            vms=tuple(vm.name for vm in members),
            notice_s=request.notice_s,
            update_domain=members[0].update_domain,
            host=host,
            gate_id=gate.id if gate else "",
        )
        for scope_id, members in by_scope.items()
    ]


def progress_of(rollout: Rollout, events: Sequence[Event], left: int) -> Progress:
    """The state a running rollout is in now: it stops by itself at its maximum of failures."""
    if rollout.progress not in (Progress.RUNNING, Progress.PAUSED):
        return rollout.progress
    if sum(len(event.failures) for event in events) >= rollout.max_failures > 0:
        return Progress.STOPPED
    if left == 0 and not any(event.is_live for event in events):
        return Progress.COMPLETED
    return rollout.progress


def why_ended(rollout: Rollout, events: Sequence[Event], progress: Progress) -> str:
    """In words for people; nothing where all went well."""
    failed = [act for event in events for act in event.failures]
    if not failed or progress not in (Progress.STOPPED, Progress.COMPLETED):
        return ""
    notes = [f"{act.name}: {act.outcome.note or 'no reason given'}" for act in failed[:_TOLD] if act.outcome]
    told = "; ".join([*notes, *([f"and {len(failed) - _TOLD} more"] if len(failed) > _TOLD else [])])
    if progress is Progress.COMPLETED:
        return told
    count = f"{len(failed)} {'VM' if len(failed) == 1 else 'VMs'} failed"
    return f"{count}, and it stops at {rollout.max_failures} ({told})"


def tally(vms: Iterable[Vm], events: Sequence[Event]) -> Tally:
    """Counts by VM over everything the rollout has reached and has still to reach."""
    listed = {(e.scope_id, name) for e in events for name in e.vms}
    waiting = {(vm.scope_id, vm.name) for vm in vms} - listed
    over = [e for e in events if e.status is Status.OVER]
    started = [e for e in events if e.status is Status.STARTED]
    withdrawn = sum(len(e.vms) for e in over if not e.acts)
    return Tally(
        total=len(listed | waiting),
        done=sum(len(e.vms) - len(e.failures) for e in over) - withdrawn,
        failed=sum(len(e.failures) for e in events),
        withdrawn=withdrawn,
        started=sum(len(e.vms) - len(e.failures) for e in started),
        scheduled=sum(len(e.vms) for e in events if e.status is Status.SCHEDULED),
        waiting=len(waiting),
    )
