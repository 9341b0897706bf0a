"""The protocol of a move between two hosts, as a pure function: what a live or cold move does next.

One process sees both hosts here. The rules, and why there are never two running copies: `forewarn.machines.moves`.
"""

from __future__ import annotations

from collections.abc import Callable

from forewarn.machines.driver import IN_MEMORY, MachineState, MigrationProgress
from forewarn.machines.steps import (
    Decision,
    Do,
    End,
    Enter,
    MachineActRecord,
    Observation,
    Operation,
    Release,
    Step,
    Wait,
    halted_note,
    wait_for_host,
    wait_for_source,
)

_MIB = 1024 * 1024
_NOT_RUNNING = (MachineState.OFF, MachineState.ABSENT)
_INCOMING = (MachineState.RECEIVING, MachineState.RECEIVED)


def next_move(act: MachineActRecord, seen: Observation) -> Decision:
    """Decide what a migration or redeploy does next, from its record and what its two hosts report."""
    return _DECIDERS[act.step](act, seen)


def move_after_refusal(act: MachineActRecord, operation: Operation, reason: str) -> Decision:
    """Decide what follows when the platform refuses an operation of the current step of a move for good."""
    match act.step:
        case Step.PREPARE | Step.SEND if operation is Operation.COPY_DEFINITION:  # what is there is not ours
            return End(False, reason)
        case Step.PREPARE | Step.POWER_OFF:
            return Enter(Step.UNDO, failure=reason)
        case Step.SEND:
            return Enter(Step.ABORT, failure=reason)
        case Step.SHUT_DOWN:  # the guest cannot be asked
            return Enter(Step.POWER_OFF)
        case Step.UNDO:
            return End(False, f"{act.failure}; {act.destination} still has its definition of {act.name}: {reason}")
        case Step.CLEAN_UP:
            return End(True, f"{act.source} still has its definition of {act.name}: {reason}")
        case Step.ACTIVATE if operation in (Operation.COPY_DEFINITION, Operation.POWER_ON):
            return Enter(Step.RETURN, failure=reason)
        case Step.RETURN if operation in (Operation.COPY_DEFINITION, Operation.POWER_ON):  # only done on the source
            off = f"{act.name} is off on {act.source}, which could not start it again: {reason}"
            return End(False, _join(act.failure, off))
        case _:
            return Wait(reason)


def _join(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)


def progress_text(progress: MigrationProgress) -> str:
    """Return the progress of a live migration for people, such as `62 % sent, 381 MiB remain`."""
    total = progress.transferred_bytes + progress.remaining_bytes
    percentage = 100 * progress.transferred_bytes // total if total else 0
    return f"{percentage} % sent, {-(-progress.remaining_bytes // _MIB)} MiB remain"


def _prepare(act: MachineActRecord, seen: Observation) -> Decision:
    if (problem := _unexpected_state(act, seen)) is not None:
        return problem
    if seen.source is None and (decision := _prepare_without_source(act, seen)) is not None:
        return decision
    if seen.destination is None:
        if seen.is_overdue and not act.is_abrupt:
            return Enter(Step.UNDO, failure=f"{act.destination} did not answer")
        return wait_for_host(act.destination)
    if seen.destination is MachineState.ABSENT or (seen.destination is MachineState.OFF and seen.done is None):
        return Do(Operation.COPY_DEFINITION, act.destination)  # what is there may be old, or another VM of this name
    if seen.destination is not MachineState.OFF and not (act.is_live and seen.destination is MachineState.RECEIVING):
        return Do(Operation.POWER_OFF, act.destination)  # an earlier move left it there; it does not run
    if seen.source in _NOT_RUNNING:
        return Enter(Step.ACTIVATE, release=Release.STOPPED)
    if not act.is_live:
        return Enter(Step.POWER_OFF if act.is_abrupt else Step.SHUT_DOWN)
    if seen.destination is MachineState.OFF:
        return Do(Operation.PREPARE_TO_RECEIVE, act.destination)
    return Enter(Step.SEND)


def _prepare_without_source(act: MachineActRecord, seen: Observation) -> Decision | None:
    """Return what follows if the source is silent before anything was done; None: prepare anyway."""
    if not act.is_live:
        can_prepare = act.is_abrupt or seen.is_source_down or seen.can_lock_disks
        return None if can_prepare else wait_for_source(act)
    if seen.is_source_down:
        return Enter(Step.UNDO, failure=f"{act.source} is down")
    return Enter(Step.UNDO, failure=f"{act.source} did not answer") if seen.is_overdue else wait_for_host(act.source)


def _unexpected_state(act: MachineActRecord, seen: Observation) -> Decision | None:
    """Return the failure of a move whose VM is not where the fleet says; it is not ours to change."""
    if seen.destination in IN_MEMORY:
        return End(False, f"{act.name} is {seen.destination} on {act.destination} already, and was not touched")
    if seen.source is MachineState.SENT:
        return End(False, f"{act.name} has left {act.source} in a migration that is not known here")
    if seen.source in _INCOMING:
        return End(False, f"{act.source} is the destination of another migration of {act.name}")
    if seen.source is MachineState.ABSENT and not act.is_abrupt:
        return End(False, f"{act.source} does not know {act.name}")
    return None


def _send(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is None:
        return _send_without_source(act, seen)
    if seen.source is MachineState.SENT:
        return _release_sent(seen)
    if seen.source in _NOT_RUNNING:
        detail = f"{act.name} stopped on {act.source} while it was being sent, and was booted"
        return Enter(Step.ACTIVATE, release=Release.STOPPED, detail=detail)
    if seen.is_overdue:
        left = f" ({progress_text(seen.progress)})" if seen.progress is not None and seen.is_sending else ""
        failure = f"{act.name} could not be migrated in time{left}: it continues on {act.source}"
        return Enter(Step.ABORT, failure=failure)
    if seen.is_sending and seen.progress is not None:
        return Wait(progress_text(seen.progress))
    if seen.done is Operation.SEND:
        error = seen.progress.error if seen.progress is not None else ""
        return Enter(Step.ABORT, failure=error or f"the migration to {act.destination} ended without success")
    if seen.destination is None:
        return wait_for_host(act.destination)
    if seen.destination is MachineState.RECEIVING:
        return Do(Operation.SEND, act.source)
    if seen.destination in _NOT_RUNNING and act.entry(Step.PREPARE) is None:  # taken over from the source's mark
        is_defined = seen.destination is MachineState.OFF and seen.done is Operation.COPY_DEFINITION
        return Do(Operation.PREPARE_TO_RECEIVE if is_defined else Operation.COPY_DEFINITION, act.destination)
    return Enter(Step.ABORT, failure=f"{act.destination} no longer waits for {act.name}")


def _send_without_source(act: MachineActRecord, seen: Observation) -> Decision:
    """Decide while it is unknown whether the VM runs on the source or was sent."""
    if not seen.is_source_down:
        may_fence = act.is_abrupt and seen.may_fence
        return Do(Operation.FENCE, act.source) if may_fence else wait_for_source(act)
    if act.step is Step.ABORT:
        return Enter(Step.UNDO)
    detail = f"{act.source} went down while it sent {act.name}, which was booted"
    return Enter(Step.ACTIVATE, release=Release.FENCED, detail=detail)


def _release_sent(seen: Observation) -> Enter:
    downtime_ms = seen.progress.downtime_ms if seen.progress is not None else None
    return Enter(Step.ACTIVATE, release=Release.SENT, downtime_ms=downtime_ms)


def _abort(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is None:
        return _send_without_source(act, seen)
    if seen.source is MachineState.SENT:  # it completed before it could be cancelled
        return _release_sent(seen)
    if seen.is_sending or seen.done is not Operation.CANCEL_SEND:  # always: an order to send it may still be on its way
        return Do(Operation.CANCEL_SEND, act.source)
    return Enter(Step.UNDO)


def _undo(act: MachineActRecord, seen: Observation) -> Decision:
    if act.is_live and seen.source is MachineState.SENT:  # a late order to send it has come through
        return _release_sent(seen)
    if act.is_live and seen.is_sending:
        return Enter(Step.ABORT)
    if seen.source is MachineState.PAUSED:
        return Do(Operation.RESUME, act.source)
    if seen.destination is None:
        if not seen.is_overdue:
            return wait_for_host(act.destination)
        return End(False, f"{act.failure}; {act.destination} may still hold what was prepared for {act.name}")
    if seen.destination is MachineState.OFF:
        return Do(Operation.REMOVE, act.destination)
    if seen.destination not in (MachineState.ABSENT, MachineState.RUNNING):
        return Do(Operation.POWER_OFF, act.destination)
    if act.is_live and seen.source is None and not (seen.is_source_down or seen.is_overdue):
        return wait_for_host(act.source)
    return End(False, act.failure)


def _shut_down(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is MachineState.RUNNING and not seen.is_overdue:
        if seen.done is None:
            return Do(Operation.PRESS_POWER_BUTTON, act.source)
        return Wait(f"waiting for the guest of {act.name} to shut down")
    if seen.source is None or seen.source in _NOT_RUNNING or seen.source is MachineState.SENT:
        return _power_off(act, seen)
    return Enter(Step.POWER_OFF)


def _power_off(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is None:
        if seen.is_source_down:
            return Enter(Step.ACTIVATE, release=Release.FENCED)
        if seen.can_lock_disks:
            detail = f"{act.source} did not answer, and did not hold the locks of the disks of {act.name}"
            return Enter(Step.ACTIVATE, release=Release.LOCKED, detail=detail)
        if act.is_abrupt and seen.may_fence:
            return Do(Operation.FENCE, act.source)
        return wait_for_source(act)
    if seen.source in _NOT_RUNNING:
        return Enter(Step.ACTIVATE, release=Release.STOPPED)
    if seen.source is MachineState.SENT:  # another program has migrated it, and it may run elsewhere
        return Enter(Step.UNDO, failure=f"{act.name} has left {act.source} in a migration that is not known here")
    return Do(Operation.POWER_OFF, act.source)


def _activate(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source in IN_MEMORY:  # another program, or an automatic start, has started it again there
        return Do(Operation.POWER_OFF, act.source)
    if seen.destination is None and seen.is_destination_down:
        failure = f"{act.destination} went down before {act.name} was known to run there"
        return Enter(Step.RETURN, failure=failure)
    if seen.destination is None:
        note = (
            f"{act.destination} does not answer, and {act.name} has left {act.source}: "
            f"confirm that {act.destination} is down once that is certain, or bring it back"
        )
        return Wait(note, host=act.destination)
    if seen.destination is MachineState.ABSENT:
        return Do(Operation.COPY_DEFINITION, act.destination)
    if act.stays_off:
        if seen.destination is MachineState.OFF:
            return Enter(Step.CLEAN_UP)
        return Do(Operation.POWER_OFF, act.destination)
    match seen.destination:
        case MachineState.RUNNING:
            return Enter(Step.CLEAN_UP)
        case MachineState.HALTED:  # it was resumed or booted, and its error is there too
            return Enter(Step.CLEAN_UP, detail=halted_note(act, act.destination, seen))
        case MachineState.PAUSED:
            return Do(Operation.RESUME, act.destination)
        case MachineState.RECEIVED if act.release is Release.SENT:  # else its memory may be older than its disks
            return Do(Operation.RESUME, act.destination)
        case MachineState.RECEIVING if act.release is Release.SENT and not seen.is_overdue:
            return Wait(f"waiting until {act.destination} has all of {act.name}")
        case MachineState.OFF:
            return Do(Operation.POWER_ON, act.destination)
        case _:
            return Do(Operation.POWER_OFF, act.destination)


def _clean_up(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is None:
        if act.release in (Release.FENCED, Release.LOCKED) or seen.is_source_down or seen.is_overdue:
            return End(True, f"{act.source} did not answer, and still has its definition of {act.name}")
        return wait_for_host(act.source)
    if seen.source is MachineState.ABSENT:
        return End(True)
    return Do(Operation.REMOVE if seen.source is MachineState.OFF else Operation.POWER_OFF, act.source)


def _return(act: MachineActRecord, seen: Observation) -> Decision:
    """Decide after the destination could not run the VM: it boots on its source once that is safe."""
    # A destination that has forgotten the VM, or is down, will not run it, even if an order to boot it is still on its
    # way.
    if seen.destination is None and not seen.is_destination_down:
        note = f"{act.destination} does not answer, and {act.name} may run there: waiting for it"
        return Wait(_join(act.failure, note), host=act.destination)
    if seen.destination not in (None, MachineState.ABSENT):
        is_off = seen.destination is MachineState.OFF
        return Do(Operation.REMOVE if is_off else Operation.POWER_OFF, act.destination)
    if seen.source in IN_MEMORY:
        return _returned(act, seen)
    if act.is_abrupt or act.release is Release.FENCED or (seen.source is None and seen.is_source_down):
        note = f"{act.name} is off, because {act.source} has failed: redeploy it to another host"
        return End(False, _join(act.failure, note))
    match seen.source:
        case None:
            return wait_for_host(act.source)
        case MachineState.ABSENT:
            return Do(Operation.COPY_DEFINITION, act.source)
        case MachineState.OFF if act.stays_off:
            return End(False, _join(act.failure, f"{act.name} stays off on {act.source}"))
        case MachineState.OFF:
            return Do(Operation.POWER_ON, act.source)
        case _:  # its memory may be older than its disks
            return Do(Operation.POWER_OFF, act.source)


def _returned(act: MachineActRecord, seen: Observation) -> Decision:
    if seen.source is MachineState.PAUSED:
        return Do(Operation.RESUME, act.source)
    note = f"{act.name} was started on {act.source} again"
    halted = halted_note(act, act.source, seen) if seen.source is MachineState.HALTED else ""
    return End(False, _join(act.failure, note, halted))


_DECIDERS: dict[Step, Callable[[MachineActRecord, Observation], Decision]] = {
    Step.PREPARE: _prepare,
    Step.SEND: _send,
    Step.ABORT: _abort,
    Step.UNDO: _undo,
    Step.SHUT_DOWN: _shut_down,
    Step.POWER_OFF: _power_off,
    Step.ACTIVATE: _activate,
    Step.CLEAN_UP: _clean_up,
    Step.RETURN: _return,
}
