"""What one host must know of a scope: its own VMs, and those that an act is bringing to it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from forewarn.cluster.messages import HostScope
from forewarn.core.event import EventState
from forewarn.core.scope import Scope
from forewarn.metadata import PublishedScope
from forewarn.workers.messages import scope_message


def host_id(name: str) -> str:
    """Return the key of a host: its name in lower case, as `Host.id`."""
    return name.casefold()


def vms_by_host(scope: Scope) -> dict[str, tuple[str, ...]]:
    """Return host key → keys of the scope's VMs on the host, or that an unfinished act brings to it.

    So the destination of a move knows the VM before it arrives, and it is in both. A VM that is on no host, and that no
    act brings to one, is left out.
    """
    found: dict[str, dict[str, None]] = {}
    for vm in scope.present_vms:
        if vm.host:
            found.setdefault(host_id(vm.host), {})[vm.key] = None
    for event in scope.live_events(EventState.STARTED):
        for act in event.unfinished_acts:
            if act.to_host:
                found.setdefault(host_id(act.to_host), {})[act.vm] = None
    return {host: tuple(vms) for host, vms in found.items()}


def vm_addresses(scope: Scope) -> dict[str, str]:
    """Return VM key → source address of the scope's VMs that have one."""
    return {vm.key: vm.address for vm in scope.present_vms if vm.address}


def host_scope(
    scope: Scope, published: PublishedScope, vms: Collection[str], addresses: Mapping[str, str]
) -> HostScope:
    """Return the fact about this scope for a host with these VMs (keys); only for `encode_bus_message`.

    `published` is what the VMs of the scope see, `addresses` are theirs (`vm_addresses`). The facts about VMs in it are
    plain dictionaries, which can only be encoded.
    """
    update = scope_message(published, only=vms)
    return HostScope(update, scope.version, {vm: addresses[vm] for vm in vms if vm in addresses})
