"""Reads the text of a fleet file into a declared fleet; raises InvalidFleetFile with every problem.

The store owns the running fleet; `core.fleet_diff` compares it with the declared one.
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
    """A subscription that a fleet file declares in a [[subscriptions]] table: its id and its name."""

    id: str  # a GUID, or another text
    name: str  # by which tables of the file refer to it


class DeclaredResourceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource group that a fleet file declares, with the subscription and location that it inherits."""

    name: str  # as the file writes it
    subscription_id: str  # its own, else that of [defaults]
    location: str  # its own, else that of [defaults]
    tags: dict[str, str] = {}  # not inherited by its VMs


class VmDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fleet file declares a VM, and which fields of the VM the file leaves open."""

    line: int  # of the name in the table that declares it
    unspecified_fields: frozenset[str]  # fields of Vm: chosen when the VM is added, and kept from then on


class DeclaredFleet(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts and VMs that a valid fleet file declares, in its order.

    VMs have no vm_id yet. They have a host (named in the file, or chosen as if the fleet were empty).
    """

    source: str  # the name of the file, for messages
    hosts: tuple[Host, ...]  # all healthy
    vms: tuple[Vm, ...]  # a table with a count gives several
    origins: dict[str, VmDeclaration]  # where each VM is declared, by its key
    subscriptions: tuple[DeclaredSubscription, ...] = ()
    resource_groups: tuple[DeclaredResourceGroup, ...] = ()


def read_fleet_file(text: str, *, source: str = "fleet.toml") -> DeclaredFleet:
    """Return the fleet that the text of a fleet file declares. Raises InvalidFleetFile with all problems."""
    problems = ProblemCollector()
    file = parse_fleet_file(text, problems)
    declared_fleet = _declared_fleet(file, source, problems) if file else None
    if problems.problems or declared_fleet is None:
        raise InvalidFleetFile(problems.problems, source=source)
    return declared_fleet


def _declared_fleet(file: ParsedFleetFile, source: str, problems: ProblemCollector) -> DeclaredFleet:
    inherited = InheritedValues(file, problems)
    declared = expand_hosts(file, problems)
    batches = expand_vms(file, inherited, problems)
    check_hosts(declared, problems)
    check_fleet(batches, problems)

    hosts = {host.name.casefold(): host for host, _ in declared}
    vms: list[Vm] = []
    if "hosts" not in file.invalid_tables:
        check_named_hosts(batches, hosts, problems)
        vms = _with_hosts(batches, hosts, problems)
    origins = {
        b.table.path: VmDeclaration(line=b.table.line("name"), unspecified_fields=b.unspecified_fields) for b in batches
    }
    return DeclaredFleet(
        source=source,
        hosts=tuple(host for host, _ in declared),
        vms=tuple(vms),
        origins={vm.key: origins[batch.table.path] for batch in batches for vm in batch.vms},
        subscriptions=tuple(DeclaredSubscription(id=t.content.id, name=t.content.name) for t in file.subscriptions),
        resource_groups=_declared_resource_groups(file, inherited),
    )


def _declared_resource_groups(file: ParsedFleetFile, inherited: InheritedValues) -> tuple[DeclaredResourceGroup, ...]:
    return tuple(
        DeclaredResourceGroup(
            name=table.content.name,
            subscription_id=inherited.subscription_id(table),
            location=table.content.location or file.defaults.content.location,
            tags=table.content.tags,
        )
        for table in file.resource_groups
    )


def _with_hosts(batches: list[VmBatch], hosts: dict[str, Host], problems: ProblemCollector) -> list[Vm]:
    """Return every VM with a host: the one it names, else one chosen after all named hosts are counted."""
    named = (vm for batch in batches for vm in batch.vms if vm.host)
    allocator = HostAllocator(hosts.values(), (_with_declared_host_name(vm, hosts) for vm in named))
    return [
        _with_declared_host_name(vm, hosts) if vm.host else _with_chosen_host(vm, batch, allocator, problems)
        for batch in batches
        for vm in batch.vms
    ]


def _with_declared_host_name(vm: Vm, hosts: dict[str, Host]) -> Vm:
    host = hosts.get(vm.host.casefold())
    return msgspec.structs.replace(vm, host=host.name) if host else vm


def _with_chosen_host(vm: Vm, batch: VmBatch, allocator: HostAllocator, problems: ProblemCollector) -> Vm:
    host = allocator.choose_host(vm)
    if host is None:
        if batch.has_clear_location:
            what = f"VM {vm.name!r} has no host to run on: there is no host in {location_text(vm)}"
            remedy = "declare some with [[hosts]], or change the location or zone of one of the two"
            problems.add(batch.table.line("zone", "zones", "location", "name"), what, remedy, rule="no host")
        return vm
    allocator.assign(vm, host)
    return msgspec.structs.replace(vm, host=host)
