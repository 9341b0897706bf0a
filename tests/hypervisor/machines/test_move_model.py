"""The protocol of moves in every order of crashes, lost answers, silent hosts and fencing (spec §6.4).

The model finds out protocols that are wrong on purpose, so it would find out ours.
"""

from __future__ import annotations

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from forewarn.machines.move import next_move
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
)
from tests.support.move_model import DESTINATION, SOURCE, Decider, ModelState, MoveModel, Violation

STARTS = {
    "migration": ModelState(Verb.MIGRATE, is_abrupt=False),
    "migration whose mark was stored before its destination was ready": ModelState(
        Verb.MIGRATE, is_abrupt=False, step=Step.SEND, is_taken_over=True, has_sent=True
    ),
    "redeployment": ModelState(Verb.REDEPLOY, is_abrupt=False),
    "redeployment from a silent host": ModelState(Verb.REDEPLOY, is_abrupt=True, is_source_silent=True),
    "redeployment with locks": ModelState(Verb.REDEPLOY, is_abrupt=False, has_locks=True),
    "redeployment from a silent host with locks": ModelState(
        Verb.REDEPLOY, is_abrupt=True, has_locks=True, is_source_silent=True
    ),
    "redeployment from a silent host with locks that are free": ModelState(
        Verb.REDEPLOY, is_abrupt=False, has_locks=True, is_source_silent=True, source=MachineState.OFF, is_excused=True
    ),
    "redeployment from a dead host": ModelState(
        Verb.REDEPLOY,
        is_abrupt=True,
        source=MachineState.OFF,
        is_source_silent=True,
        is_source_dead=True,
        has_source_crashed=True,
    ),
}
LEAST_STATES = {"migration": 50_000, "redeployment": 20_000}


@pytest.mark.parametrize("name", STARTS)
def test_a_move_never_doubles_or_loses_its_vm_in_any_order_of_faults(name: str) -> None:
    states, ends = MoveModel(max_faults=4).explore(STARTS[name])
    assert states > LEAST_STATES.get(name, 5_000)
    assert ends > 1_000


def activates_without_release(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: takes the arrival on the destination for the release by the source."""
    if act.step is Step.SEND and seen.destination is MachineState.RECEIVED:
        return Do(Operation.RESUME, DESTINATION)
    return next_move(act, seen)


def takes_silence_for_release(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: takes a silent host for one that has failed."""
    if act.step in (Step.SEND, Step.SHUT_DOWN, Step.POWER_OFF) and seen.source is None:
        return Enter(Step.ACTIVATE, release=Release.FENCED)
    return next_move(act, seen)


def resumes_a_sent_source(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: goes back to the source if the destination is silent after the release."""
    if act.step is Step.ACTIVATE and seen.destination is None and seen.source is MachineState.SENT:
        return Do(Operation.RESUME, SOURCE)
    return next_move(act, seen)


def resumes_after_fencing(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: goes on with the memory on the destination, although the source may have run longer."""
    if act.release is Release.FENCED and seen.destination is MachineState.RECEIVED:
        return Do(Operation.RESUME, DESTINATION)
    return next_move(act, seen)


def forgets_to_abort(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: removes the VM from the destination while it may be on its way there."""
    decision = next_move(act, seen)
    if isinstance(decision, Enter) and decision.step is Step.ABORT:
        return Enter(Step.UNDO, failure="why")
    if act.step is Step.UNDO and seen.source is MachineState.SENT:
        return next_move(act, Observation(source=None, destination=seen.destination, is_overdue=True))
    return decision


def returns_without_looking(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: boots the VM on its source again while the destination still knows it, or is silent."""
    if act.step is Step.RETURN and seen.source is MachineState.OFF:
        return Do(Operation.POWER_ON, SOURCE)
    return next_move(act, seen)


def stays_after_a_refusal(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: ends although the VM, which the destination could not boot, is off."""
    return End(False, "why") if act.step is Step.RETURN else next_move(act, seen)


def test_a_vm_whose_locks_are_free_leaves_its_silent_host_without_fencing() -> None:
    seen: list[Release | None] = []

    def note_release(act: MachineActRecord, seen_now: Observation) -> Decision:
        seen.append(act.release)
        return next_move(act, seen_now)

    start = STARTS["redeployment from a silent host with locks that are free"]
    MoveModel(note_release, max_faults=0).explore(start)
    assert Release.LOCKED in seen
    assert Release.FENCED not in seen


def takes_locks_for_release_of_a_migration(act: MachineActRecord, seen: Observation) -> Decision:
    """Wrong: the source of a migration gives its locks up before it is certain that it does not go on."""
    if act.step is Step.SEND and seen.can_lock_disks:
        return Enter(Step.ACTIVATE, release=Release.LOCKED)
    return next_move(act, seen)


def test_the_model_finds_out_locks_that_the_source_of_a_migration_gives_up_too_early() -> None:
    model = MoveModel(takes_locks_for_release_of_a_migration, locks_in_migrations=True)
    with pytest.raises(Violation, match="two running copies"):
        model.explore(ModelState(Verb.MIGRATE, is_abrupt=False, has_locks=True))


def test_the_model_finds_out_a_destination_that_waits_without_a_definition_after_a_crash_of_the_service() -> None:
    with pytest.raises(Violation, match="on a host that does not know it"):
        MoveModel(keeps_undefined=True, max_faults=1).explore(STARTS["migration"])


def test_the_model_finds_out_locks_that_a_running_vm_does_not_hold() -> None:
    with pytest.raises(Violation, match="two running copies"):
        MoveModel(has_false_locks=True).explore(STARTS["redeployment from a silent host"])


@pytest.mark.parametrize(
    ("decide", "start", "problem"),
    [
        (activates_without_release, "migration", "two running copies|older than its disks"),
        (takes_silence_for_release, "migration", "two running copies"),
        (takes_silence_for_release, "redeployment", "two running copies"),
        (takes_silence_for_release, "redeployment from a silent host", "two running copies"),
        (resumes_a_sent_source, "migration", "two running copies"),
        (resumes_after_fencing, "migration", "older than its disks"),
        (forgets_to_abort, "migration", "has not left the VM running"),
        (returns_without_looking, "redeployment", "two running copies"),
        (stays_after_a_refusal, "redeployment", "has not left the VM running"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_the_model_finds_out_a_wrong_protocol(decide: Decider, start: str, problem: str) -> None:
    with pytest.raises(Violation, match=problem):
        MoveModel(decide, resumes_sent=True).explore(STARTS[start])
