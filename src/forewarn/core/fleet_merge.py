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

# The fields of a VM that a file sets. The running fleet owns all others (id, host, power); no file resets them.
_DECLARED_FIELDS = frozenset(
    {
        "computer_name", "location", "zone", "size", "os_type", "availability_set", "scale_set",
        "orchestration", "placement_group", "cloud_service", "update_domain", "fault_domain",
        "update_domain_count", "fault_domain_count", "priority", "eviction_policy", "terminate_notice_min",
        "auto_approve", "approves_all_down", "narrow_delivery", "tags", "program", "environment", "directory",
        "address",
    }
)  # fmt: skip


class FleetMerge(msgspec.Struct, frozen=True, kw_only=True):
    """A declared fleet matched with the running one: every host and VM of either, by what happens to it."""

    declared: DeclaredFleet
    hosts: tuple[tuple[Host, Host], ...]  # in both fleets: (as it is, as it would be)
    new_hosts: tuple[Host, ...]  # only declared
    missing_hosts: tuple[Host, ...]  # only in the running fleet
    vms: tuple[tuple[Vm, Vm], ...]  # in both fleets: (as it is, as it would be)
    new_vms: tuple[Vm, ...]  # only declared; on the host that they name, else a chosen one, else none ("")
    resurrected_vms: tuple[Vm, ...]  # were deleted, and are added again
    still_deleted_vms: tuple[Vm, ...]  # declared, but were deleted and stay deleted
    missing_vms: tuple[Vm, ...]  # only in the running fleet, without deleted ones
    remove_missing: bool  # whether the missing hosts and VMs are removed; else they are kept
    live_events: tuple[Event, ...]  # of the running fleet

    @property
    def hosts_after(self) -> tuple[Host, ...]:
        kept = () if self.remove_missing else self.missing_hosts
        return (*(new for _, new in self.hosts), *self.new_hosts, *kept)

    @property
    def vms_after(self) -> tuple[Vm, ...]:
        """All present VMs that the fleet would have after the merge, as they would be then."""
        kept = () if self.remove_missing else self.missing_vms
        return (*(new for _, new in self.vms), *self.new_vms, *self.resurrected_vms, *kept)


def merge_fleet(
    declared: DeclaredFleet,
    *,
    hosts: Sequence[Host],
    vms: Sequence[Vm],
    live_events: Sequence[Event],
    resurrect: bool,
    remove_missing: bool,
) -> FleetMerge:
    """Match a declared fleet with the running one, and choose hosts for added VMs that name none.

    `vms` includes removed VMs; VMs that are moving, by `live_events`, count on their new hosts. An added VM that no
    healthy host can take has no host in the result.
    """
    known_hosts = {host.name.casefold(): host for host in hosts}
    named_hosts = {host.name.casefold(): host for host in declared.hosts}
    known = {vm.key: vm for vm in vms}
    named = {vm.key: vm for vm in declared.vms}
    present = [vm for vm in vms if vm.removed_at is None]
    deleted = [vm for key, vm in named.items() if key in known and known[key].removed_at is not None]
    merge = FleetMerge(
        declared=declared,
        hosts=tuple(
            (host, _merge_host(host, named_hosts[key])) for key, host in known_hosts.items() if key in named_hosts
        ),
        new_hosts=tuple(host for key, host in named_hosts.items() if key not in known_hosts),
        missing_hosts=tuple(host for key, host in known_hosts.items() if key not in named_hosts),
        vms=tuple((vm, _merge_vm(vm, named[vm.key], declared)) for vm in present if vm.key in named),
        new_vms=tuple(vm for key, vm in named.items() if key not in known),
        resurrected_vms=tuple(deleted) if resurrect else (),
        still_deleted_vms=() if resurrect else tuple(known[vm.key] for vm in deleted),
        missing_vms=tuple(vm for vm in present if vm.key not in named),
        remove_missing=remove_missing,
        live_events=tuple(live_events),
    )
    return _with_hosts_for_new_vms(_with_old_addresses(merge, known))


def _merge_host(old: Host, new: Host) -> Host:
    """Keep what the running fleet owns: the name's spelling, the health and the version."""
    return msgspec.structs.replace(old, location=new.location, zone=new.zone)


def _merge_vm(old: Vm, new: Vm, declared: DeclaredFleet) -> Vm:
    specified = _DECLARED_FIELDS - declared.origins[old.key].unspecified_fields
    return msgspec.structs.replace(old, **{field: getattr(new, field) for field in specified})


def _with_old_addresses(merge: FleetMerge, known: dict[str, Vm]) -> FleetMerge:
    """Give resurrected VMs their old address, unless the file gives one or another VM has it now."""
    taken = {vm.address for vm in merge.vms_after}

    def with_address(vm: Vm) -> Vm:
        old = known[vm.key].address
        return vm if vm.address or old in taken else msgspec.structs.replace(vm, address=old)

    return msgspec.structs.replace(merge, resurrected_vms=tuple(with_address(vm) for vm in merge.resurrected_vms))


def _with_hosts_for_new_vms(merge: FleetMerge) -> FleetMerge:
    """Choose hosts for new VMs by the current load; reading the file chose them without knowing the load."""
    names = {host.name.casefold(): host.name for host in merge.hosts_after}
    origins = merge.declared.origins
    added = {vm.key: vm for vm in (*merge.new_vms, *merge.resurrected_vms)}
    pinned = {
        key: _with_host(vm, names.get(vm.host.casefold(), ""))
        for key, vm in added.items()
        if "host" not in origins[key].unspecified_fields
    }
    present = [vm for vm in merge.vms_after if vm.key not in added]
    allocator = HostAllocator(merge.hosts_after, [*_vms_at_destinations(present, merge.live_events), *pinned.values()])

    def with_best_host(vm: Vm) -> Vm:
        if vm.key in pinned:
            return pinned[vm.key]
        host = allocator.choose_host(vm) or ""
        allocator.assign(vm, host)
        return _with_host(vm, host)

    return msgspec.structs.replace(
        merge,
        new_vms=tuple(with_best_host(vm) for vm in merge.new_vms),
        resurrected_vms=tuple(with_best_host(vm) for vm in merge.resurrected_vms),
    )


def _vms_at_destinations(vms: Iterable[Vm], live_events: Iterable[Event]) -> list[Vm]:
    """Return the VMs, those that a started event moves already on their destination host."""
    destinations = {act.vm: act.to_host for event in live_events for act in event.unfinished_acts if act.to_host}
    return [_with_host(vm, destinations.get(vm.key, vm.host)) for vm in vms]


def _with_host(vm: Vm, host: str) -> Vm:
    return vm if vm.host == host else msgspec.structs.replace(vm, host=host)
