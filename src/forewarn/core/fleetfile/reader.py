"""Reads the text of a fleet file into a declared fleet; raises InvalidFleetFile with every problem.

The store stays the truth about the running fleet; `core.fleet_diff` compares the two.
"""

from __future__ import annotations

import msgspec

from forewarn.core.fleet import Host, Vm
from forewarn.core.fleetfile.expansion import VmBatch, expand_hosts, expand_vms
from forewarn.core.fleetfile.fleet_checks import check_fleet, check_hosts, check_named_hosts, location_text
from forewarn.core.fleetfile.parents import InheritedValues
from forewarn.core.fleetfile.parser import ParsedFleetFile, parse_fleet_file
from forewarn.core.fleetfile.problems import InvalidFleetFile, ProblemCollector
from forewarn.core.placement import HostAllocator


class DeclaredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str


class DeclaredResourceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    subscription_id: str
    location: str
    tags: dict[str, str] = {}


class VmDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Where the file speaks of a VM, and what it leaves open."""

    line: int
    unspecified_fields: frozenset[str]  # fields of Vm: chosen when the VM is added, and kept from then on


class DeclaredFleet(msgspec.Struct, frozen=True, kw_only=True):
    """What a file asks for, in its order. A VM has no vm_id yet, and no address where the file gives none."""

    source: str
    hosts: tuple[Host, ...]
    vms: tuple[Vm, ...]
    origins: dict[str, VmDeclaration]  # by the key of the VM
    subscriptions: tuple[DeclaredSubscription, ...] = ()
    resource_groups: tuple[DeclaredResourceGroup, ...] = ()


def read_fleet_file(text: str, *, source: str = "fleet.toml") -> DeclaredFleet:
    """The proposal that the text makes; BadFleet with all its problems if it makes none."""
    findings = ProblemCollector()
    file = parse_fleet_file(text, findings)
    proposal = _declared_fleet(file, source, findings) if file else None
    if findings.problems or proposal is None:
        raise InvalidFleetFile(findings.problems, source=source)
    return proposal


def _declared_fleet(file: ParsedFleetFile, source: str, findings: ProblemCollector) -> DeclaredFleet:
    homes = InheritedValues(file, findings)
    declared = expand_hosts(file, findings)
    batches = expand_vms(file, homes, findings)
    check_hosts(declared, findings)
    check_fleet(batches, findings)

    hosts = {host.name.casefold(): host for host, _ in declared}
    vms: list[Vm] = []
    if "hosts" not in file.invalid_tables:
        check_named_hosts(batches, hosts, findings)
        vms = _with_hosts(batches, hosts, findings)
    origins = {
        b.table.path: VmDeclaration(line=b.table.line("name"), unspecified_fields=b.unspecified_fields) for b in batches
    }
    return DeclaredFleet(
        source=source,
        hosts=tuple(host for host, _ in declared),
        vms=tuple(vms),
        origins={vm.key: origins[batch.table.path] for batch in batches for vm in batch.vms},
        subscriptions=tuple(DeclaredSubscription(id=t.content.id, name=t.content.name) for t in file.subscriptions),
        resource_groups=_declared_resource_groups(file, homes),
    )


def _declared_resource_groups(file: ParsedFleetFile, homes: InheritedValues) -> tuple[DeclaredResourceGroup, ...]:
    return tuple(
        DeclaredResourceGroup(
            name=table.content.name,
            subscription_id=homes.subscription_id(table),
            location=table.content.location or file.defaults.content.location,
            tags=table.content.tags,
        )
        for table in file.resource_groups
    )


def _with_hosts(batches: list[VmBatch], hosts: dict[str, Host], findings: ProblemCollector) -> list[Vm]:
    """Every VM with a host: the one it names, else the best one once those that name theirs are seated."""
    named = (vm for batch in batches for vm in batch.vms if vm.host)
    seating = HostAllocator(hosts.values(), (_with_declared_host_name(vm, hosts) for vm in named))
    return [
        _with_declared_host_name(vm, hosts) if vm.host else _with_chosen_host(vm, batch, seating, findings)
        for batch in batches
        for vm in batch.vms
    ]


def _with_declared_host_name(vm: Vm, hosts: dict[str, Host]) -> Vm:
    """Its host's name as the host is declared."""
    host = hosts.get(vm.host.casefold())
    return msgspec.structs.replace(vm, host=host.name) if host else vm


def _with_chosen_host(vm: Vm, batch: VmBatch, seating: HostAllocator, findings: ProblemCollector) -> Vm:
    host = seating.choose_host(vm)
    if host is None:
        if batch.has_clear_location:
            what = f"VM {vm.name!r} has nowhere to run: there is no host in {location_text(vm)}"
            remedy = "declare some with [[hosts]], or change the location or zone of one of the two"
            findings.add(batch.table.line("zone", "zones", "location", "name"), what, remedy, rule="no host")
        return vm
    seating.assign(vm, host)
    return msgspec.structs.replace(vm, host=host)
