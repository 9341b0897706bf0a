"""VMs alike: what a number tells apart when one table makes many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import msgspec

from forewarn.core.fleet import MAX_PLACEMENT_GROUP, Vm
from forewarn.core.fleetfile import form
from forewarn.core.fleetfile.naming import filled, is_pattern
from forewarn.core.fleetfile.parent import Parent
from forewarn.core.fleetfile.problem import Findings
from forewarn.core.fleetfile.table import Table

_CHOSEN_FOR_IT = frozenset({"computer_name", "update_domain", "fault_domain", "address", "host"})
_METADATA = "169.254.169.254"  # spec §2.1: the service itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How the VMs of one table are made."""

    table: Table[Any]
    template: Vm
    parent: Parent | None
    name: Callable[[int], str]
    computer_name: Callable[[int], str]
    bench: str = ""  # those on one bench take update domains and placement groups in turn
    count: int = 1
    first: int = 0
    zones: tuple[str, ...] = ()
    address: str = ""
    host: str = ""

    @property
    def left_open(self) -> frozenset[str]:
        """What the file does not say: chosen when a VM is added, and kept from then on."""
        chosen = set(_CHOSEN_FOR_IT - self.table.given)
        if self.template.placement_group == form.AUTO:
            chosen.add("placement_group")
        if self.table.has("computer_name_prefix"):
            chosen.discard("computer_name")
        if self.zones:
            chosen.add("zone")
        return frozenset(chosen)


class Benches:
    """Who sits where: VMs of one set take its update domains in turn, whichever tables they come from."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def next_seat(self, series: Series) -> int:
        bench = f"{series.bench} {series.template.placement_group}"
        self._taken[bench] += 1
        return self._taken[bench] - 1


def vms_of(series: Series, benches: Benches, findings: Findings) -> Iterator[Vm]:
    template, parent, zones = series.template, series.parent, series.zones
    update_domains = parent.update_domains if parent and not series.table.has("update_domain") else 0
    fault_domains = parent.fault_domains if parent and not series.table.has("fault_domain") else 0
    for i, n in enumerate(range(series.first, series.first + series.count)):
        seat = benches.next_seat(series) if parent else 0
        yield msgspec.structs.replace(
            template,
            name=series.name(n),
            computer_name=series.computer_name(n),
            zone=zones[i % len(zones)] if zones else template.zone,
            update_domain=seat % update_domains if update_domains else template.update_domain,
            fault_domain=seat % fault_domains if fault_domains else template.fault_domain,
            placement_group=_placement_group(template, seat),
            address=_address(series, i, n, findings) if series.address else "",
            host=filled(series.host, n) if series.host else "",
        )


def _placement_group(template: Vm, seat: int) -> str:
    if template.placement_group != form.AUTO:
        return template.placement_group
    return f"pg-{seat // MAX_PLACEMENT_GROUP}"


def _address(series: Series, i: int, n: int, findings: Findings) -> str:
    """The address of the i-th VM, whose number is n: from the pattern, or counted up from the first one."""
    line = series.table.line("address")
    written = filled(series.address, n) if is_pattern(series.address) else series.address
    further = 0 if is_pattern(series.address) else i
    try:
        address = ip_address(written) + further
    except ValueError:
        what = f"address {written!r} has not {further} more after it" if further else f"{written!r} is no IP address"
        remedy = 'write one such as "10.0.0.4"; with a count and no {n}, addresses count up from it'
        findings.add(line, what, remedy, rule="address")
        return ""
    if address.is_multicast or address.is_unspecified or str(address) == _METADATA:
        what = f"address '{address}' is not one that a VM can have"
        findings.add(line, what, 'write one such as "10.0.0.4"', rule="address")
    return str(address)
