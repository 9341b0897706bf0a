"""Views of VMs as cells: a scope as a grid of update and fault domains, standalone VMs in a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from forewarn.core.event import EventState
from forewarn.core.fleet import Vm
from forewarn.core.scope import Scope
from forewarn.explain.polling import PollingPace
from forewarn.portal.fleet_overview import FleetOverview
from forewarn.web.views import BaseView

PaceLookup = Callable[[str], PollingPace | None]


class VmCell(BaseView, frozen=True, kw_only=True):
    key: str
    name: str
    state: str
    update_domain: int
    fault_domain: int
    host: str


class UpdateDomainRow(BaseView, frozen=True, kw_only=True):
    """One update domain; its VMs by fault domain."""

    update_domain: int
    at_work: bool
    places: tuple[tuple[VmCell, ...], ...]


class VmBlockView(BaseView, frozen=True, kw_only=True):
    scope: str  # "" for the standalone VMs of a group
    title: str
    vms: tuple[VmCell, ...]  # that are in view
    size: int  # of the whole block, as far as it is seen
    scopes: tuple[str, ...]
    enabled: int  # of its scopes
    silent_s: float | None  # of real time since a VM of it last asked for events; None: none ever has
    asking: int  # VMs that have asked in the last minute
    events: int  # that are not over
    next_not_before: float | None
    at_work: tuple[int, ...]  # update domains

    @property
    def fault_domains(self) -> tuple[int, ...]:
        return tuple(sorted({cell.fault_domain for cell in self.vms}))

    def rows(self) -> tuple[UpdateDomainRow, ...]:
        places: dict[tuple[int, int], list[VmCell]] = defaultdict(list)
        for cell in self.vms:
            places[cell.update_domain, cell.fault_domain].append(cell)
        return tuple(
            UpdateDomainRow(
                update_domain=domain,
                at_work=domain in self.at_work,
                places=tuple(tuple(places[domain, fault_domain]) for fault_domain in self.fault_domains),
            )
            for domain in sorted({domain for domain, _ in places})
        )


def vm_cell(vm: Vm, overview: FleetOverview) -> VmCell:
    return VmCell(
        key=vm.key,
        name=vm.name,
        state=overview.state_of(vm.key),
        update_domain=vm.update_domain,
        fault_domain=vm.fault_domain,
        host=vm.host,
    )


def vm_block_view(
    scopes: Sequence[Scope],
    vms: Sequence[Vm],
    seen: Collection[str],
    pace_of: PaceLookup,
    overview: FleetOverview,
    *,
    title: str,
) -> VmBlockView:
    """Of one scope, or of some standalone VMs, whose scopes these are; `seen` are the keys of all its VMs."""
    one = scopes[0] if len(scopes) == 1 and not scopes[0].id.startswith("vm:") else None
    paces = [pace for pace in map(pace_of, seen) if pace is not None]
    live = [event for scope in scopes for event in scope.live_events()]
    return VmBlockView(
        scope=one.id if one is not None else "",
        title=title,
        vms=tuple(vm_cell(vm, overview) for vm in vms),
        size=len(seen),
        scopes=tuple(scope.id for scope in scopes),
        enabled=sum(scope.is_enabled for scope in scopes),
        silent_s=min((pace.silent_s for pace in paces), default=None),
        asking=sum(not pace.is_silent for pace in paces),
        events=len(live),
        next_not_before=min((e.not_before for e in live if e.status is EventState.SCHEDULED), default=None),
        at_work=_active_update_domains(one) if one is not None else (),
    )


def _active_update_domains(scope: Scope) -> tuple[int, ...]:
    hit = {act.vm for event in scope.live_events() for act in event.unfinished_acts}
    return tuple(sorted({vm.update_domain for vm in scope.present_vms if vm.key in hit})) if hit else ()
