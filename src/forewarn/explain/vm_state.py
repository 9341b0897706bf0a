"""The state of a VM in one word, computed from its power state and the live events of its scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from forewarn.core.cause import Verb
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import PowerState, Vm, vm_key_in_scope


class VmState(StrEnum):
    RUNNING = "running"
    EVENT_SCHEDULED = "noticed"  # an event of it is scheduled
    STARTED = "started"  # an event of it has started, and is none of the following
    FROZEN = "frozen"
    REBOOTING = "rebooting"
    MOVING = "moving"  # to another host
    STOPPED = "stopped"
    DEALLOCATED = "deallocated"
    GONE = "gone"


_STATE_BY_VERB = {
    Verb.FREEZE: VmState.FROZEN,
    Verb.MIGRATE: VmState.MOVING,
    Verb.REBOOT: VmState.REBOOTING,
    Verb.REIMAGE: VmState.REBOOTING,
    Verb.REDEPLOY: VmState.MOVING,
}
_STATE_BY_POWER = {PowerState.STOPPED: VmState.STOPPED, PowerState.DEALLOCATED: VmState.DEALLOCATED}

# In which something is being done to it.
MAINTENANCE_STATES = frozenset({VmState.STARTED, VmState.FROZEN, VmState.REBOOTING, VmState.MOVING})


def vm_state(vm: Vm, events: Iterable[Event]) -> VmState:
    """Of a VM and the events of its scope, in the order they were published."""
    if vm.removed_at is not None:
        return VmState.GONE
    return combine_vm_states((vm_states_during(event).get(vm.key) for event in events), vm.power)


def vm_states_during(event: Event) -> Mapping[str, VmState]:
    """What an event makes of which VM, by their keys. One whose act has an outcome is done with, and not among them."""
    match event.status:
        case EventState.SCHEDULED:
            return {vm_key_in_scope(event.scope_id, name): VmState.EVENT_SCHEDULED for name in event.vms}
        case EventState.STARTED:
            return {act.vm: _STATE_BY_VERB.get(act.verb, VmState.STARTED) for act in event.unfinished_acts}
        case _:
            return {}


def combine_vm_states(meanings: Iterable[VmState | None], power: PowerState) -> VmState:
    """What is being done to a VM counts before how it was left, and that before what is to come."""
    noticed = False
    for meaning in meanings:
        if meaning in MAINTENANCE_STATES:
            return meaning
        noticed = noticed or meaning is VmState.EVENT_SCHEDULED
    return _STATE_BY_POWER.get(power) or (VmState.EVENT_SCHEDULED if noticed else VmState.RUNNING)
