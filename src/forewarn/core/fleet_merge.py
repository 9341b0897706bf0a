"""Merges a declared fleet with the running one: what stays, is added, returns or is missing.

Chooses hosts for new VMs from the current load, because the file was read without knowing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from forewarn.core.event import Event
from forewarn.core.fleet import Host, Vm
from forewarn.core.fleetfile.reader import DeclaredFleet
from forewarn.core.placement import HostAllocator

# What a file says of a VM. Everything else (its id, host, power) the running fleet owns, and no file resets it.
_DECLARED_FIELDS = frozenset(
    {
        "computer_name", "location", "zone", "size", "os_type", "availability_set", "scale_set", "placement_group",
        "cloud_service", "update_domain", "fault_domain", "priority", "eviction_policy", "terminate_notice_min",
        "auto_approve", "tags", "program", "environment", "directory", "address",
    }
)  # fmt: skip


class FleetMerge(msgspec.Struct, frozen=True, kw_only=True):
    declared: DeclaredFleet
    hosts: tuple[tuple[Host, Host], ...]  # in both: as they are, as they would be
    new_hosts: tuple[Host, ...]
    missing_hosts: tuple[Host, ...]
    vms: tuple[tuple[Vm, Vm], ...]  # in both: as they are, as they would be
    new_vms: tuple[Vm, ...]
    resurrected_vms: tuple[Vm, ...]  # were deleted, and come back
    still_deleted_vms: tuple[Vm, ...]  # were deleted, and stay so
    missing_vms: tuple[Vm, ...]
    remove_missing: bool
    live_events: tuple[Event, ...]

    @property
    def hosts_after(self) -> tuple[Host, ...]:
        kept = () if self.remove_missing else self.missing_hosts
        return (*(new for _, new in self.hosts), *self.new_hosts, *kept)

    @property
    def vms_after(self) -> tuple[Vm, ...]:
        kept = () if self.remove_missing else self.missing_vms
        return (*(new for _, new in self.vms), *self.new_vms, *self.resurrected_vms, *kept)


def merge_fleet(
    proposal: DeclaredFleet,
    *,
    hosts: Sequence[Host],
    vms: Sequence[Vm],
    live_events: Sequence[Event],
    resurrect: bool,
    remove_missing: bool,
) -> FleetMerge:
    known_hosts = {host.name.casefold(): host for host in hosts}
    named_hosts = {host.name.casefold(): host for host in proposal.hosts}
    known = {vm.key: vm for vm in vms}
    named = {vm.key: vm for vm in proposal.vms}
    present = [vm for vm in vms if vm.removed_at is None]
    gone = [vm for key, vm in named.items() if key in known and known[key].removed_at is not None]
    prospect = FleetMerge(
        declared=proposal,
        hosts=tuple(
            (host, _merge_host(host, named_hosts[key])) for key, host in known_hosts.items() if key in named_hosts
        ),
        new_hosts=tuple(host for key, host in named_hosts.items() if key not in known_hosts),
        missing_hosts=tuple(host for key, host in known_hosts.items() if key not in named_hosts),
        vms=tuple((vm, _merge_vm(vm, named[vm.key], proposal)) for vm in present if vm.key in named),
        new_vms=tuple(vm for key, vm in named.items() if key not in known),
        resurrected_vms=tuple(gone) if resurrect else (),
        still_deleted_vms=() if resurrect else tuple(known[vm.key] for vm in gone),
        missing_vms=tuple(vm for vm in present if vm.key not in named),
        remove_missing=remove_missing,
        live_events=tuple(live_events),
    )
    return _with_hosts_for_new_vms(_with_old_addresses(prospect, known))


def _merge_host(old: Host, new: Host) -> Host:
    """Its spelling and its health are the running fleet's."""
    return msgspec.structs.replace(new, name=old.name, health=old.health)


def _merge_vm(old: Vm, new: Vm, proposal: DeclaredFleet) -> Vm:
    said = _DECLARED_FIELDS - proposal.origins[old.key].unspecified_fields
    return msgspec.structs.replace(old, **{field: getattr(new, field) for field in said})


def _with_old_addresses(prospect: FleetMerge, known: dict[str, Vm]) -> FleetMerge:
    """A VM that comes back has its old address again, unless the file gives one or somebody has it now."""
    taken = {vm.address for vm in prospect.vms_after}

    def with_address(vm: Vm) -> Vm:
        old = known[vm.key].address
        return vm if vm.address or old in taken else msgspec.structs.replace(vm, address=old)

    return msgspec.structs.replace(prospect, resurrected_vms=tuple(with_address(vm) for vm in prospect.resurrected_vms))


def _with_hosts_for_new_vms(prospect: FleetMerge) -> FleetMerge:
    """Newcomers on the hosts that are the best now; the file chose without knowing who is there already."""
    names = {host.name.casefold(): host.name for host in prospect.hosts_after}
    origins = prospect.declared.origins
    coming = {vm.key: vm for vm in (*prospect.new_vms, *prospect.resurrected_vms)}
    pinned = {
        key: _with_host(vm, names.get(vm.host.casefold(), ""))
        for key, vm in coming.items()
        if "host" not in origins[key].unspecified_fields
    }
    settled = [vm for vm in prospect.vms_after if vm.key not in coming]
    seating = HostAllocator(
        prospect.hosts_after, [*_vms_at_destinations(settled, prospect.live_events), *pinned.values()]
    )

    def seated(vm: Vm) -> Vm:
        if vm.key in pinned:
            return pinned[vm.key]
        host = seating.choose_host(vm) or ""
        seating.assign(vm, host)
        return _with_host(vm, host)

    return msgspec.structs.replace(
        prospect,
        new_vms=tuple(seated(vm) for vm in prospect.new_vms),
        resurrected_vms=tuple(seated(vm) for vm in prospect.resurrected_vms),
    )


def _vms_at_destinations(vms: Iterable[Vm], live_events: Iterable[Event]) -> list[Vm]:
    """VMs that a started event is moving count where they are going."""
    going = {act.vm: act.to_host for event in live_events for act in event.unfinished_acts if act.to_host}
    return [_with_host(vm, going.get(vm.key, vm.host)) for vm in vms]


def _with_host(vm: Vm, host: str) -> Vm:
    return vm if vm.host == host else msgspec.structs.replace(vm, host=host)
