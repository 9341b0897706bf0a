"""Expands the tables of a fleet file into numbered hosts and VMs, in the order of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import msgspec

from forewarn.core.fleet import MAX_PLACEMENT_GROUP, Host, Vm
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.naming import fill_pattern, instance_host_name, is_pattern, numbered_pattern
from forewarn.core.fleetfile.parents import (
    PARENT_KEYS,
    InheritedValues,
    ParentResource,
    apply_table,
    find_parent,
    read_parents,
)
from forewarn.core.fleetfile.parser import ParsedFleetFile, ParsedTable
from forewarn.core.fleetfile.problems import ProblemCollector
from forewarn.core.fleetfile.table_checks import (
    check_groups,
    check_names,
    check_parents,
    check_patterns,
    check_role,
    check_vms,
    check_zone,
)

_LOCATION_KEYS = PARENT_KEYS | {"location", "zone", "zones", "host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VmBatch:
    """The VMs of one table."""

    table: ParsedTable[Any]
    vms: list[Vm]
    unspecified_fields: frozenset[str]
    has_clear_location: bool  # False: problems told already leave open where they belong


def expand_hosts(
    file: ParsedFleetFile, findings: ProblemCollector
) -> list[tuple[Host, ParsedTable[tables.HostsTable]]]:
    found: list[tuple[Host, ParsedTable[tables.HostsTable]]] = []
    for table in file.hosts:
        check_zone(table, f"host {table.content.name!r}", findings)
        if check_names(table, "host", findings):
            found += [(host, table) for host in _numbered_hosts(table, file.defaults.content.location)]
    return found


def _numbered_hosts(table: ParsedTable[tables.HostsTable], location: str) -> Iterator[Host]:
    says = table.content
    pattern = numbered_pattern(says.name, counted=table.has("count"))
    for n in range(says.count):
        zone = says.zones[n % len(says.zones)] if says.zones else says.zone
        yield Host(name=fill_pattern(pattern, says.first + n), location=says.location or location, zone=zone)


def expand_vms(file: ParsedFleetFile, homes: InheritedValues, findings: ProblemCollector) -> list[VmBatch]:
    parents = read_parents(file, homes)
    check_groups(file, findings)
    check_parents(parents, findings)

    series = [*_instance_series(file, parents, findings), *_declared_series(file, homes, parents, findings)]
    _check_parents_have_vms(parents, series, file, findings)

    benches = DomainRotation()
    batches = [_vm_batch(one, benches, findings) for one in series]
    return sorted(batches, key=lambda batch: batch.table.line())


def _vm_batch(series: VmSeries, benches: DomainRotation, findings: ProblemCollector) -> VmBatch:
    return VmBatch(
        table=series.table,
        vms=list(expand_series(series, benches, findings)),
        unspecified_fields=series.unspecified_fields,
        has_clear_location=_has_clear_location(series.table, series.parent),
    )


def _has_clear_location(table: ParsedTable[Any], parent: ParentResource | None) -> bool:
    """Whether the tables say, without contradiction, where the VMs belong."""
    zoned = table.given_keys & {"zone", "zones"}
    torn = len(zoned) == 2 or (zoned and table.has("availability_set"))
    orphan = parent is None and PARENT_KEYS & table.given_keys
    unsound = table.invalid_keys & _LOCATION_KEYS or (parent and parent.table.invalid_keys & _LOCATION_KEYS)
    return not (torn or orphan or unsound)


def _instance_series(
    file: ParsedFleetFile, parents: list[ParentResource], findings: ProblemCollector
) -> Iterator[VmSeries]:
    """The instances of scale sets and roles. They take their seats before any VM that is listed singly."""
    for parent, table in zip(parents, [*file.availability_sets, *file.scale_sets, *file.cloud_services], strict=True):
        if isinstance(table.content, tables.ScaleSetTable) and table.has("count"):
            yield _scale_set_series(parent, table.content)
        for role in file.roles.get(table.path, []) if isinstance(table.content, tables.CloudServiceTable) else []:
            if check_role(role, findings):
                yield _role_series(role, parent)


def _scale_set_series(parent: ParentResource, says: tables.ScaleSetTable) -> VmSeries:
    """Spec §4.2: instance `set_7`, hostname `set000007`."""
    prefix = says.computer_name_prefix or says.name
    return VmSeries(
        table=parent.table,
        template=parent.template,
        parent=parent,
        name=lambda n: f"{says.name}_{n}",
        computer_name=lambda n: instance_host_name(prefix, n),
        rotation_key=f"{parent.table.path}",
        count=says.count,
        zones=says.zones,
        address=says.address,
    )


def _role_series(role: ParsedTable[tables.RoleTable], service: ParentResource) -> VmSeries:
    """Spec §4.2: role instance `FrontEnd_IN_0`."""

    def name(n: int) -> str:
        return f"{role.content.name}_IN_{n}"

    return VmSeries(
        table=role,
        template=apply_table(service.template, role),
        parent=service,
        name=name,
        computer_name=name,
        rotation_key=f"{role.path}",
        count=role.content.count,
        address=role.content.address,
    )


def _declared_series(
    file: ParsedFleetFile, homes: InheritedValues, parents: list[ParentResource], findings: ProblemCollector
) -> Iterator[VmSeries]:
    """The VMs of [[vms]]."""
    for table in file.vms:
        alone = homes.template(table)
        parent = find_parent(table, parents, alone, file, findings)
        template = apply_table(parent.template, table) if parent else alone
        check_vms(table, template, parent, findings)
        if check_patterns(table, findings):
            yield _vms_table_series(table, template, parent)


def _vms_table_series(table: ParsedTable[tables.VmsTable], template: Vm, parent: ParentResource | None) -> VmSeries:
    says, counted = table.content, table.has("count")
    name = numbered_pattern(says.name, counted=counted)
    computer_name = numbered_pattern(says.computer_name, counted=counted) if says.computer_name else name
    if table.has("placement_group"):
        template = msgspec.structs.replace(template, placement_group=says.placement_group)
    return VmSeries(
        table=table,
        template=template,
        parent=parent,
        name=lambda n: fill_pattern(name, n),
        computer_name=lambda n: fill_pattern(computer_name, n),
        rotation_key=f"{parent.table.path}" if parent else "",
        count=says.count,
        first=says.first,
        zones=says.zones or (parent.zones if parent and not table.has("zone") else ()),
        address=says.address,
        host=says.host,
    )


def _check_parents_have_vms(
    parents: list[ParentResource], series: list[VmSeries], file: ParsedFleetFile, findings: ProblemCollector
) -> None:
    """A scale set or service of nothing is a slip of the pen; an availability set may stay empty."""
    peopled = {id(one.parent) for one in series}
    judged = "vms" not in file.invalid_tables
    for parent in parents:
        if (
            parent.key == "availability_set"
            or id(parent) in peopled
            or not judged
            or "count" in parent.table.invalid_keys
        ):
            continue
        remedy = "write count = 3 below it" if parent.key == "scale_set" else "add [[cloud_services.roles]] below it"
        findings.add(parent.table.line("name"), f"{parent.label} {parent.name!r} has no VM", remedy)


_CHOSEN_FIELDS = frozenset({"computer_name", "update_domain", "fault_domain", "address", "host"})
_METADATA_ADDRESS = "169.254.169.254"  # spec §2.1: the service itself


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSeries:
    """How the VMs of one table are made."""

    table: ParsedTable[Any]
    template: Vm
    parent: ParentResource | None
    name: Callable[[int], str]
    computer_name: Callable[[int], str]
    rotation_key: str = ""  # those on one bench take update domains and placement groups in turn
    count: int = 1
    first: int = 0
    zones: tuple[str, ...] = ()
    address: str = ""
    host: str = ""

    @property
    def unspecified_fields(self) -> frozenset[str]:
        """What the file does not say: chosen when a VM is added, and kept from then on."""
        chosen = set(_CHOSEN_FIELDS - self.table.given_keys)
        if self.template.placement_group == tables.AUTO_PLACEMENT_GROUP:
            chosen.add("placement_group")
        if self.table.has("computer_name_prefix"):
            chosen.discard("computer_name")
        if self.zones:
            chosen.add("zone")
        return frozenset(chosen)


class DomainRotation:
    """Who sits where: VMs of one set take its update domains in turn, whichever tables they come from."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def next_index(self, series: VmSeries) -> int:
        bench = f"{series.rotation_key} {series.template.placement_group}"
        self._taken[bench] += 1
        return self._taken[bench] - 1


def expand_series(series: VmSeries, benches: DomainRotation, findings: ProblemCollector) -> Iterator[Vm]:
    template, parent, zones = series.template, series.parent, series.zones
    update_domains = parent.update_domains if parent and not series.table.has("update_domain") else 0
    fault_domains = parent.fault_domains if parent and not series.table.has("fault_domain") else 0
    for i, n in enumerate(range(series.first, series.first + series.count)):
        seat = benches.next_index(series) if parent else 0
        yield msgspec.structs.replace(
            template,
            name=series.name(n),
            computer_name=series.computer_name(n),
            zone=zones[i % len(zones)] if zones else template.zone,
            update_domain=seat % update_domains if update_domains else template.update_domain,
            fault_domain=seat % fault_domains if fault_domains else template.fault_domain,
            placement_group=_placement_group(template, seat),
            address=_address(series, i, n, findings) if series.address else "",
            host=fill_pattern(series.host, n) if series.host else "",
        )


def _placement_group(template: Vm, seat: int) -> str:
    if template.placement_group != tables.AUTO_PLACEMENT_GROUP:
        return template.placement_group
    return f"pg-{seat // MAX_PLACEMENT_GROUP}"


def _address(series: VmSeries, i: int, n: int, findings: ProblemCollector) -> str:
    """The address of the i-th VM, whose number is n: from the pattern, or counted up from the first one."""
    line = series.table.line("address")
    written = fill_pattern(series.address, n) if is_pattern(series.address) else series.address
    further = 0 if is_pattern(series.address) else i
    try:
        address = ip_address(written) + further
    except ValueError:
        what = f"address {written!r} has not {further} more after it" if further else f"{written!r} is no IP address"
        remedy = 'write one such as "10.0.0.4"; with a count and no {n}, addresses count up from it'
        findings.add(line, what, remedy, rule="address")
        return ""
    if address.is_multicast or address.is_unspecified or str(address) == _METADATA_ADDRESS:
        what = f"address '{address}' is not one that a VM can have"
        findings.add(line, what, 'write one such as "10.0.0.4"', rule="address")
    return str(address)
