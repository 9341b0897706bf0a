"""What one host must know of a scope: its own VMs, and those that an act is bringing to it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from forewarn.cluster.messages import HostScope
from forewarn.core.event import EventState
from forewarn.core.scope import Scope
from forewarn.metadata import PublishedScope
from forewarn.metadata.workers.messages import scope_message


def host_id(name: str) -> str:
    """Return the key of a host: its name in lower case, as `Host.id`."""
    return name.casefold()


def vms_by_host(scope: Scope) -> dict[str, tuple[str, ...]]:
    """Return, by host key, the keys of the scope's VMs on that host, or brought to it by a started act."""
    # So the destination of a move knows the VM before it arrives, and meanwhile the VM is listed under both hosts.
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
    """Return, by VM key, the source addresses of the scope's present VMs, without VMs that have none."""
    return {vm.key: vm.address for vm in scope.present_vms if vm.address}


def host_scope(
    scope: Scope, published: PublishedScope, vms: Collection[str], addresses: Mapping[str, str]
) -> HostScope:
    """Return what one host must know of this scope: the fact with those of its VMs that are on this host."""
    update = scope_message(published, only=vms)
    return HostScope(update, scope.version, {vm: addresses[vm] for vm in vms if vm in addresses})
