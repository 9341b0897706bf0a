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


def check_groups(file: ParsedFleetFile, problems: ProblemCollector) -> None:
    """Report subscriptions and resource groups with bad names, and those declared twice, to `problems`."""
    duplicates = _DuplicateCheck(problems)
    for subscription in file.subscriptions:
        content = subscription.content
        _check_plain_name(subscription, content.name, problems, limit=90)
        duplicates.check(subscription, f"subscription {content.name!r}", content.name.casefold())
        duplicates.check(subscription, f"subscription id {content.id!r}", content.id.casefold(), key="id")
    for group in file.resource_groups:
        _check_plain_name(group, group.content.name, problems, limit=90)
        named = (group.content.subscription.casefold(), group.content.name.casefold())
        duplicates.check(group, f"resource group {group.content.name!r}", named)


def check_parents(parents: list[ParentResource], problems: ProblemCollector) -> None:
    """Report sets and services with bad names, zones or priorities, or declared twice, to `problems`."""
    duplicates = _DuplicateCheck(problems)
    for parent in parents:
        thing = f"{parent.label} {parent.name!r}"
        limit = 55 if parent.template.is_flexible else 56  # leaves characters for _1a2b3c4d or _1000000
        _check_plain_name(parent.table, parent.name, problems, limit=limit)
        check_zone(parent.table, thing, problems)
        _check_priority(parent.table, parent.template, thing, problems)
        _check_no_placement_group(parent.table, parent, problems)
        _check_narrow_delivery(parent, problems)
        duplicates.check(parent.table, thing, (parent.key, parent.group_key, parent.name.casefold()))


def _check_no_placement_group(
    table: ParsedTable[Any], scale_set: ParentResource | None, problems: ProblemCollector
) -> None:
    if scale_set and scale_set.template.is_flexible and table.has("placement_group"):
        what = f"scale set {scale_set.name!r} is Flexible and has no placement groups (spec §14.5)"
        problems.add(table.line("placement_group"), what, "leave out placement_group")


def _check_narrow_delivery(parent: ParentResource, problems: ProblemCollector) -> None:
    domains, table = parent.fault_domains, parent.table
    if parent.template.narrow_delivery and domains != 1 and "fault_domains" not in table.invalid_keys:
        what = f"{parent.label} {parent.name!r} has narrow_delivery and {domains} fault domains (spec §14.6)"
        problems.add(table.line("narrow_delivery"), what, "write fault_domains = 1, or leave out narrow_delivery")


class _DuplicateCheck:
    def __init__(self, problems: ProblemCollector) -> None:
        self._problems = problems
        self._seen: dict[Hashable, int] = {}

    def check(self, table: ParsedTable[Any], thing: str, identity: Hashable, *, key: str = "name") -> None:
        first = self._seen.get((key, identity))
        if first is None:
            self._seen[(key, identity)] = table.line(key)
        else:
            what = f"{thing} is declared again, first on line {first}"
            self._problems.add(table.line(key), what, f"keep one of them, or give this one another {key}")


def check_role(role: ParsedTable[tables.RoleTable], problems: ProblemCollector) -> bool:
    """Return whether the name of a cloud service's role is valid; report it to `problems` if it is not."""
    return _check_plain_name(role, role.content.name, problems, limit=53)  # leaves 11 characters for _IN_1000000


def _check_plain_name(table: ParsedTable[Any], name: str, problems: ProblemCollector, *, limit: int) -> bool:
    error = plain_name_error(name, limit=limit)
    if error:
        problems.add(table.line("name"), f"the name {name!r} {error}", 'write a plain name, such as name = "prod"')
    return not error


def check_names(
    table: ParsedTable[tables.VmsTable] | ParsedTable[tables.HostsTable], thing: str, problems: ProblemCollector
) -> bool:
    """Return whether the names that a [[vms]] or [[hosts]] table makes are valid; if not, report that."""
    content = table.content
    error = pattern_error(content.name)
    if not error:
        pattern = numbered_pattern(content.name, counted=table.has("count"))
        error = name_error(fill_pattern(pattern, content.first + content.count - 1))
    if error:
        remedy = 'write a name of up to 64 characters without slashes, such as "web-0", "web-{n}" or "web-{n:03}"'
        problems.add(table.line("name"), f"the {thing} name {content.name!r} {error}", remedy)
    return not error


def check_zone(table: ParsedTable[Any], thing: str, problems: ProblemCollector) -> None:
    """Report a table that has both zone and zones to `problems`; `thing` names it in the message."""
    if table.has("zone") and table.has("zones"):
        problems.add(table.line("zones"), f"{thing} has both zone and zones", "keep one of them")


def _check_priority(table: ParsedTable[Any], template: Vm, thing: str, problems: ProblemCollector) -> None:
    spot = template.priority is Priority.SPOT
    if spot and template.terminate_notice_min and {"priority", "terminate_notification"} & table.given_keys:
        what = f"{thing} is Spot, and a Spot VM gets no terminate notification (spec §6.3)"
        problems.add(table.line("terminate_notification", "priority"), what, "leave out one of the two")
    if table.has("eviction_policy") and not spot and "priority" not in table.invalid_keys:
        what = f"{thing} has an eviction policy but is not Spot"
        remedy = 'write priority = "Spot" as well, or leave out eviction_policy'
        problems.add(table.line("eviction_policy"), what, remedy)


def check_vms(
    table: ParsedTable[tables.VmsTable], template: Vm, parent: ParentResource | None, problems: ProblemCollector
) -> None:
    """Report contradictions in a [[vms]] table to `problems`, as in zones, priority and domains."""
    thing = f"VM {table.content.name!r}"
    check_zone(table, thing, problems)
    _check_priority(table, template, thing, problems)
    if table.has("availability_set") and (table.has("zone") or table.has("zones")):
        what = f"{thing} is in an availability set and in a zone, which exclude each other (spec §7.1)"
        problems.add(table.line("zone", "zones"), what, "leave out one of the two")
    if table.has("placement_group") and not {"scale_set"} & (table.given_keys | table.invalid_keys):
        what = f"{thing} has a placement group but no scale set"
        problems.add(table.line("placement_group"), what, "write scale_set as well, or leave it out")
    _check_no_placement_group(table, parent, problems)
    for key in ("auto_approve", "approve_all_down"):
        if parent and table.has(key):
            _report_own_policy(table, key, parent, problems)
    if parent or not PARENT_KEYS & (table.given_keys | table.invalid_keys):
        _check_domain(table, parent, "update_domain", parent.update_domains if parent else 1, problems)
        _check_domain(table, parent, "fault_domain", parent.fault_domains if parent else 1, problems)


def _report_own_policy(
    table: ParsedTable[tables.VmsTable], key: str, parent: ParentResource, problems: ProblemCollector
) -> None:
    what = f"VM {table.content.name!r} is in {parent.label} {parent.name!r} and has no {key} of its own"
    remedy = f"move {key} to the {parent.label}, line {parent.table.line()}"
    if parent.key == "cloud_service":
        remedy = "leave it out: nothing is approved automatically in a cloud service"
    problems.add(table.line(key), what, remedy)


def _check_domain(
    table: ParsedTable[tables.VmsTable],
    parent: ParentResource | None,
    key: str,
    domains: int,
    problems: ProblemCollector,
) -> None:
    value = getattr(table.content, key)
    if not table.has(key) or value < domains:
        return
    label = key.replace("_", " ")
    if parent is None:
        what, remedy = f"VM {table.content.name!r} is in no set and so in {label} 0, not {value}", f"leave out {key}"
    else:
        what = f"{parent.label} {parent.name!r} has no {label} {value}: it has {domains}, counted from 0"
        remedy = f"write {key} = {domains - 1} or less, or {key}s = {value + 1} on line {parent.table.line()}"
    problems.add(table.line(key), what, remedy)


def check_patterns(table: ParsedTable[tables.VmsTable], problems: ProblemCollector) -> bool:
    """Return whether a [[vms]] table has valid names, and valid braces in its other patterns."""
    keys = ("computer_name", "address", "host")
    errors = {key: error for key in keys if (error := pattern_error(getattr(table.content, key)))}
    for key, error in errors.items():
        what = f"{key} {getattr(table.content, key)!r} {error}"
        problems.add(table.line(key), what, "write {n} where the number goes, or {n:03} for three digits")
    return check_names(table, "VM", problems) and not errors
