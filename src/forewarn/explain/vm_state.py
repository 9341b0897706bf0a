"""How a VM is, in one word: what a person who looks at a fleet wants to know first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from forewarn.core.cause import Verb
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Power, Vm, key_in_scope


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
    """Of a VM and the events of its scope, in the order they were published."""
    if vm.removed_at is not None:
        return VmState.GONE
    return state_from((meaning_of(event).get(vm.key) for event in events), vm.power)


def meaning_of(event: Event) -> Mapping[str, VmState]:
    """What an event makes of which VM, by their keys. One whose act has an outcome is done with, and not among them."""
    match event.status:
        case Status.SCHEDULED:
            return {key_in_scope(event.scope_id, name): VmState.NOTICED for name in event.vms}
        case Status.STARTED:
            return {act.vm: _DOWN.get(act.verb, VmState.STARTED) for act in event.owed}
        case _:
            return {}


def state_from(meanings: Iterable[VmState | None], power: Power) -> VmState:
    """What is being done to a VM counts before how it was left, and that before what is to come."""
    noticed = False
    for meaning in meanings:
        if meaning in UNDER_WAY:
            return meaning
        noticed = noticed or meaning is VmState.NOTICED
    return _OFF.get(power) or (VmState.NOTICED if noticed else VmState.RUNNING)
