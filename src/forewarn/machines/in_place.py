"""Decides, as a pure function, what an act that does not move its VM to another host does next.

A visible effect happens once, even if the service is killed at any time. A reset, for example, is done to a paused VM
in a step of its own: if the VM is found paused in that step, it can be reset again unnoticed, and if it is found
running, it was reset. A VM that the act has paused is always resumed.
"""

from __future__ import annotations

from collections.abc import Callable

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from forewarn.machines.steps import (
    Decision,
    Do,
    End,
    Enter,
    MachineActRecord,
    Observation,
    Operation,
    Step,
    Wait,
    halted_note,
    wait_for_host,
    wait_for_source,
)

_MIGRATING = (MachineState.RECEIVING, MachineState.RECEIVED, MachineState.SENT)


def immediate_end(act: MachineActRecord, *, can_reimage: bool) -> End | None:
    """Return the outcome of an act, even a move, that needs no host; None if it has something to do."""
    name = act.name
    match act.verb:
        case Verb.REAPPLY:
            return End(True, "there was nothing to apply")
        case Verb.DEALLOCATE | Verb.EVICT if not act.source:
            return End(True, f"{name} is on no host")
        case Verb.DELETE:
            return None
        case _ if not act.source:
            return End(False, f"{name} is on no host")
        case Verb.REIMAGE if not can_reimage:
            return End(False, f"{name} cannot be reimaged: this hypervisor does not know the image of its OS disk")
        case Verb.FREEZE | Verb.REBOOT if act.is_stopped:
            return End(True, f"{name} is stopped, and stays stopped")
        case Verb.MIGRATE | Verb.REDEPLOY if not act.destination:
            return End(False, f"{name} has no host to move to")
        case Verb.MIGRATE | Verb.REDEPLOY if act.destination == act.source:
            return End(True, f"{name} is already on {act.destination}")
        case _:
            return None


def first_step(act: MachineActRecord) -> Step:
    """Return the step with which an act, even a move, begins; carries out nothing."""
    if act.is_move:
        return Step.PREPARE
    match act.verb:
        case Verb.FREEZE:
            return Step.PAUSE
        case Verb.START:
            return Step.BOOT
        case Verb.DELETE if not act.source:
            return Step.REMOVE
        case _ if act.is_abrupt:
            return _hard_step(act)
        case _:
            return Step.SHUT_DOWN


def next_in_place(act: MachineActRecord, seen: Observation) -> Decision:
    """Decide what an act that moves no VM does next, from its record and what its host reports."""
    host = act.source
    if act.step is Step.UNDO:
        return _undo(act, seen)
    if seen.source is None:
        return _without_host(act, seen)
    if seen.source in _MIGRATING:
        return End(False, f"{act.name} is {seen.source} on {host} in a migration that is not known here")
    if seen.source is MachineState.ABSENT and act.step not in (Step.REMOVE, Step.BOOT):
        if act.verb.rules.leaves_host:
            return Enter(Step.REMOVE)
        return End(False, f"{host} does not know {act.name}")
    return _DECIDERS[act.step](act, seen)


def _without_host(act: MachineActRecord, seen: Observation) -> Decision:
    """Decide while the host does not answer: the VM may run or be paused there."""
    if not act.verb.rules.leaves_host:
        if seen.is_source_down:
            return End(False, f"{act.source} is down")
        return wait_for_host(act.source)
    if seen.is_source_down:
        return End(True, f"{act.source} is down, and still has its definition and disks of {act.name}")
    if act.is_abrupt and seen.may_fence:
        return Do(Operation.FENCE, act.source)
    return wait_for_source(act)


def _undo(act: MachineActRecord, seen: Observation) -> Decision:
    # The host forgets the VM, so that an order to start it that is still on its way has no effect.
    if seen.source is None:
        if seen.is_source_down or seen.can_lock_disks:
            return End(False, act.failure)
        if act.is_abrupt and seen.may_fence:
            return Do(Operation.FENCE, act.source)
        return wait_for_source(act)
    if seen.source in _MIGRATING:
        return Wait(f"{act.name} is {seen.source} on {act.source} in a migration that is not known here: end it")
    match seen.source:
        case MachineState.ABSENT:
            return End(False, act.failure)
        case MachineState.OFF:
            return Do(Operation.REMOVE, act.source)
        case _:
            return Do(Operation.POWER_OFF, act.source)


def in_place_after_refusal(act: MachineActRecord, operation: Operation, reason: str) -> Decision:
    """Decide what follows when the platform refuses an operation for good: the VM is not left paused."""
    if act.step is Step.UNDO:
        return Wait(reason)
    match operation:
        case Operation.PRESS_POWER_BUTTON:
            return Enter(_hard_step(act))
        case Operation.RESUME if act.step is not Step.BOOT:
            return Wait(reason)
        case Operation.RESET:
            return Enter(Step.RESUME, failure=reason)
        case Operation.REIMAGE:
            return Enter(Step.BOOT, failure=reason)
        case _:
            return End(False, reason)


def _pause(act: MachineActRecord, seen: Observation) -> Decision:
    match seen.source:
        case MachineState.RUNNING:
            return Do(Operation.PAUSE, act.source)
        case MachineState.PAUSED:
            return Enter(Step.HOLD if act.verb is Verb.FREEZE else Step.RESET)
        case MachineState.HALTED if act.verb is Verb.FREEZE:
            return End(True, f"{halted_note(act, act.source, seen)}, and was not paused")
        case MachineState.HALTED:
            return Enter(Step.RESET)
        case _ if act.verb is Verb.FREEZE:
            return End(True, f"{act.name} was off")
        case _:
            return Enter(Step.BOOT)


def _hold(act: MachineActRecord, seen: Observation) -> Decision:
    held = act.entry(Step.HOLD)
    ends_at = (held.lab_at if held is not None else seen.now) + act.hold_s
    if seen.source is not MachineState.PAUSED:
        return Enter(Step.RESUME, detail="another program ended the pause early")
    if seen.now >= ends_at:
        return Enter(Step.RESUME)
    return Wait(f"{act.name} is paused", until=ends_at)


def _resume(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is MachineState.PAUSED:
        return Do(Operation.RESUME, act.source)
    if seen.source is MachineState.OFF:
        return End(False, act.failure or f"{act.name} stopped while it was paused")
    if seen.source is MachineState.HALTED:
        return End(False, act.failure or halted_note(act, act.source, seen))
    return End(not act.failure, act.failure)


def _shut_down(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is MachineState.OFF:
        return _after_power_off(act)
    if seen.source in (MachineState.PAUSED, MachineState.HALTED) or seen.is_overdue:
        return Enter(_hard_step(act))
    if seen.done is None:
        return Do(Operation.PRESS_POWER_BUTTON, act.source)
    return Wait(f"waiting for the guest of {act.name} to shut down")


def _hard_step(act: MachineActRecord) -> Step:
    """Return the step that follows if the guest is not asked, or does not do what it was asked to."""
    return Step.PAUSE if act.verb is Verb.REBOOT else Step.POWER_OFF


def _power_off(act: MachineActRecord, seen: Observation) -> Decision:
    return _after_power_off(act) if seen.source is MachineState.OFF else Do(Operation.POWER_OFF, act.source)


def _after_power_off(act: MachineActRecord) -> Decision:
    match act.verb:
        case Verb.REBOOT:
            return Enter(Step.BOOT)
        case Verb.REIMAGE:
            return Enter(Step.REIMAGE)
        case Verb.POWER_OFF:
            return End(True)
        case _:
            return Enter(Step.REMOVE)


def _reset(act: MachineActRecord, seen: Observation) -> Decision:
    match seen.source:
        case MachineState.HALTED if seen.done is Operation.RESET:
            return End(False, halted_note(act, act.source, seen))
        case MachineState.PAUSED | MachineState.HALTED:
            return Do(Operation.RESET, act.source)
        case MachineState.RUNNING:
            return End(True)
        case _:
            return Enter(Step.BOOT)


def _boot(act: MachineActRecord, seen: Observation) -> Decision:
    match seen.source:
        case MachineState.RUNNING:
            return End(not act.failure, act.failure)
        case MachineState.HALTED if seen.done is not None:
            return End(False, act.failure or halted_note(act, act.source, seen))
        case MachineState.PAUSED | MachineState.HALTED:
            return Do(Operation.RESUME, act.source)
        case MachineState.OFF if act.is_stopped and act.verb is not Verb.START:
            return End(not act.failure, act.failure or f"{act.name} stays off, because its user stopped it")
        case MachineState.OFF:
            return Do(Operation.POWER_ON, act.source)
        case _ if act.verb is Verb.START:
            return Do(Operation.COPY_DEFINITION, act.source)
        case _:
            return End(False, f"{act.source} does not know {act.name}")


def _remove(act: MachineActRecord, seen: Observation) -> Decision:
    if not act.source:  # it is on no host: only its disks are left
        return Do(Operation.REMOVE, act.source) if seen.done is None else End(True)
    match seen.source:
        case MachineState.ABSENT:
            return End(True)
        case MachineState.OFF:
            return Do(Operation.REMOVE, act.source)
        case _:
            return Do(Operation.POWER_OFF, act.source)


def _reimage(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is not MachineState.OFF:
        return Do(Operation.POWER_OFF, act.source)
    return Do(Operation.REIMAGE, act.source) if seen.done is not Operation.REIMAGE else Enter(Step.BOOT)


_DECIDERS: dict[Step, Callable[[MachineActRecord, Observation], Decision]] = {
    Step.PAUSE: _pause,
    Step.HOLD: _hold,
    Step.RESUME: _resume,
    Step.SHUT_DOWN: _shut_down,
    Step.POWER_OFF: _power_off,
    Step.RESET: _reset,
    Step.BOOT: _boot,
    Step.REMOVE: _remove,
    Step.REIMAGE: _reimage,
}
