"""Reads the text of a fleet file into a declared fleet; raises InvalidFleetFile with every problem.

The store owns the running fleet; `core.fleet_diff` compares it with the declared one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from forewarn.base.wording import similar_names
from forewarn.core.fleet import MAX_FLEXIBLE_SET, MAX_PLACEMENT_GROUP, Host, Vm
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.expansion import InheritedValues, VmBatch, expand_hosts, expand_vms
from forewarn.core.fleetfile.parser import ParsedFleetFile, ParsedTable, parse_fleet_file
from forewarn.core.fleetfile.problems import InvalidFleetFile, ProblemCollector
from forewarn.core.placement import HostAllocator

# Checks across all VMs of a fleet file: duplicate names, addresses, placement groups, hosts.


def check_hosts(hosts: list[tuple[Host, ParsedTable[tables.HostsTable]]], problems: ProblemCollector) -> None:
    """Report hosts whose names occur twice, ignoring letter case, to `problems`; raises nothing."""
    seen: dict[str, int] = {}
    for host, table in hosts:
        first = seen.get(host.name.casefold())
        if first is not None:
            what = f"host {host.name!r} is declared again, first on line {first}"
            problems.add(table.line("name"), what, "give each host a name of its own", rule="host twice")
        seen.setdefault(host.name.casefold(), table.line("name"))


def check_fleet(batches: list[VmBatch], problems: ProblemCollector) -> None:
    """Report VMs with the same name or address, too large sets, and sets or services in several locations."""
    _check_names(batches, problems)
    _check_addresses(batches, problems)
    _check_placement_groups(batches, problems)
    _check_locations(batches, problems)


def _vms_with_batches(batches: list[VmBatch]) -> Iterator[tuple[Vm, VmBatch]]:
    return ((vm, batch) for batch in batches for vm in batch.vms)


def _check_names(batches: list[VmBatch], problems: ProblemCollector) -> None:
    seen: dict[str, int] = {}
    for vm, batch in _vms_with_batches(batches):
        first = seen.get(vm.key)
        if first is not None:
            what = f"resource group {vm.resource_group!r} has a VM {vm.name!r} already, from line {first}"
            remedy = "give one of them another name or resource_group (upper and lower case are the same)"
            problems.add(batch.table.line("name"), what, remedy, rule="name twice")
        else:
            seen[vm.key] = batch.table.line("name")


def _check_addresses(batches: list[VmBatch], problems: ProblemCollector) -> None:
    seen: dict[str, tuple[str, int]] = {}
    for vm, batch in _vms_with_batches(batches):
        if not vm.address:
            continue
        line = batch.table.line("address")
        if vm.address in seen:
            name, first = seen[vm.address]
            what = f"address {vm.address!r} of VM {vm.name!r} belongs to VM {name!r} already, from line {first}"
            problems.add(line, what, "give each VM an address of its own, or none", rule="address twice")
        seen.setdefault(vm.address, (vm.name, line))


def _check_placement_groups(batches: list[VmBatch], problems: ProblemCollector) -> None:
    """Report placement groups with more than 100 VMs (spec §7.1), and flexible sets with more than 1,000."""
    counts: Counter[str] = Counter()
    for vm, batch in _vms_with_batches(batches):
        if not vm.scale_set:
            continue
        counts[vm.scope_id] += 1
        if vm.is_flexible and counts[vm.scope_id] == MAX_FLEXIBLE_SET + 1:
            what = f"scale set {vm.scale_set!r} is Flexible and has more than {MAX_FLEXIBLE_SET:,} VMs"
            problems.add(batch.table.line("count"), what, "write a smaller count, or declare another scale set")
        elif vm.is_uniform_instance and counts[vm.scope_id] == MAX_PLACEMENT_GROUP + 1:
            group = f"placement group {vm.placement_group!r} of scale set {vm.scale_set!r}"
            what = f"{group} has more than {MAX_PLACEMENT_GROUP} VMs (spec §7.1)"
            remedy = "leave out placement_group to get groups of 100, or write a smaller count"
            problems.add(batch.table.line("placement_group", "count"), what, remedy)


def _check_locations(batches: list[VmBatch], problems: ProblemCollector) -> None:
    first: dict[str, Vm] = {}
    for vm, batch in _vms_with_batches(batches):
        if not (vm.scale_set or vm.availability_set or vm.cloud_service):
            continue
        other = first.setdefault(vm.scope_id, vm)
        if other.location != vm.location:
            elsewhere = f"VM {other.name!r} of the same set is in {other.location!r}"
            what = f"VM {vm.name!r} is in location {vm.location!r}, but {elsewhere}"
            remedy = "write the same location for all VMs of a set, best at the set itself"
            problems.add(batch.table.line("location", "name"), what, remedy, rule="location")


def check_named_hosts(batches: list[VmBatch], hosts: dict[str, Host], problems: ProblemCollector) -> None:
    """Report VMs whose named host is not declared, or is in another location or zone, to `problems`."""
    for vm, batch in _vms_with_batches(batches):
        if not vm.host:
            continue
        host, line = hosts.get(vm.host.casefold()), batch.table.line("host")
        if host is None:
            close = similar_names(vm.host, [known.name for known in hosts.values()])
            remedy = f"did you mean {close[0]!r}?" if close else "declare it with [[hosts]], or leave out host"
            problems.add(line, f"host {vm.host!r} of VM {vm.name!r} is not declared", remedy, rule="host")
        elif batch.has_clear_location and (host.location, host.zone) != (vm.location, vm.zone):
            what = f"host {host.name!r} is in {location_text(host)}, but VM {vm.name!r} is in {location_text(vm)}"
            problems.add(line, what, "name a host of the same location and zone, or leave out host", rule="host")


def location_text(thing: Host | Vm) -> str:
    """Return the location and zone in words: `location 'local', zone '1'`, or `…, no zone`."""
    return f"location {thing.location!r}, " + (f"zone {thing.zone!r}" if thing.zone else "no zone")


class DeclaredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that a fleet file declares in a [[subscriptions]] table: its id and its name."""

    id: str  # a GUID, or another text
    name: str  # by which tables of the file refer to it


class DeclaredResourceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource group that a fleet file declares, with the subscription and location that it inherits."""

    name: str  # as the file writes it
    subscription_id: str  # its own, else that of [defaults]
    location: str  # its own, else that of [defaults]
    tags: dict[str, str] = {}  # not inherited by its VMs


class VmDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fleet file declares a VM, and which fields of the VM the file leaves open."""

    line: int  # of the name in the table that declares it
    unspecified_fields: frozenset[str]  # fields of Vm: chosen when the VM is added, and kept from then on


class DeclaredFleet(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts and VMs that a valid fleet file declares, in its order.

    VMs have no vm_id yet. They have a host (named in the file, or chosen as if the fleet were empty).
    """

    source: str  # the name of the file, for messages
    hosts: tuple[Host, ...]  # all healthy
    vms: tuple[Vm, ...]  # a table with a count gives several
    origins: dict[str, VmDeclaration]  # where each VM is declared, by its key
    subscriptions: tuple[DeclaredSubscription, ...] = ()
    resource_groups: tuple[DeclaredResourceGroup, ...] = ()


def read_fleet_file(text: str, *, source: str = "fleet.toml") -> DeclaredFleet:
    """Return the fleet that the text of a fleet file declares. Raises InvalidFleetFile with all problems."""
    problems = ProblemCollector()
    file = parse_fleet_file(text, problems)
    declared_fleet = _declared_fleet(file, source, problems) if file else None
    if problems.problems or declared_fleet is None:
        raise InvalidFleetFile(problems.problems, source=source)
    return declared_fleet


def _declared_fleet(file: ParsedFleetFile, source: str, problems: ProblemCollector) -> DeclaredFleet:
    inherited = InheritedValues(file, problems)
    declared = expand_hosts(file, problems)
    batches = expand_vms(file, inherited, problems)
    check_hosts(declared, problems)
    check_fleet(batches, problems)

    hosts = {host.name.casefold(): host for host, _ in declared}
    vms: list[Vm] = []
    if "hosts" not in file.invalid_tables:
        check_named_hosts(batches, hosts, problems)
        vms = _with_hosts(batches, hosts, problems)
    origins = {
        b.table.path: VmDeclaration(line=b.table.line("name"), unspecified_fields=b.unspecified_fields) for b in batches
    }
    return DeclaredFleet(
        source=source,
        hosts=tuple(host for host, _ in declared),
        vms=tuple(vms),
        origins={vm.key: origins[batch.table.path] for batch in batches for vm in batch.vms},
        subscriptions=tuple(DeclaredSubscription(id=t.content.id, name=t.content.name) for t in file.subscriptions),
        resource_groups=_declared_resource_groups(file, inherited),
    )


def _declared_resource_groups(file: ParsedFleetFile, inherited: InheritedValues) -> tuple[DeclaredResourceGroup, ...]:
    return tuple(
        DeclaredResourceGroup(
            name=table.content.name,
            subscription_id=inherited.subscription_id(table),
            location=table.content.location or file.defaults.content.location,
            tags=table.content.tags,
        )
        for table in file.resource_groups
    )


def _with_hosts(batches: list[VmBatch], hosts: dict[str, Host], problems: ProblemCollector) -> list[Vm]:
    """Return every VM with a host: the one it names, else one chosen after all named hosts are counted."""
    named = (vm for batch in batches for vm in batch.vms if vm.host)
    allocator = HostAllocator(hosts.values(), (_with_declared_host_name(vm, hosts) for vm in named))
    return [
        _with_declared_host_name(vm, hosts) if vm.host else _with_chosen_host(vm, batch, allocator, problems)
        for batch in batches
        for vm in batch.vms
    ]


def _with_declared_host_name(vm: Vm, hosts: dict[str, Host]) -> Vm:
    host = hosts.get(vm.host.casefold())
    return msgspec.structs.replace(vm, host=host.name) if host else vm


def _with_chosen_host(vm: Vm, batch: VmBatch, allocator: HostAllocator, problems: ProblemCollector) -> Vm:
    host = allocator.choose_host(vm)
    if host is None:
        if batch.has_clear_location:
            what = f"VM {vm.name!r} has no host to run on: there is no host in {location_text(vm)}"
            remedy = "declare some with [[hosts]], or change the location or zone of one of the two"
            problems.add(batch.table.line("zone", "zones", "location", "name"), what, remedy, rule="no host")
        return vm
    allocator.assign(vm, host)
    return msgspec.structs.replace(vm, host=host)
