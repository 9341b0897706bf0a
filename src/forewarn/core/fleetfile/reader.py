"""A fleet file, read: the hosts and VMs it proposes. The store is the truth about the fleet; see `difference`."""

from __future__ import annotations

import msgspec

from forewarn.core.fleet import Host, Vm
from forewarn.core.fleetfile.census import judge_fleet, judge_hosts, place, resolve_hosts
from forewarn.core.fleetfile.parent import Homes
from forewarn.core.fleetfile.population import Batch, batches_of, hosts_of
from forewarn.core.fleetfile.problem import BadFleet, Findings, Problem
from forewarn.core.fleetfile.table import FleetFile, read_tables
from forewarn.core.seating import Seating

__all__ = ["BadFleet", "Origin", "Problem", "Proposal", "ResourceGroup", "Subscription", "read_fleet"]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str


class ResourceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    subscription_id: str
    location: str
    tags: dict[str, str] = {}


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the file speaks of a VM, and what it leaves open."""

    line: int
    left_open: frozenset[str]  # fields of Vm: chosen when the VM is added, and kept from then on


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a file asks for, in its order. A VM has no vm_id yet, and no address where the file gives none."""

    source: str
    hosts: tuple[Host, ...]
    vms: tuple[Vm, ...]
    origins: dict[str, Origin]  # by the key of the VM
    subscriptions: tuple[Subscription, ...] = ()
    resource_groups: tuple[ResourceGroup, ...] = ()


def read_fleet(text: str, *, source: str = "fleet.toml") -> Proposal:
    """The proposal that the text makes; BadFleet with all its problems if it makes none."""
    findings = Findings()
    file = read_tables(text, findings)
    proposal = _proposal(file, source, findings) if file else None
    if findings.problems or proposal is None:
        raise BadFleet(findings.problems, source=source)
    return proposal


def _proposal(file: FleetFile, source: str, findings: Findings) -> Proposal:
    homes = Homes(file, findings)
    declared = hosts_of(file, findings)
    batches = batches_of(file, homes, findings)
    judge_hosts(declared, findings)
    judge_fleet(batches, findings)

    hosts = {host.name.casefold(): host for host, _ in declared}
    vms: list[Vm] = []
    if "hosts" not in file.unsound:
        resolve_hosts(batches, hosts, findings)
        vms = _placed(batches, hosts, findings)
    origins = {b.table.path: Origin(line=b.table.line("name"), left_open=b.left_open) for b in batches}
    return Proposal(
        source=source,
        hosts=tuple(host for host, _ in declared),
        vms=tuple(vms),
        origins={vm.key: origins[batch.table.path] for batch in batches for vm in batch.vms},
        subscriptions=tuple(Subscription(id=t.says.id, name=t.says.name) for t in file.subscriptions),
        resource_groups=_resource_groups(file, homes),
    )


def _resource_groups(file: FleetFile, homes: Homes) -> tuple[ResourceGroup, ...]:
    return tuple(
        ResourceGroup(
            name=table.says.name,
            subscription_id=homes.subscription_id(table),
            location=table.says.location or file.defaults.says.location,
            tags=table.says.tags,
        )
        for table in file.resource_groups
    )


def _placed(batches: list[Batch], hosts: dict[str, Host], findings: Findings) -> list[Vm]:
    """Every VM with a host: the one it names, else the best one once those that name theirs are seated."""
    named = (vm for batch in batches for vm in batch.vms if vm.host)
    seating = Seating(hosts.values(), (_spelled(vm, hosts) for vm in named))
    return [
        _spelled(vm, hosts) if vm.host else _seated(vm, batch, seating, findings)
        for batch in batches
        for vm in batch.vms
    ]


def _spelled(vm: Vm, hosts: dict[str, Host]) -> Vm:
    """Its host's name as the host is declared."""
    host = hosts.get(vm.host.casefold())
    return msgspec.structs.replace(vm, host=host.name) if host else vm


def _seated(vm: Vm, batch: Batch, seating: Seating, findings: Findings) -> Vm:
    host = seating.host_for(vm)
    if host is None:
        if batch.placeable:
            what = f"VM {vm.name!r} has nowhere to run: there is no host in {place(vm)}"
            remedy = "declare some with [[hosts]], or change the location or zone of one of the two"
            findings.add(batch.table.line("zone", "zones", "location", "name"), what, remedy, rule="no host")
        return vm
    seating.seat(vm, host)
    return msgspec.structs.replace(vm, host=host)
