"""Whether this VM is in maintenance and ready, computed from the journal."""

from dataclasses import replace

import pytest

from forewarn.agent.model import EventRecord, OpenRecords, StepConfig, StepPhase, StepRun, StepState
from forewarn.agent.status import maintenance_status
from forewarn.client import ReceivedEvent

AWAY = StepConfig(name="away", use="readiness", budget_s=10)
SAVE = StepConfig(name="save", use="command", budget_s=10)
STEPS = {step.name: step for step in (AWAY, SAVE)}
EVENT = ReceivedEvent(id="C706", kind="Reboot", resources=("web-0",))
SEEN = EventRecord(key="C706", event=EVENT, seen_at=0.0, boot_id="b1", rule="all", plan=("away", "save"))
GONE = replace(SEEN, gone_at=9.0)


def done(step: str, state: StepState = StepState.DONE, phase: StepPhase = StepPhase.DO) -> StepRun:
    return StepRun(step=step, state=state, phase=phase, begun_at=5.0)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (SEEN, False),
        (SEEN.with_step_run(done("save", StepState.CUT)), False),
        (SEEN.with_step_run(done("save", StepState.BEGUN)), True),
        (replace(SEEN, started_at=5.0), True),
        (replace(SEEN, started_at=5.0, rule="", plan=()), True),
        (replace(SEEN, started_at=5.0, rule="", plan=(), event=replace(EVENT, resources=("web-1",))), False),
        (GONE.with_step_run(done("save")), True),
        (replace(GONE, closed=True).with_step_run(done("save")), False),
    ],
    ids=["seen", "cut", "begun", "started", "started, no rule", "a neighbour's", "being undone", "closed"],
)
def test_a_vm_is_in_maintenance_from_the_first_step_until_all_is_undone(record: EventRecord, expected: bool) -> None:
    assert maintenance_status(OpenRecords(records=(record,)), STEPS, "WEB-0").in_maintenance is expected


@pytest.mark.parametrize(
    ("record", "is_held"),
    [
        (SEEN, False),
        (SEEN.with_step_run(done("save")), False),
        (SEEN.with_step_run(done("away", StepState.BEGUN)), True),
        (SEEN.with_step_run(done("away")), True),
        (SEEN.with_step_run(done("away", StepState.FAILED)), True),
        (SEEN.with_step_run(done("away", StepState.CUT)), False),
        (GONE.with_step_run(done("away")), True),
        (GONE.with_step_run(done("away")).with_step_run(done("away", StepState.BEGUN, StepPhase.UNDO)), True),
        (GONE.with_step_run(done("away")).with_step_run(done("away", StepState.DONE, StepPhase.UNDO)), False),
        (GONE.with_step_run(done("away")).with_step_run(done("away", StepState.SKIPPED, StepPhase.UNDO)), False),
    ],
)
def test_the_vm_is_not_ready_from_the_beginning_of_the_step_until_it_is_undone(
    record: EventRecord, is_held: bool
) -> None:
    holds = maintenance_status(OpenRecords(records=(record,)), STEPS, "web-0").holds
    assert [(hold.step, hold.event, hold.kind, hold.since) for hold in holds] == (
        [("away", "C706", "Reboot", 5.0)] if is_held else []
    )


def test_an_event_that_is_gone_is_no_longer_listed() -> None:
    assert maintenance_status(OpenRecords(records=(GONE, replace(SEEN, key="B"))), STEPS, "web-0").listed == (EVENT,)
