"""From tables to hosts and VMs, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from forewarn.core.fleet import Host, Vm
from forewarn.core.fleetfile import form
from forewarn.core.fleetfile.naming import filled, instance_host_name, pattern_for
from forewarn.core.fleetfile.parent import PARENT_KEYS, Homes, Parent, described, parent_for, parents_of
from forewarn.core.fleetfile.problem import Findings
from forewarn.core.fleetfile.series import Benches, Series, vms_of
from forewarn.core.fleetfile.table import FleetFile, Table
from forewarn.core.fleetfile.verdict import (
    judge_groups,
    judge_names,
    judge_parents,
    judge_patterns,
    judge_role,
    judge_vms,
    judge_zone,
)

_PLACE_KEYS = PARENT_KEYS | {"location", "zone", "zones", "host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The VMs of one table."""

    table: Table[Any]
    vms: list[Vm]
    left_open: frozenset[str]
    placeable: bool  # False: problems told already leave open where they belong


def hosts_of(file: FleetFile, findings: Findings) -> list[tuple[Host, Table[form.Hosts]]]:
    found: list[tuple[Host, Table[form.Hosts]]] = []
    for table in file.hosts:
        judge_zone(table, f"host {table.says.name!r}", findings)
        if judge_names(table, "host", findings):
            found += [(host, table) for host in _hosts_alike(table, file.defaults.says.location)]
    return found


def _hosts_alike(table: Table[form.Hosts], location: str) -> Iterator[Host]:
    says = table.says
    pattern = pattern_for(says.name, counted=table.has("count"))
    for n in range(says.count):
        zone = says.zones[n % len(says.zones)] if says.zones else says.zone
        yield Host(name=filled(pattern, says.first + n), location=says.location or location, zone=zone)


def batches_of(file: FleetFile, homes: Homes, findings: Findings) -> list[Batch]:
    parents = parents_of(file, homes)
    judge_groups(file, findings)
    judge_parents(parents, findings)

    series = [*_implied(file, parents, findings), *_declared(file, homes, parents, findings)]
    _must_have_vms(parents, series, file, findings)

    benches = Benches()
    batches = [_batch(one, benches, findings) for one in series]
    return sorted(batches, key=lambda batch: batch.table.line())


def _batch(series: Series, benches: Benches, findings: Findings) -> Batch:
    return Batch(
        table=series.table,
        vms=list(vms_of(series, benches, findings)),
        left_open=series.left_open,
        placeable=_is_clear_where(series.table, series.parent),
    )


def _is_clear_where(table: Table[Any], parent: Parent | None) -> bool:
    """Whether the tables say, without contradiction, where the VMs belong."""
    zoned = table.given & {"zone", "zones"}
    torn = len(zoned) == 2 or (zoned and table.has("availability_set"))
    orphan = parent is None and PARENT_KEYS & table.given
    unsound = table.unsound & _PLACE_KEYS or (parent and parent.table.unsound & _PLACE_KEYS)
    return not (torn or orphan or unsound)


def _implied(file: FleetFile, parents: list[Parent], findings: Findings) -> Iterator[Series]:
    """The instances of scale sets and roles. They take their seats before any VM that is listed singly."""
    for parent, table in zip(parents, [*file.availability_sets, *file.scale_sets, *file.cloud_services], strict=True):
        if isinstance(table.says, form.ScaleSet) and table.has("count"):
            yield _instances(parent, table.says)
        for role in file.roles.get(table.path, []) if isinstance(table.says, form.CloudService) else []:
            if judge_role(role, findings):
                yield _role_instances(role, parent)


def _instances(parent: Parent, says: form.ScaleSet) -> Series:
    """Spec §4.2: instance `set_7`, hostname `set000007`."""
    prefix = says.computer_name_prefix or says.name
    return Series(
        table=parent.table,
        template=parent.template,
        parent=parent,
        name=lambda n: f"{says.name}_{n}",
        computer_name=lambda n: instance_host_name(prefix, n),
        bench=f"{parent.table.path}",
        count=says.count,
        zones=says.zones,
        address=says.address,
    )


def _role_instances(role: Table[form.Role], service: Parent) -> Series:
    """Spec §4.2: role instance `FrontEnd_IN_0`."""

    def name(n: int) -> str:
        return f"{role.says.name}_IN_{n}"

    return Series(
        table=role,
        template=described(service.template, role),
        parent=service,
        name=name,
        computer_name=name,
        bench=f"{role.path}",
        count=role.says.count,
        address=role.says.address,
    )


def _declared(file: FleetFile, homes: Homes, parents: list[Parent], findings: Findings) -> Iterator[Series]:
    """The VMs of [[vms]]."""
    for table in file.vms:
        alone = homes.template(table)
        parent = parent_for(table, parents, alone, file, findings)
        template = described(parent.template, table) if parent else alone
        judge_vms(table, template, parent, findings)
        if judge_patterns(table, findings):
            yield _listed(table, template, parent)


def _listed(table: Table[form.Vms], template: Vm, parent: Parent | None) -> Series:
    says, counted = table.says, table.has("count")
    name = pattern_for(says.name, counted=counted)
    computer_name = pattern_for(says.computer_name, counted=counted) if says.computer_name else name
    if table.has("placement_group"):
        template = msgspec.structs.replace(template, placement_group=says.placement_group)
    return Series(
        table=table,
        template=template,
        parent=parent,
        name=lambda n: filled(name, n),
        computer_name=lambda n: filled(computer_name, n),
        bench=f"{parent.table.path}" if parent else "",
        count=says.count,
        first=says.first,
        zones=says.zones or (parent.zones if parent and not table.has("zone") else ()),
        address=says.address,
        host=says.host,
    )


def _must_have_vms(parents: list[Parent], series: list[Series], file: FleetFile, findings: Findings) -> None:
    """A scale set or service of nothing is a slip of the pen; an availability set may stay empty."""
    peopled = {id(one.parent) for one in series}
    judged = "vms" not in file.unsound
    for parent in parents:
        if parent.key == "availability_set" or id(parent) in peopled or not judged or "count" in parent.table.unsound:
            continue
        remedy = "write count = 3 below it" if parent.key == "scale_set" else "add [[cloud_services.roles]] below it"
        findings.add(parent.table.line("name"), f"{parent.label} {parent.name!r} has no VM", remedy)
