"""How a VM is, in one word: what a person who looks at a fleet wants to know first."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from forewarn.core.cause import Verb
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Power, Vm


class VmState(StrEnum):
    RUNNING = "running"
    NOTICED = "noticed"  # an event of it is scheduled
    STARTED = "started"  # an event of it has started, and is none of the following
    FROZEN = "frozen"
    REBOOTING = "rebooting"
    MOVING = "moving"  # to another host
    STOPPED = "stopped"
    DEALLOCATED = "deallocated"
    GONE = "gone"


_DOWN = {
    Verb.FREEZE: VmState.FROZEN,
    Verb.MIGRATE: VmState.MOVING,
    Verb.REBOOT: VmState.REBOOTING,
    Verb.REIMAGE: VmState.REBOOTING,
    Verb.REDEPLOY: VmState.MOVING,
}
_OFF = {Power.STOPPED: VmState.STOPPED, Power.DEALLOCATED: VmState.DEALLOCATED}

# In which something is being done to it.
UNDER_WAY = frozenset({VmState.STARTED, VmState.FROZEN, VmState.REBOOTING, VmState.MOVING})


def vm_state(vm: Vm, events: Iterable[Event]) -> VmState:
    """Of a VM and the live events of its scope: what is being done to it counts before what is to come."""
    if vm.removed_at is not None:
        return VmState.GONE
    name = vm.name.casefold()
    mine = [event for event in events if event.is_live and any(one.casefold() == name for one in event.vms)]
    for event in mine:
        if (state := _under_way(vm, event)) is not None:
            return state
    if vm.power in _OFF:
        return _OFF[vm.power]
    return VmState.NOTICED if any(event.status is Status.SCHEDULED for event in mine) else VmState.RUNNING


def _under_way(vm: Vm, event: Event) -> VmState | None:
    """None: it has not started, or is done with this VM."""
    if event.status is not Status.STARTED:
        return None
    owed = [act for act in event.owed if act.vm == vm.key]
    return _DOWN.get(owed[0].verb, VmState.STARTED) if owed else None
