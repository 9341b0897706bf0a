"""Expands the tables of a fleet file into numbered hosts and VMs, in the order of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice
from typing import Any

import msgspec

from forewarn.core.fleet import MAX_PLACEMENT_GROUP, Host, Vm, vm_key
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.naming import (
    fill_pattern,
    flexible_instance_ids,
    instance_host_name,
    is_pattern,
    numbered_pattern,
)
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
    """The VMs that one table of a fleet file declares, with the facts that later checks need."""

    table: ParsedTable[Any]  # the table that declares them: of a scale set, a role or [[vms]]
    vms: list[Vm]  # without vm_id, and with a host only if the table names one
    unspecified_fields: frozenset[str]  # fields of Vm that the file does not fix: chosen when it is added, then kept
    has_clear_location: bool  # False: a reported problem leaves their location or parent unclear


def expand_hosts(
    file: ParsedFleetFile, problems: ProblemCollector
) -> list[tuple[Host, ParsedTable[tables.HostsTable]]]:
    found: list[tuple[Host, ParsedTable[tables.HostsTable]]] = []
    for table in file.hosts:
        check_zone(table, f"host {table.content.name!r}", problems)
        if check_names(table, "host", problems):
            found += [(host, table) for host in _numbered_hosts(table, file.defaults.content.location)]
    return found


def _numbered_hosts(table: ParsedTable[tables.HostsTable], location: str) -> Iterator[Host]:
    content = table.content
    pattern = numbered_pattern(content.name, counted=table.has("count"))
    for n in range(content.count):
        zone = content.zones[n % len(content.zones)] if content.zones else content.zone
        yield Host(name=fill_pattern(pattern, content.first + n), location=content.location or location, zone=zone)


def expand_vms(file: ParsedFleetFile, inherited: InheritedValues, problems: ProblemCollector) -> list[VmBatch]:
    """Return the VMs that all tables declare, one batch per table in file order, without chosen hosts."""
    parents = read_parents(file, inherited)
    check_groups(file, problems)
    check_parents(parents, problems)

    series = [*_instance_series(file, parents, problems), *_declared_series(file, inherited, parents, problems)]
    _check_parents_have_vms(parents, series, file, problems)

    rotation = _DomainRotation()
    batches = [_vm_batch(one, rotation, problems) for one in series]
    return sorted(batches, key=lambda batch: batch.table.line())


def _vm_batch(series: _VmSeries, rotation: _DomainRotation, problems: ProblemCollector) -> VmBatch:
    return VmBatch(
        table=series.table,
        vms=list(_expand_series(series, rotation, problems)),
        unspecified_fields=series.unspecified_fields,
        has_clear_location=_has_clear_location(series.table, series.parent),
    )


def _has_clear_location(table: ParsedTable[Any], parent: ParentResource | None) -> bool:
    zone_keys = table.given_keys & {"zone", "zones"}
    contradicts = len(zone_keys) == 2 or (zone_keys and table.has("availability_set"))
    lacks_parent = parent is None and PARENT_KEYS & table.given_keys
    invalid = table.invalid_keys & _LOCATION_KEYS or (parent and parent.table.invalid_keys & _LOCATION_KEYS)
    return not (contradicts or lacks_parent or invalid)


def _instance_series(
    file: ParsedFleetFile, parents: list[ParentResource], problems: ProblemCollector
) -> Iterator[_VmSeries]:
    """Yield the instances of scale sets and roles. They take update domains before the VMs of [[vms]] do."""
    for parent, table in zip(parents, [*file.availability_sets, *file.scale_sets, *file.cloud_services], strict=True):
        if isinstance(table.content, tables.ScaleSetTable) and table.has("count"):
            make_series = _flexible_set_series if parent.template.is_flexible else _scale_set_series
            yield make_series(parent, table.content)
        for role in file.roles.get(table.path, []) if isinstance(table.content, tables.CloudServiceTable) else []:
            if check_role(role, problems):
                yield _role_series(role, parent)


def _scale_set_series(parent: ParentResource, content: tables.ScaleSetTable) -> _VmSeries:
    """Name instances `set_7`, with hostname `set000007` (spec §4.2)."""
    prefix = content.computer_name_prefix or content.name
    return _VmSeries(
        table=parent.table,
        template=parent.template,
        parent=parent,
        name=lambda n: f"{content.name}_{n}",
        computer_name=lambda n: instance_host_name(prefix, n),
        rotation_key=f"{parent.table.path}",
        count=content.count,
        zones=content.zones,
        address=content.address,
    )


def _flexible_set_series(parent: ParentResource, content: tables.ScaleSetTable) -> _VmSeries:
    """Name VMs `set_1a2b3c4d`, with hostname `set1a2b3c4d` (spec §14.5)."""
    prefix, template = content.computer_name_prefix or content.name, parent.template
    set_key = vm_key(template.subscription_id, template.resource_group, content.name)
    ids = tuple(islice(flexible_instance_ids(set_key), content.count))
    return _VmSeries(
        table=parent.table,
        template=template,
        parent=parent,
        name=lambda n: f"{content.name}_{ids[n]}",
        computer_name=lambda n: f"{prefix}{ids[n]}",
        rotation_key=f"{parent.table.path}",
        count=content.count,
        zones=content.zones,
        address=content.address,
    )


def _role_series(role: ParsedTable[tables.RoleTable], service: ParentResource) -> _VmSeries:
    """Name role instances `FrontEnd_IN_0` (spec §4.2)."""

    def name(n: int) -> str:
        return f"{role.content.name}_IN_{n}"

    return _VmSeries(
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
    file: ParsedFleetFile, inherited: InheritedValues, parents: list[ParentResource], problems: ProblemCollector
) -> Iterator[_VmSeries]:
    for table in file.vms:
        standalone = inherited.template(table)
        parent = find_parent(table, parents, standalone, file, problems)
        template = apply_table(parent.template, table) if parent else standalone
        check_vms(table, template, parent, problems)
        if check_patterns(table, problems):
            yield _vms_table_series(table, template, parent)


def _vms_table_series(table: ParsedTable[tables.VmsTable], template: Vm, parent: ParentResource | None) -> _VmSeries:
    content, counted = table.content, table.has("count")
    name = numbered_pattern(content.name, counted=counted)
    computer_name = numbered_pattern(content.computer_name, counted=counted) if content.computer_name else name
    if table.has("placement_group"):
        template = msgspec.structs.replace(template, placement_group=content.placement_group)
    return _VmSeries(
        table=table,
        template=template,
        parent=parent,
        name=lambda n: fill_pattern(name, n),
        computer_name=lambda n: fill_pattern(computer_name, n),
        rotation_key=f"{parent.table.path}" if parent else "",
        count=content.count,
        first=content.first,
        zones=content.zones or (parent.zones if parent and not table.has("zone") else ()),
        address=content.address,
        host=content.host,
    )


def _check_parents_have_vms(
    parents: list[ParentResource], series: list[_VmSeries], file: ParsedFleetFile, problems: ProblemCollector
) -> None:
    """Report scale sets and cloud services without VMs; an availability set may be empty."""
    parents_with_vms = {id(one.parent) for one in series}
    all_vms_known = "vms" not in file.invalid_tables
    for parent in parents:
        if (
            parent.key == "availability_set"
            or id(parent) in parents_with_vms
            or not all_vms_known
            or "count" in parent.table.invalid_keys
        ):
            continue
        remedy = "write count = 3 below it" if parent.key == "scale_set" else "add [[cloud_services.roles]] below it"
        problems.add(parent.table.line("name"), f"{parent.label} {parent.name!r} has no VM", remedy)


_CHOSEN_FIELDS = frozenset({"computer_name", "update_domain", "fault_domain", "address", "host"})
_METADATA_ADDRESS = "169.254.169.254"  # of the metadata endpoint itself (spec §2.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _VmSeries:
    """How the VMs of one table are made: a template, and what depends on the number of a VM."""

    table: ParsedTable[Any]  # a scale set, a role or [[vms]]
    template: Vm  # a nameless VM with the values that all of them have
    parent: ParentResource | None  # None: they are in no set or service
    name: Callable[[int], str]  # by number
    computer_name: Callable[[int], str]  # by number
    rotation_key: str = ""  # series with the same key share one rotation of update domains and placement groups
    count: int = 1
    first: int = 0  # the number of the first VM
    zones: tuple[str, ...] = ()  # given to the VMs in turn; (): the zone of the template
    address: str = ""  # of the first VM, counted up from there, or a pattern with {n}; "": none
    host: str = ""  # a name or a pattern with {n}; "": chosen later

    @property
    def unspecified_fields(self) -> frozenset[str]:
        """Names of fields of Vm that the file does not set: chosen when the VM is added, and then kept."""
        chosen = set(_CHOSEN_FIELDS - self.table.given_keys)
        if self.template.placement_group == tables.AUTO_PLACEMENT_GROUP:
            chosen.add("placement_group")
        if self.table.has("computer_name_prefix"):
            chosen.discard("computer_name")
        if self.zones:
            chosen.add("zone")
        if not (self.table.has("approve_all_down") or (self.parent and self.parent.table.has("approve_all_down"))):
            chosen.add("approves_all_down")  # then a change through Azure's API stays
        return frozenset(chosen)


class _DomainRotation:
    """Counts the VMs of each set over all tables that declare them, to give them domains in turn."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def next_index(self, series: _VmSeries) -> int:
        key = f"{series.rotation_key} {series.template.placement_group}"
        self._taken[key] += 1
        return self._taken[key] - 1


def _expand_series(series: _VmSeries, rotation: _DomainRotation, problems: ProblemCollector) -> Iterator[Vm]:
    template, parent, zones = series.template, series.parent, series.zones
    update_domains = parent.update_domains if parent and not series.table.has("update_domain") else 0
    fault_domains = parent.fault_domains if parent and not series.table.has("fault_domain") else 0
    for i, n in enumerate(range(series.first, series.first + series.count)):
        index = rotation.next_index(series) if parent else 0
        yield msgspec.structs.replace(
            template,
            name=series.name(n),
            computer_name=series.computer_name(n),
            zone=zones[i % len(zones)] if zones else template.zone,
            update_domain=index % update_domains if update_domains else template.update_domain,
            fault_domain=index % fault_domains if fault_domains else template.fault_domain,
            placement_group=_placement_group(template, index),
            address=_address(series, i, n, problems) if series.address else "",
            host=fill_pattern(series.host, n) if series.host else "",
        )


def _placement_group(template: Vm, index: int) -> str:
    if template.placement_group != tables.AUTO_PLACEMENT_GROUP:
        return template.placement_group
    return f"pg-{index // MAX_PLACEMENT_GROUP}"


def _address(series: _VmSeries, i: int, n: int, problems: ProblemCollector) -> str:
    line = series.table.line("address")
    written = fill_pattern(series.address, n) if is_pattern(series.address) else series.address
    offset = 0 if is_pattern(series.address) else i
    try:
        address = ip_address(written) + offset
    except ValueError:
        what = (
            f"address {written!r} plus {offset} is not an IP address" if offset else f"{written!r} is not an IP address"
        )
        remedy = 'write one such as "10.0.0.4"; with a count and no {n}, addresses count up from it'
        problems.add(line, what, remedy, rule="address")
        return ""
    if address.is_multicast or address.is_unspecified or str(address) == _METADATA_ADDRESS:
        what = f"a VM cannot have the address '{address}'"
        problems.add(line, what, 'write one such as "10.0.0.4"', rule="address")
    return str(address)
