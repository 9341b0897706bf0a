"""What one table may not say: each check adds its problem with a line, what is so, and the way out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from forewarn.core.fleet import Priority, Vm
from forewarn.core.fleetfile import form
from forewarn.core.fleetfile.naming import fault_in_name, fault_in_pattern, fault_in_plain_name, filled, pattern_for
from forewarn.core.fleetfile.parent import PARENT_KEYS, Parent
from forewarn.core.fleetfile.problem import Findings
from forewarn.core.fleetfile.table import FleetFile, Table


def judge_groups(file: FleetFile, findings: Findings) -> None:
    once = _Once(findings)
    for subscription in file.subscriptions:
        says = subscription.says
        _judge_plain_name(subscription, says.name, findings, limit=90)
        once.judge(subscription, f"subscription {says.name!r}", says.name.casefold())
        once.judge(subscription, f"subscription id {says.id!r}", says.id.casefold(), key="id")
    for group in file.resource_groups:
        _judge_plain_name(group, group.says.name, findings, limit=90)
        named = (group.says.subscription.casefold(), group.says.name.casefold())
        once.judge(group, f"resource group {group.says.name!r}", named)


def judge_parents(parents: list[Parent], findings: Findings) -> None:
    once = _Once(findings)
    for parent in parents:
        thing = f"{parent.label} {parent.name!r}"
        _judge_plain_name(parent.table, parent.name, findings, limit=56)  # with room for _1000000
        judge_zone(parent.table, thing, findings)
        judge_priority(parent.table, parent.template, thing, findings)
        once.judge(parent.table, thing, (parent.key, parent.place, parent.name.casefold()))


class _Once:
    """Nothing may be declared again."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: dict[Hashable, int] = {}

    def judge(self, table: Table[Any], thing: str, identity: Hashable, *, key: str = "name") -> None:
        first = self._seen.get((key, identity))
        if first is None:
            self._seen[(key, identity)] = table.line(key)
        else:
            what = f"{thing} is declared again, first on line {first}"
            self._findings.add(table.line(key), what, f"keep one of them, or give this one another {key}")


def judge_role(role: Table[form.Role], findings: Findings) -> bool:
    return _judge_plain_name(role, role.says.name, findings, limit=53)  # with room for _IN_1000000


def _judge_plain_name(table: Table[Any], name: str, findings: Findings, *, limit: int) -> bool:
    fault = fault_in_plain_name(name, limit=limit)
    if fault:
        findings.add(table.line("name"), f"the name {name!r} {fault}", 'write a plain name, such as name = "prod"')
    return not fault


def judge_names(table: Table[form.Vms] | Table[form.Hosts], thing: str, findings: Findings) -> bool:
    """Whether every name that the table makes can be one; the last number makes the longest."""
    says = table.says
    fault = fault_in_pattern(says.name)
    if not fault:
        pattern = pattern_for(says.name, counted=table.has("count"))
        fault = fault_in_name(filled(pattern, says.first + says.count - 1))
    if fault:
        remedy = 'write a name of up to 64 letters without slashes, such as "web-0", "web-{n}" or "web-{n:03}"'
        findings.add(table.line("name"), f"the {thing} name {says.name!r} {fault}", remedy)
    return not fault


def judge_zone(table: Table[Any], thing: str, findings: Findings) -> None:
    if table.has("zone") and table.has("zones"):
        findings.add(table.line("zones"), f"{thing} has both zone and zones", "keep one of them")


def judge_priority(table: Table[Any], template: Vm, thing: str, findings: Findings) -> None:
    """Spot, eviction policy and terminate notification: whether a VM or its scale set says them."""
    spot = template.priority is Priority.SPOT
    if spot and template.terminate_notice_min and {"priority", "terminate_notification"} & table.given:
        what = f"{thing} is Spot, and a Spot VM gets no terminate notification (spec §6.3)"
        findings.add(table.line("terminate_notification", "priority"), what, "leave out one of the two")
    if table.has("eviction_policy") and not spot and "priority" not in table.unsound:
        what = f"{thing} has an eviction policy but is not Spot"
        remedy = 'write priority = "Spot" as well, or leave out eviction_policy'
        findings.add(table.line("eviction_policy"), what, remedy)


def judge_vms(table: Table[form.Vms], template: Vm, parent: Parent | None, findings: Findings) -> None:
    thing = f"VM {table.says.name!r}"
    judge_zone(table, thing, findings)
    judge_priority(table, template, thing, findings)
    if table.has("availability_set") and (table.has("zone") or table.has("zones")):
        what = f"{thing} is in an availability set and in a zone, which cannot be (spec §7.1)"
        findings.add(table.line("zone", "zones"), what, "leave out one of the two")
    if table.has("placement_group") and not {"scale_set"} & (table.given | table.unsound):
        what = f"{thing} has a placement group but no scale set"
        findings.add(table.line("placement_group"), what, "write scale_set as well, or leave it out")
    if parent and table.has("auto_approve"):
        _refuse_auto_approval(table, parent, findings)
    if parent or not PARENT_KEYS & (table.given | table.unsound):
        _judge_domain(table, parent, "update_domain", parent.update_domains if parent else 1, findings)
        _judge_domain(table, parent, "fault_domain", parent.fault_domains if parent else 1, findings)


def _refuse_auto_approval(table: Table[form.Vms], parent: Parent, findings: Findings) -> None:
    what = f"VM {table.says.name!r} is in {parent.label} {parent.name!r} and has no auto_approve of its own"
    remedy = f"move auto_approve to the {parent.label}, line {parent.table.line()}"
    if parent.key == "cloud_service":
        remedy = "leave it out: nothing is approved automatically in a cloud service"
    findings.add(table.line("auto_approve"), what, remedy)


def _judge_domain(table: Table[form.Vms], parent: Parent | None, key: str, domains: int, findings: Findings) -> None:
    value = getattr(table.says, key)
    if not table.has(key) or value < domains:
        return
    word = key.replace("_", " ")
    if parent is None:
        what, remedy = f"VM {table.says.name!r} is in no set and so in {word} 0, not {value}", f"leave out {key}"
    else:
        what = f"{parent.label} {parent.name!r} has no {word} {value}, it has {domains}, counted from 0"
        remedy = f"write {key} = {domains - 1} or less, or {key}s = {value + 1} on line {parent.table.line()}"
    findings.add(table.line(key), what, remedy)


def judge_patterns(table: Table[form.Vms], findings: Findings) -> bool:
    """Whether the names, computer names and hosts of a table can be made."""
    keys = ("computer_name", "address", "host")
    faulty = {key: fault for key in keys if (fault := fault_in_pattern(getattr(table.says, key)))}
    for key, fault in faulty.items():
        what = f"{key} {getattr(table.says, key)!r} {fault}"
        findings.add(table.line(key), what, "write {n} where the number goes, or {n:03} for three digits")
    return judge_names(table, "VM", findings) and not faulty
