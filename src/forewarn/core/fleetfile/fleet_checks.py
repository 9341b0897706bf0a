"""Checks across all VMs of a fleet file: duplicate names, addresses, placement groups, hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forewarn.base.wording import similar_names
from forewarn.core.fleet import MAX_FLEXIBLE_SET, MAX_PLACEMENT_GROUP, Host, Vm
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.expansion import VmBatch
from forewarn.core.fleetfile.parser import ParsedTable
from forewarn.core.fleetfile.problems import ProblemCollector


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
