"""Compares a plan with the machine: which changes are pending, and the differences in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forewarn.machines.guest_network.plan import FormerValue, HostState, NetworkPlan, device_of
from forewarn.machines.guest_network.ruleset import (
    FAMILIES,
    METADATA_ADDRESS,
    TABLE,
    Element,
    SetElements,
    fixed_part,
    read_elements,
)

_SET_MEANINGS = {
    "marks": "the mark",
    "ports": "the guard",
    "macs": "the MAC",
    "addressed": "the restriction to its addresses",
    "addresses": "the address",
    "served": "the exemption from connection tracking",
    "taps": "the guard",
    "with_mac": "the restriction to its MAC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What must be changed on this host so that it is as planned; `pending_changes` computes it."""

    ruleset: tuple[str, ...]  # why the firewall's tables must be loaded again, in clauses; (): they need not
    sysctls: Mapping[str, int]  # to be set, by path below /proc/sys
    restored: Mapping[str, int]  # sysctls no longer in the plan, to be set back to these former values, by path
    add_address: bool  # whether loopback must get the metadata address, because no device has it
    added_rules: frozenset[tuple[int, int]]  # routing rules to add: mark and routing table
    deleted_rules: frozenset[tuple[int, int]]  # our own rules to delete: mark and routing table
    added_routes: frozenset[tuple[int, str]]  # default routes to add: routing table and device
    deleted_routes: frozenset[tuple[int, str]]  # our own routes to delete: routing table and device

    def __bool__(self) -> bool:
        return bool(
            self.ruleset or self.sysctls or self.restored or self.add_address or self.added_rules
            or self.deleted_rules or self.added_routes or self.deleted_routes
        )  # fmt: skip


def pending_changes(
    plan: NetworkPlan,
    machine: HostState,
    *,
    former: Mapping[str, FormerValue],
    loaded: Mapping[str, list[dict[str, Any]]],
) -> Changes:
    """Return what must change so that the host (`machine`) is as planned."""
    return Changes(
        ruleset=tuple(_ruleset_differences(plan.elements, machine.tables, loaded)),
        sysctls={path: value for path, value in plan.sysctls.items() if machine.sysctls.get(path) != value},
        restored=restorable_sysctls(machine, {path: was for path, was in former.items() if path not in plan.sysctls}),
        add_address=not machine.address_devices,
        added_rules=plan.rules - machine.rules,
        deleted_rules=machine.rules - plan.rules,
        added_routes=plan.routes - machine.routes,
        deleted_routes=machine.routes - plan.routes,
    )


def restorable_sysctls(machine: HostState, former: Mapping[str, FormerValue]) -> dict[str, int]:
    """Return the former values of sysctls, by path, that differ from today's and can be restored."""
    restored = {}
    for path, was in former.items():
        link = machine.links.get(device_of(path))
        if path in machine.sysctls and machine.sysctls[path] != was.value and was.index == (link.index if link else 0):
            restored[path] = was.value
    return restored


def _ruleset_differences(
    wanted: Mapping[str, SetElements],
    tables: Mapping[str, list[dict[str, Any]]],
    loaded: Mapping[str, list[dict[str, Any]]],
) -> Iterable[str]:
    for family in FAMILIES:
        if family not in tables:
            yield f"the firewall has no table {family} {TABLE}"
            continue
        found = read_elements(tables[family])
        for name, elements in wanted[family].items():
            yield from _element_differences(name, elements, found.get(name, frozenset()))
        if fixed_part(tables[family]) != loaded.get(family):
            yield f"the rules of table {family} {TABLE} are not those that were loaded"


def _element_differences(name: str, wanted: frozenset[Element], found: frozenset[Element]) -> Iterable[str]:
    meaning = _SET_MEANINGS[name]
    for element in sorted(wanted - found):
        yield f"the firewall lacks {meaning} of {_describe_element(element)}"
    for element in sorted(found - wanted):
        yield f"the firewall has {meaning} of {_describe_element(element)}, which is not in the plan"


def _describe_element(element: Element) -> str:
    device, *values = element
    shown = [f"{value:#x}" if isinstance(value, int) else str(value) for value in values]
    return f"{device} ({' '.join(shown)})" if shown else str(device)


def describe_changes(changes: Changes, plan: NetworkPlan, machine: HostState) -> list[str]:
    """Return a clause, without a full stop, for each pending change: what the host has or lacks now."""
    devices = dict(plan.routes | machine.routes)
    lines = list(changes.ruleset)
    for path, value in (*changes.sysctls.items(), *changes.restored.items()):
        lines.append(f"{sysctl_name(path)} is {machine.sysctls.get(path, 'not set')} instead of {value}")
    if changes.add_address:
        lines.append(f"no device has the address {METADATA_ADDRESS}")
    for mark, table in sorted(changes.added_rules):
        lines.append(f"there is no rule for refusals with mark {mark:#x} ({devices.get(table, 'no device')})")
    for mark, table in sorted(changes.deleted_rules):
        lines.append(f"there is a rule for mark {mark:#x} and table {table}, which is not in the plan")
    for table, device in sorted(changes.added_routes):
        lines.append(f"there is no route for refusals to {device} in table {table}")
    for table, device in sorted(changes.deleted_routes):
        lines.append(f"there is a route to {device} in table {table}, which is not in the plan")
    return lines


def sysctl_name(path: str) -> str:
    """Return a path below /proc/sys as sysctl names it: net.ipv4.fwmark_reflect."""
    return ".".join(part.replace(".", "/") for part in path.split("/"))
