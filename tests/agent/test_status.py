"""Whether this VM is in maintenance and ready, read off the journal."""

from dataclasses import replace

import pytest

from forewarn.agent.record import Book, Deed, Record, State
from forewarn.agent.standing import standing_of
from forewarn.agent.value import Phase, Step
from forewarn.client import ReceivedEvent

AWAY = Step(name="away", use="readiness", budget_s=10)
SAVE = Step(name="save", use="command", budget_s=10)
STEPS = {step.name: step for step in (AWAY, SAVE)}
EVENT = ReceivedEvent(id="C706", kind="Reboot", resources=("web-0",))
SEEN = Record(key="C706", event=EVENT, seen_at=0.0, boot_id="b1", rule="all", plan=("away", "save"))
GONE = replace(SEEN, gone_at=9.0)


def done(step: str, state: State = State.DONE, phase: Phase = Phase.DO) -> Deed:
    return Deed(step=step, state=state, phase=phase, begun_at=5.0)


@pytest.mark.parametrize(
    ("record", "is_so"),
    [
        (SEEN, False),
        (SEEN.with_deed(done("save", State.CUT)), False),
        (SEEN.with_deed(done("save", State.BEGUN)), True),
        (replace(SEEN, started_at=5.0), True),
        (replace(SEEN, started_at=5.0, rule="", plan=()), True),
        (replace(SEEN, started_at=5.0, rule="", plan=(), event=replace(EVENT, resources=("web-1",))), False),
        (GONE.with_deed(done("save")), True),
        (replace(GONE, closed=True).with_deed(done("save")), False),
    ],
    ids=["seen", "cut", "begun", "started", "started, no rule", "a neighbour's", "being undone", "closed"],
)
def test_a_vm_is_in_maintenance_from_the_first_step_until_all_is_undone(record: Record, is_so: bool) -> None:
    assert standing_of(Book(records=(record,)), STEPS, "WEB-0").in_maintenance is is_so


@pytest.mark.parametrize(
    ("record", "is_held"),
    [
        (SEEN, False),
        (SEEN.with_deed(done("save")), False),
        (SEEN.with_deed(done("away", State.BEGUN)), True),
        (SEEN.with_deed(done("away")), True),
        (SEEN.with_deed(done("away", State.FAILED)), True),
        (SEEN.with_deed(done("away", State.CUT)), False),
        (GONE.with_deed(done("away")), True),
        (GONE.with_deed(done("away")).with_deed(done("away", State.BEGUN, Phase.UNDO)), True),
        (GONE.with_deed(done("away")).with_deed(done("away", State.DONE, Phase.UNDO)), False),
        (GONE.with_deed(done("away")).with_deed(done("away", State.SKIPPED, Phase.UNDO)), False),
    ],
)
def test_readiness_is_held_from_the_beginning_of_its_step_until_that_is_undone(record: Record, is_held: bool) -> None:
    holds = standing_of(Book(records=(record,)), STEPS, "web-0").holds
    assert [(hold.step, hold.event, hold.kind, hold.since) for hold in holds] == (
        [("away", "C706", "Reboot", 5.0)] if is_held else []
    )


def test_what_is_gone_is_no_longer_listed() -> None:
    assert standing_of(Book(records=(GONE, replace(SEEN, key="B"))), STEPS, "web-0").listed == (EVENT,)
