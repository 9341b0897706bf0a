"""Reads the VMs that a rollout covers from the store."""

from __future__ import annotations

from forewarn.core.fleet import Vm
from forewarn.core.request import Rollout
from forewarn.core.waves import covers_vm, require_target, require_valid_waves
from forewarn.errors import Rejected
from forewarn.store.interface import Store

_MAX_HOSTS_READ_ALONE = 100


def rollout_vms(store: Store, rollout: Rollout) -> list[Vm]:
    """Return the present VMs that a rollout covers now, even those whose maintenance is done; on hosts, by host."""
    if rollout.scope_id:
        return store.vms(scope_id=rollout.scope_id)
    if len(rollout.hosts) > _MAX_HOSTS_READ_ALONE and len(rollout.hosts) * 4 > store.counts().hosts:
        by_host: dict[str, list[Vm]] = {}  # one read of the fleet is faster than one for each of most of its hosts
        for vm in store.vms():
            by_host.setdefault(vm.host, []).append(vm)
        return [vm for host in rollout.hosts for vm in by_host.get(host, ())]
    if rollout.hosts:
        return [vm for host in rollout.hosts for vm in store.vms(host=host)]
    return [vm for vm in store.vms() if covers_vm(rollout, vm)]


def checked_rollout_vms(store: Store, rollout: Rollout) -> list[Vm]:
    """Return the present VMs that a new rollout covers, after checking its target and waves."""
    if rollout.max_failures < 0:
        raise Rejected(f"max failures {rollout.max_failures} is negative: give 0 (never stop) or more")
    vms = rollout_vms(store, rollout)
    require_target(rollout, vms)
    require_valid_waves(rollout, vms)
    return vms
