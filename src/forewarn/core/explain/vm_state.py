"""The state of a VM in one word, computed from its power state and the live events of its scope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from forewarn.core.cause import Verb, VmEffect
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import PowerState, Vm, vm_key_in_scope


class VmState(StrEnum):
    """The state of a VM in one word: what maintenance does to it, else its power state; see `vm_state`."""

    RUNNING = "running"  # it runs, and no event affects it now
    EVENT_SCHEDULED = "noticed"  # it runs, and an event that lists it is scheduled
    STARTED = "started"  # an act on it is in progress, other than the following
    FROZEN = "frozen"  # by a freeze in progress
    REBOOTING = "rebooting"  # a reboot or reimage is in progress
    MOVING = "moving"  # to another host: a live migration or redeployment is in progress
    STOPPED = "stopped"  # its power state
    DEALLOCATED = "deallocated"  # its power state
    GONE = "gone"  # it was removed from the fleet


_STATE_BY_POWER = {PowerState.STOPPED: VmState.STOPPED, PowerState.DEALLOCATED: VmState.DEALLOCATED}

# The states of a VM during maintenance.
MAINTENANCE_STATES = frozenset({VmState.STARTED, VmState.FROZEN, VmState.REBOOTING, VmState.MOVING})


def vm_state(vm: Vm, events: Iterable[Event]) -> VmState:
    """Return the state of a VM from its power state and the live events of its scope."""
    if vm.removed_at is not None:
        return VmState.GONE
    return combine_vm_states((vm_states_during(event).get(vm.key) for event in events), vm.power)


def vm_states_during(event: Event) -> Mapping[str, VmState]:
    """Return the state that an event puts each of its VMs into, by VM key."""
    match event.status:
        case EventState.SCHEDULED:
            return {vm_key_in_scope(event.scope_id, name): VmState.EVENT_SCHEDULED for name in event.vms}
        case EventState.STARTED:
            return {act.vm: _state_during(act.verb) for act in event.unfinished_acts}
        case _:
            return {}


def _state_during(verb: Verb) -> VmState:
    if verb.rules.moves:
        return VmState.MOVING
    return {VmEffect.PAUSE: VmState.FROZEN, VmEffect.REBOOT: VmState.REBOOTING}.get(verb.rules.effect, VmState.STARTED)


def combine_vm_states(states: Iterable[VmState | None], power: PowerState) -> VmState:
    """Return the state of a VM from its states during several events (None: not affected) and its power."""
    is_scheduled = False
    for state in states:
        if state in MAINTENANCE_STATES:
            return state
        is_scheduled = is_scheduled or state is VmState.EVENT_SCHEDULED
    return _STATE_BY_POWER.get(power) or (VmState.EVENT_SCHEDULED if is_scheduled else VmState.RUNNING)
