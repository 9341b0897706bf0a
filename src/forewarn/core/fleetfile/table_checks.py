"""Checks of single tables of a fleet file: names, zones, priority, domains, duplicates."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from forewarn.core.fleet import Priority, Vm
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.naming import fill_pattern, name_error, numbered_pattern, pattern_error, plain_name_error
from forewarn.core.fleetfile.parents import PARENT_KEYS, ParentResource
from forewarn.core.fleetfile.parser import ParsedFleetFile, ParsedTable
from forewarn.core.fleetfile.problems import ProblemCollector


def check_groups(file: ParsedFleetFile, findings: ProblemCollector) -> None:
    once = _DuplicateCheck(findings)
    for subscription in file.subscriptions:
        says = subscription.content
        _check_plain_name(subscription, says.name, findings, limit=90)
        once.check(subscription, f"subscription {says.name!r}", says.name.casefold())
        once.check(subscription, f"subscription id {says.id!r}", says.id.casefold(), key="id")
    for group in file.resource_groups:
        _check_plain_name(group, group.content.name, findings, limit=90)
        named = (group.content.subscription.casefold(), group.content.name.casefold())
        once.check(group, f"resource group {group.content.name!r}", named)


def check_parents(parents: list[ParentResource], findings: ProblemCollector) -> None:
    once = _DuplicateCheck(findings)
    for parent in parents:
        thing = f"{parent.label} {parent.name!r}"
        _check_plain_name(parent.table, parent.name, findings, limit=56)  # with room for _1000000
        check_zone(parent.table, thing, findings)
        check_priority(parent.table, parent.template, thing, findings)
        once.check(parent.table, thing, (parent.key, parent.group_key, parent.name.casefold()))


class _DuplicateCheck:
    """Nothing may be declared again."""

    def __init__(self, findings: ProblemCollector) -> None:
        self._problems = findings
        self._seen: dict[Hashable, int] = {}

    def check(self, table: ParsedTable[Any], thing: str, identity: Hashable, *, key: str = "name") -> None:
        first = self._seen.get((key, identity))
        if first is None:
            self._seen[(key, identity)] = table.line(key)
        else:
            what = f"{thing} is declared again, first on line {first}"
            self._problems.add(table.line(key), what, f"keep one of them, or give this one another {key}")


def check_role(role: ParsedTable[tables.RoleTable], findings: ProblemCollector) -> bool:
    return _check_plain_name(role, role.content.name, findings, limit=53)  # with room for _IN_1000000


def _check_plain_name(table: ParsedTable[Any], name: str, findings: ProblemCollector, *, limit: int) -> bool:
    fault = plain_name_error(name, limit=limit)
    if fault:
        findings.add(table.line("name"), f"the name {name!r} {fault}", 'write a plain name, such as name = "prod"')
    return not fault


def check_names(
    table: ParsedTable[tables.VmsTable] | ParsedTable[tables.HostsTable], thing: str, findings: ProblemCollector
) -> bool:
    """Whether every name that the table makes can be one; the last number makes the longest."""
    says = table.content
    fault = pattern_error(says.name)
    if not fault:
        pattern = numbered_pattern(says.name, counted=table.has("count"))
        fault = name_error(fill_pattern(pattern, says.first + says.count - 1))
    if fault:
        remedy = 'write a name of up to 64 letters without slashes, such as "web-0", "web-{n}" or "web-{n:03}"'
        findings.add(table.line("name"), f"the {thing} name {says.name!r} {fault}", remedy)
    return not fault


def check_zone(table: ParsedTable[Any], thing: str, findings: ProblemCollector) -> None:
    if table.has("zone") and table.has("zones"):
        findings.add(table.line("zones"), f"{thing} has both zone and zones", "keep one of them")


def check_priority(table: ParsedTable[Any], template: Vm, thing: str, findings: ProblemCollector) -> None:
    """Spot, eviction policy and terminate notification: whether a VM or its scale set says them."""
    spot = template.priority is Priority.SPOT
    if spot and template.terminate_notice_min and {"priority", "terminate_notification"} & table.given_keys:
        what = f"{thing} is Spot, and a Spot VM gets no terminate notification (spec §6.3)"
        findings.add(table.line("terminate_notification", "priority"), what, "leave out one of the two")
    if table.has("eviction_policy") and not spot and "priority" not in table.invalid_keys:
        what = f"{thing} has an eviction policy but is not Spot"
        remedy = 'write priority = "Spot" as well, or leave out eviction_policy'
        findings.add(table.line("eviction_policy"), what, remedy)


def check_vms(
    table: ParsedTable[tables.VmsTable], template: Vm, parent: ParentResource | None, findings: ProblemCollector
) -> None:
    thing = f"VM {table.content.name!r}"
    check_zone(table, thing, findings)
    check_priority(table, template, thing, findings)
    if table.has("availability_set") and (table.has("zone") or table.has("zones")):
        what = f"{thing} is in an availability set and in a zone, which cannot be (spec §7.1)"
        findings.add(table.line("zone", "zones"), what, "leave out one of the two")
    if table.has("placement_group") and not {"scale_set"} & (table.given_keys | table.invalid_keys):
        what = f"{thing} has a placement group but no scale set"
        findings.add(table.line("placement_group"), what, "write scale_set as well, or leave it out")
    if parent and table.has("auto_approve"):
        _report_auto_approval(table, parent, findings)
    if parent or not PARENT_KEYS & (table.given_keys | table.invalid_keys):
        _check_domain(table, parent, "update_domain", parent.update_domains if parent else 1, findings)
        _check_domain(table, parent, "fault_domain", parent.fault_domains if parent else 1, findings)


def _report_auto_approval(
    table: ParsedTable[tables.VmsTable], parent: ParentResource, findings: ProblemCollector
) -> None:
    what = f"VM {table.content.name!r} is in {parent.label} {parent.name!r} and has no auto_approve of its own"
    remedy = f"move auto_approve to the {parent.label}, line {parent.table.line()}"
    if parent.key == "cloud_service":
        remedy = "leave it out: nothing is approved automatically in a cloud service"
    findings.add(table.line("auto_approve"), what, remedy)


def _check_domain(
    table: ParsedTable[tables.VmsTable],
    parent: ParentResource | None,
    key: str,
    domains: int,
    findings: ProblemCollector,
) -> None:
    value = getattr(table.content, key)
    if not table.has(key) or value < domains:
        return
    word = key.replace("_", " ")
    if parent is None:
        what, remedy = f"VM {table.content.name!r} is in no set and so in {word} 0, not {value}", f"leave out {key}"
    else:
        what = f"{parent.label} {parent.name!r} has no {word} {value}, it has {domains}, counted from 0"
        remedy = f"write {key} = {domains - 1} or less, or {key}s = {value + 1} on line {parent.table.line()}"
    findings.add(table.line(key), what, remedy)


def check_patterns(table: ParsedTable[tables.VmsTable], findings: ProblemCollector) -> bool:
    """Whether the names, computer names and hosts of a table can be made."""
    keys = ("computer_name", "address", "host")
    faulty = {key: fault for key in keys if (fault := pattern_error(getattr(table.content, key)))}
    for key, fault in faulty.items():
        what = f"{key} {getattr(table.content, key)!r} {fault}"
        findings.add(table.line(key), what, "write {n} where the number goes, or {n:03} for three digits")
    return check_names(table, "VM", findings) and not faulty
