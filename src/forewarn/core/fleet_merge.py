"""How the running fleet and a fleet file would come together: who stays, comes, goes, and in which form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from forewarn.core.event import Event
from forewarn.core.fleet import Host, Vm
from forewarn.core.proposal import Proposal
from forewarn.core.seating import Seating

# What a file says of a VM. Everything else (its id, host, power) the running fleet owns, and no file resets it.
_DECLARED = frozenset(
    {
        "computer_name", "location", "zone", "size", "os_type", "availability_set", "scale_set", "placement_group",
        "cloud_service", "update_domain", "fault_domain", "priority", "eviction_policy", "terminate_notice_min",
        "auto_approve", "tags", "program", "environment", "directory", "address",
    }
)  # fmt: skip


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    proposal: Proposal
    hosts: tuple[tuple[Host, Host], ...]  # in both: as they are, as they would be
    new_hosts: tuple[Host, ...]
    missing_hosts: tuple[Host, ...]
    vms: tuple[tuple[Vm, Vm], ...]  # in both: as they are, as they would be
    new_vms: tuple[Vm, ...]
    returning: tuple[Vm, ...]  # were deleted, and come back
    deleted: tuple[Vm, ...]  # were deleted, and stay so
    missing: tuple[Vm, ...]
    remove_missing: bool
    live_events: tuple[Event, ...]

    @property
    def hosts_after(self) -> tuple[Host, ...]:
        kept = () if self.remove_missing else self.missing_hosts
        return (*(new for _, new in self.hosts), *self.new_hosts, *kept)

    @property
    def vms_after(self) -> tuple[Vm, ...]:
        kept = () if self.remove_missing else self.missing
        return (*(new for _, new in self.vms), *self.new_vms, *self.returning, *kept)


def prospect_of(
    proposal: Proposal,
    *,
    hosts: Sequence[Host],
    vms: Sequence[Vm],
    live_events: Sequence[Event],
    resurrect: bool,
    remove_missing: bool,
) -> Prospect:
    known_hosts = {host.name.casefold(): host for host in hosts}
    named_hosts = {host.name.casefold(): host for host in proposal.hosts}
    known = {vm.key: vm for vm in vms}
    named = {vm.key: vm for vm in proposal.vms}
    present = [vm for vm in vms if vm.removed_at is None]
    gone = [vm for key, vm in named.items() if key in known and known[key].removed_at is not None]
    prospect = Prospect(
        proposal=proposal,
        hosts=tuple((host, _kept(host, named_hosts[key])) for key, host in known_hosts.items() if key in named_hosts),
        new_hosts=tuple(host for key, host in named_hosts.items() if key not in known_hosts),
        missing_hosts=tuple(host for key, host in known_hosts.items() if key not in named_hosts),
        vms=tuple((vm, _merged(vm, named[vm.key], proposal)) for vm in present if vm.key in named),
        new_vms=tuple(vm for key, vm in named.items() if key not in known),
        returning=tuple(gone) if resurrect else (),
        deleted=() if resurrect else tuple(known[vm.key] for vm in gone),
        missing=tuple(vm for vm in present if vm.key not in named),
        remove_missing=remove_missing,
        live_events=tuple(live_events),
    )
    return _seated(_readdressed(prospect, known))


def _kept(old: Host, new: Host) -> Host:
    """Its spelling and its health are the running fleet's."""
    return msgspec.structs.replace(new, name=old.name, health=old.health)


def _merged(old: Vm, new: Vm, proposal: Proposal) -> Vm:
    said = _DECLARED - proposal.origins[old.key].left_open
    return msgspec.structs.replace(old, **{field: getattr(new, field) for field in said})


def _readdressed(prospect: Prospect, known: dict[str, Vm]) -> Prospect:
    """A VM that comes back has its old address again, unless the file gives one or somebody has it now."""
    taken = {vm.address for vm in prospect.vms_after}

    def with_address(vm: Vm) -> Vm:
        old = known[vm.key].address
        return vm if vm.address or old in taken else msgspec.structs.replace(vm, address=old)

    return msgspec.structs.replace(prospect, returning=tuple(with_address(vm) for vm in prospect.returning))


def _seated(prospect: Prospect) -> Prospect:
    """Newcomers on the hosts that are the best now; the file chose without knowing who is there already."""
    names = {host.name.casefold(): host.name for host in prospect.hosts_after}
    origins = prospect.proposal.origins
    coming = {vm.key: vm for vm in (*prospect.new_vms, *prospect.returning)}
    pinned = {
        key: _on(vm, names.get(vm.host.casefold(), ""))
        for key, vm in coming.items()
        if "host" not in origins[key].left_open
    }
    settled = [vm for vm in prospect.vms_after if vm.key not in coming]
    seating = Seating(prospect.hosts_after, [*_on_their_way(settled, prospect.live_events), *pinned.values()])

    def seated(vm: Vm) -> Vm:
        if vm.key in pinned:
            return pinned[vm.key]
        host = seating.host_for(vm) or ""
        seating.seat(vm, host)
        return _on(vm, host)

    return msgspec.structs.replace(
        prospect,
        new_vms=tuple(seated(vm) for vm in prospect.new_vms),
        returning=tuple(seated(vm) for vm in prospect.returning),
    )


def _on_their_way(vms: Iterable[Vm], live_events: Iterable[Event]) -> list[Vm]:
    """VMs that a started event is moving count where they are going."""
    going = {act.vm: act.to_host for event in live_events for act in event.owed if act.to_host}
    return [_on(vm, going.get(vm.key, vm.host)) for vm in vms]


def _on(vm: Vm, host: str) -> Vm:
    return vm if vm.host == host else msgspec.structs.replace(vm, host=host)
