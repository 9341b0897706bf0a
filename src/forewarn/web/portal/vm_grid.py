"""Views of VMs as cells: a scope as a grid of update and fault domains, standalone VMs in a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.event import EventState
from forewarn.core.explain.polling import PollingPace
from forewarn.core.fleet import Vm
from forewarn.core.scope import Scope
from forewarn.web.portal.fleet_overview import FleetOverview
from forewarn.web.views import BaseView

PaceLookup = Callable[[str], PollingPace | None]  # how a VM polls, by its key; None: it never polled


class VmCell(BaseView, frozen=True, kw_only=True):
    """One VM as a cell of a grid. Field names are JSON keys."""

    key: str  # `subscription id/resource group/name` in lower case
    name: str  # the name of the VM
    state: str  # a VmState: running, noticed, started, frozen, rebooting, moving, stopped, deallocated or gone
    update_domain: int  # from 0
    fault_domain: int  # from 0
    host: str  # "": on none


class UpdateDomainRow(BaseView, frozen=True, kw_only=True):
    """One update domain as a row of a grid, with its VMs on this page by fault domain."""

    update_domain: int  # its number, from 0
    in_progress: bool  # an act is in progress on a VM of the update domain, on this page or not
    places: tuple[tuple[VmCell, ...], ...]  # its VMs in each of the grid's `fault_domains`, in order; some may be empty

    @property
    def vms(self) -> tuple[VmCell, ...]:
        """The VMs of the update domain on this page, sorted by fault domain."""
        return tuple(vm for place in self.places for vm in place)


class VmBlockView(BaseView, frozen=True, kw_only=True):
    """A block of VMs with its status: a scope, or standalone VMs of a resource group. Names are JSON keys."""

    scope: str  # its id; "" for standalone VMs
    title: str  # such as `web` or `workers/pg-0`
    vms: tuple[VmCell, ...]  # on this page
    size: int  # all VMs of `scopes` that the user may see
    scopes: tuple[str, ...]  # ids; for standalone VMs one per VM on this page
    enabled: int  # how many of the scopes are enabled
    silent_s: float | None  # real time since the latest poll of its VMs; None: none
    polling: int  # how many of the VMs in `size` polled in the last minute of real time
    events: int  # live events of its scopes
    next_not_before: Timestamp | None  # the earliest NotBefore of the scheduled ones; None: there are none
    in_progress: tuple[int, ...]  # update domains with an act in progress, ascending; empty for standalone VMs

    @property
    def fault_domains(self) -> tuple[int, ...]:
        """The numbers of the fault domains of the VMs on this page, sorted: the columns of the grid."""
        return tuple(sorted({cell.fault_domain for cell in self.vms}))

    @property
    def is_diagonal(self) -> bool:
        """Whether the VMs on this page are in several fault domains, and each update domain only in one."""
        pairs = {(cell.update_domain, cell.fault_domain) for cell in self.vms}
        return len(self.fault_domains) > 1 and len(pairs) == len({domain for domain, _ in pairs})

    def rows(self) -> tuple[UpdateDomainRow, ...]:
        """Return the rows of the grid, one per update domain of the VMs on this page, sorted by number."""
        places: dict[tuple[int, int], list[VmCell]] = defaultdict(list)
        for cell in self.vms:
            places[cell.update_domain, cell.fault_domain].append(cell)
        return tuple(
            UpdateDomainRow(
                update_domain=domain,
                in_progress=domain in self.in_progress,
                places=tuple(tuple(places[domain, fault_domain]) for fault_domain in self.fault_domains),
            )
            for domain in sorted({domain for domain, _ in places})
        )


def vm_cell(vm: Vm, overview: FleetOverview) -> VmCell:
    """Return the cell of a VM, with its current state from the overview; GONE if it is not there."""
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
    visible_keys: Collection[str],
    pace_of: PaceLookup,
    overview: FleetOverview,
    *,
    title: str,
) -> VmBlockView:
    single_scope = scopes[0] if len(scopes) == 1 and not scopes[0].id.startswith("vm:") else None
    paces = [pace for pace in map(pace_of, visible_keys) if pace is not None]
    live = [event for scope in scopes for event in scope.live_events()]
    return VmBlockView(
        scope=single_scope.id if single_scope is not None else "",
        title=title,
        vms=tuple(vm_cell(vm, overview) for vm in vms),
        size=len(visible_keys),
        scopes=tuple(scope.id for scope in scopes),
        enabled=sum(scope.is_enabled for scope in scopes),
        silent_s=min((pace.silent_s for pace in paces), default=None),
        polling=sum(not pace.is_silent for pace in paces),
        events=len(live),
        next_not_before=timestamp(min((e.not_before for e in live if e.status is EventState.SCHEDULED), default=None)),
        in_progress=_active_update_domains(single_scope) if single_scope is not None else (),
    )


def _active_update_domains(scope: Scope) -> tuple[int, ...]:
    affected = {act.vm for event in scope.live_events() for act in event.unfinished_acts}
    return tuple(sorted({vm.update_domain for vm in scope.present_vms if vm.key in affected})) if affected else ()
