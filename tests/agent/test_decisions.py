"""What is to be done next is read off the journal, whoever wrote it and however often it is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forewarn.agent.actions import (
    AgentAction,
    AgentSnapshot,
    CloseEvent,
    RecordStepEnd,
    ResumeStep,
    RunApprovalCheck,
    SendApproval,
    StartStep,
    StopStep,
    TaskKey,
    WaitUntil,
)
from forewarn.agent.approval import BoardView
from forewarn.agent.decision import next_actions, resolve_interrupted_step
from forewarn.agent.model import ApprovalCheckConfig, ApproveWhen, RuleConfig, StepConfig, StepPhase
from forewarn.agent.model import ApprovalPolicy as Approving
from forewarn.agent.records import (
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    EventRecord,
    OpenRecords,
    StepRun,
    StepState,
)
from tests.agent.conftest import NOW, event, step

DRAIN, SAVE = step("drain", 20, cut=1), step("save", 30)
RULE = RuleConfig(name="rest", steps=(DRAIN, SAVE), approve=Approving(when=ApproveWhen.DONE), margin_s=0)


def record(*deeds: StepRun, key: str = "E1", left_s: float | None = 900, **facts: Any) -> EventRecord:
    listed = event(key, left_s=left_s, **facts.pop("event", {}))
    given = {"rule": "rest", "plan": ("drain", "save"), "seen_at": NOW, "boot_id": "boot-1", **facts}
    return EventRecord(key=key, event=listed, step_runs=deeds, not_before=listed.not_before, **given)


def deed(name: str, state: StepState = StepState.DONE, phase: StepPhase = StepPhase.DO, **facts: Any) -> StepRun:
    return StepRun(**{"step": name, "state": state, "phase": phase, "begun_at": NOW, "boot_id": "boot-1", **facts})


def moves(
    *records: EventRecord,
    rule: RuleConfig = RULE,
    busy: tuple[TaskKey, ...] = (),
    boot_id: str = "boot-1",
    at: float = NOW,
    steps: tuple[StepConfig, ...] | None = None,
    board: BoardView | None = None,
) -> tuple[AgentAction, ...]:
    known = rule.steps if steps is None else steps
    return next_actions(
        AgentSnapshot(
            open_records=OpenRecords(records=records),
            rules={rule.name: rule},
            steps={each.name: each for each in known},
            vm="vm",
            now=at,
            boot_id=boot_id,
            running_tasks=frozenset(busy),
            board=board or BoardView(),
        )
    )


def move(*records: EventRecord, **situation: Any) -> AgentAction:
    (one,) = moves(*records, **situation)
    return one


DONE = (deed("drain"), deed("save"))
GONE = {"gone_at": NOW, "outcome": "withdrawn"}


def test_steps_are_taken_in_order_one_at_a_time() -> None:
    assert move(record()) == StartStep(key="E1", step=DRAIN, phase=StepPhase.DO)
    assert moves(record(deed("drain", StepState.BEGUN)), busy=(("E1", "drain"),)) == ()
    assert move(record(deed("drain"))) == StartStep(key="E1", step=SAVE, phase=StepPhase.DO)


@pytest.mark.parametrize("state", [StepState.FAILED, StepState.CUT, StepState.SKIPPED])
def test_a_step_with_an_end_is_never_begun_again(state: StepState) -> None:
    assert move(record(deed("drain", state))) == StartStep(key="E1", step=SAVE, phase=StepPhase.DO)


def test_a_step_that_begins_late_waits_for_its_slot() -> None:
    late = replace(RULE, begin="late")
    assert move(record(), rule=late) == WaitUntil(key="E1", until=NOW + 850, reason="drain begins late")
    assert isinstance(move(record(), rule=late, at=NOW + 850), StartStep)


def test_a_step_for_which_there_is_no_time_is_cut_with_the_reason() -> None:
    cut = move(record(left_s=40))
    assert isinstance(cut, RecordStepEnd)
    assert (cut.step_run.step, cut.step_run.state, cut.step_run.text) == (
        "drain",
        StepState.CUT,
        "no time: 40 s left",
    )


def test_when_the_event_has_started_only_what_is_essential_is_done() -> None:
    cut = move(record(left_s=None))
    assert isinstance(cut, RecordStepEnd)
    assert (cut.step_run.state, cut.step_run.text) == (StepState.CUT, "the event has started")
    assert isinstance(move(record(deed("drain", StepState.CUT), left_s=None)), StartStep)


def test_a_step_found_begun_is_repeated_if_it_may_be_and_asked_about_if_not() -> None:
    found = record(deed("drain", StepState.BEGUN))
    assert move(found) == ResumeStep(key="E1", step=DRAIN, phase=StepPhase.DO, check_first=True)
    may = replace(DRAIN, repeatable=True)
    assert move(found, steps=(may, SAVE)) == ResumeStep(key="E1", step=may, phase=StepPhase.DO, check_first=False)


@pytest.mark.parametrize(
    ("phase", "is_done", "unclear", "expected"),
    [
        (StepPhase.DO, True, "report", StepState.DONE),
        (StepPhase.DO, False, "report", None),
        (StepPhase.DO, None, "repeat", None),
        (StepPhase.DO, None, "skip", StepState.DONE),
        (StepPhase.DO, None, "report", StepState.FAILED),
        (StepPhase.UNDO, True, "report", None),
        (StepPhase.UNDO, False, "report", StepState.DONE),
        (StepPhase.UNDO, None, "report", StepState.FAILED),
    ],
)
def test_what_the_check_says_decides_on_a_step_found_begun(
    phase: StepPhase, is_done: bool | None, unclear: Any, expected: StepState | None
) -> None:
    assert resolve_interrupted_step(step("s", unclear=unclear), phase, is_done) is expected


def test_after_the_reboot_nothing_is_prepared_for_an_event_that_is_still_listed() -> None:
    cut_off = move(record(deed("drain", StepState.BEGUN), left_s=None), boot_id="boot-2")
    assert isinstance(cut_off, RecordStepEnd)
    assert (cut_off.step_run.state, cut_off.step_run.text) == (StepState.FAILED, "interrupted by the reboot")
    skipped = move(record(deed("drain"), left_s=None), boot_id="boot-2")
    assert isinstance(skipped, RecordStepEnd)
    assert (skipped.step_run.step, skipped.step_run.state) == ("save", StepState.SKIPPED)
    assert moves(record(*DONE, left_s=None), boot_id="boot-2") == ()


def test_a_step_that_is_no_longer_configured_is_skipped_and_its_undo_is_left_to_people() -> None:
    skipped = move(record(), steps=(SAVE,))
    assert isinstance(skipped, RecordStepEnd)
    assert skipped.step_run.state is StepState.SKIPPED
    undone = move(record(deed("drain"), **GONE), steps=(SAVE,))
    assert isinstance(undone, RecordStepEnd)
    assert (undone.step_run.phase, undone.step_run.state) == (StepPhase.UNDO, StepState.FAILED)
    assert undone.step_run.text == "the step is no longer configured: undo it by hand"


def test_it_approves_once_when_all_steps_are_done() -> None:
    assert move(record(*DONE)) == SendApproval(key="E1")
    for state in (ApprovalState.SENT, ApprovalState.REFUSED):
        assert moves(record(*DONE, approval=ApprovalRecord(state=state, at=NOW))) == ()


def test_an_approval_without_an_answer_is_asked_for_again_a_little_later() -> None:
    asked = record(*DONE, approval=ApprovalRecord(state=ApprovalState.ASKED, at=NOW))
    assert move(asked) == WaitUntil(key="E1", until=NOW + 5, reason="the approval was sent, waiting for the answer")
    assert move(asked, at=NOW + 5) == SendApproval(key="E1")


@pytest.mark.parametrize("state", [StepState.FAILED, StepState.CUT])
def test_an_event_whose_step_failed_or_was_cut_is_not_approved(state: StepState) -> None:
    unready = record(deed("drain", state), deed("save"))
    assert moves(unready) == ()


def test_what_a_reboot_undid_before_the_event_started_forbids_its_approval() -> None:
    """Somebody else's reboot: the event is still to come, and the VM is no longer prepared for it."""
    fleeting = replace(DRAIN, survives_reboot=False)
    assert move(record(*DONE), boot_id="boot-2", steps=(DRAIN, SAVE)) == SendApproval(key="E1")
    assert moves(record(*DONE), boot_id="boot-2", steps=(fleeting, SAVE)) == ()


def test_an_event_that_has_started_or_that_no_rule_approves_is_not_approved() -> None:
    assert moves(record(*DONE, left_s=None)) == ()
    assert moves(record(*DONE), rule=replace(RULE, approve=Approving())) == ()
    assert moves(record(rule="", plan=())) == ()


ALL = replace(RULE, approve=Approving(when=ApproveWhen.ALL_DONE))
PAIR = {"event": {"resources": ("vm", "mate")}}


def test_the_spokesman_approves_when_all_listed_vms_are_ready() -> None:
    alone = BoardView(heartbeat_ages_s={"vm": 0, "mate": 1}, ready_vms={"E1": frozenset({"vm"})})
    waits = move(record(*DONE, **PAIR), rule=ALL, board=alone)
    assert waits == WaitUntil(key="E1", until=NOW + 2, reason="mate not ready")
    both = replace(alone, ready_vms={"E1": frozenset({"vm", "mate"})})
    assert move(record(*DONE, **PAIR), rule=ALL, board=both) == SendApproval(key="E1")


def test_the_gate_is_asked_before_approval_and_again_while_it_is_silent() -> None:
    gate = ApprovalCheckConfig(command=("ask",), every_s=10, deadline_s=25)
    rule = replace(RULE, approval_check=gate)
    assert move(record(*DONE), rule=rule) == RunApprovalCheck(key="E1", check=gate)
    silent = record(*DONE, approval_check=ApprovalCheckRecord(first_at=NOW, asked_at=NOW))
    assert move(silent, rule=rule) == WaitUntil(key="E1", until=NOW + 10, reason="the approval check gave no answer")
    assert move(silent, rule=rule, at=NOW + 10) == RunApprovalCheck(key="E1", check=gate)
    assert move(silent, rule=rule, at=NOW + 25) == WaitUntil(
        key="E1", until=None, reason="the approval check gave no answer for 25 s"
    )
    assert move(
        silent, rule=replace(rule, approval_check=replace(gate, on_silence="approve")), at=NOW + 25
    ) == SendApproval(key="E1")


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_the_answer_of_the_gate_stands(answer: str) -> None:
    said = record(*DONE, approval_check=ApprovalCheckRecord(first_at=NOW, asked_at=NOW, answer=answer))
    expected = (
        SendApproval(key="E1")
        if answer == "yes"
        else WaitUntil(key="E1", until=None, reason="the approval check answered no")
    )
    assert move(said, rule=replace(RULE, approval_check=ApprovalCheckConfig(command=("ask",)))) == expected


def test_what_was_done_is_undone_last_step_first_once_the_event_is_gone() -> None:
    assert move(record(*DONE, **GONE)) == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO)
    undone = record(*DONE, deed("save", phase=StepPhase.UNDO), **GONE)
    assert move(undone) == StartStep(key="E1", step=DRAIN, phase=StepPhase.UNDO)
    assert move(undone.with_step_run(deed("drain", phase=StepPhase.UNDO))) == CloseEvent(key="E1")


def test_a_step_that_failed_is_undone_and_one_that_nobody_tried_is_not() -> None:
    gone = record(deed("drain", StepState.FAILED), deed("save", StepState.CUT), **GONE)
    assert move(gone) == StartStep(key="E1", step=DRAIN, phase=StepPhase.UNDO)


def test_a_step_that_is_running_when_the_event_goes_is_stopped_first() -> None:
    gone = record(deed("drain", StepState.BEGUN), **GONE)
    assert move(gone, busy=(("E1", "drain"),)) == StopStep(key="E1", step="drain")
    cut_off = move(gone)
    assert isinstance(cut_off, RecordStepEnd)
    assert cut_off.step_run.state is StepState.FAILED
    undoing = record(*DONE, deed("save", StepState.BEGUN, StepPhase.UNDO), **GONE)
    assert moves(undoing, busy=(("E1", "save"),)) == ()
    assert move(undoing) == ResumeStep(key="E1", step=SAVE, phase=StepPhase.UNDO, check_first=True)


@pytest.mark.parametrize(
    ("change", "rule", "boot_id", "text"),
    [
        ({"undo": "never"}, RULE, "boot-1", "this step is never undone"),
        (
            {},
            replace(RULE, undo_on=frozenset({"finished"})),
            "boot-1",
            "the rule does not undo it when the event is withdrawn",
        ),
        ({"survives_reboot": False}, RULE, "boot-2", "the reboot undid it"),
    ],
)
def test_a_step_is_left_as_it_is_where_the_configuration_says_so(
    change: dict[str, Any], rule: RuleConfig, boot_id: str, text: str
) -> None:
    settled = move(record(*DONE, **GONE), rule=rule, boot_id=boot_id, steps=(DRAIN, replace(SAVE, **change)))
    assert isinstance(settled, RecordStepEnd)
    assert (settled.step_run.state, settled.step_run.text) == (StepState.SKIPPED, text)


def test_after_a_reboot_a_step_is_undone_unless_the_reboot_did_it() -> None:
    assert move(record(*DONE, **GONE), boot_id="boot-2") == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO)


def test_an_undo_that_failed_is_tried_again_with_growing_pauses_and_then_left() -> None:
    def failed(tries: int) -> EventRecord:
        return record(*DONE, deed("save", StepState.FAILED, StepPhase.UNDO, tries=tries, ended_at=NOW), **GONE)

    assert move(failed(1)) == WaitUntil(key="E1", until=NOW + 10, reason="the undo of save failed and will be retried")
    assert move(failed(1), at=NOW + 10) == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO, tries=2)
    assert move(failed(2)) == WaitUntil(key="E1", until=NOW + 20, reason="the undo of save failed and will be retried")
    assert move(failed(3), at=NOW + 999) == StartStep(key="E1", step=DRAIN, phase=StepPhase.UNDO)


def test_a_step_that_another_event_holds_is_not_taken_twice() -> None:
    first, second = record(deed("drain", notes={"was": "ready"}), deed("save")), record(key="E2")
    approve, held = moves(first, second)
    assert isinstance(held, RecordStepEnd)
    assert (held.key, held.step_run.state, held.step_run.holder) == ("E2", StepState.DONE, "E1")
    assert held.step_run.notes == {"was": "ready"}
    assert approve == SendApproval(key="E1")


def test_two_new_events_do_not_begin_a_step_that_they_share_both() -> None:
    begin, wait = moves(record(), record(key="E2"))
    assert begin == StartStep(key="E1", step=DRAIN, phase=StepPhase.DO)
    assert wait == WaitUntil(key="E2", until=None, reason="drain is running for event E1")


def test_a_step_that_tells_is_taken_for_each_event() -> None:
    tell = step("drain", shared_by_events=False)
    assert [type(each) for each in moves(record(), record(key="E2"), steps=(tell, SAVE))] == [StartStep, StartStep]


def test_a_shared_step_is_undone_for_the_last_event_that_needed_it() -> None:
    held = (deed("drain", holder="E1"), deed("save", holder="E1"))
    kept, _ = moves(record(*DONE, **GONE), record(*held, key="E2"))
    assert isinstance(kept, RecordStepEnd)
    assert (kept.step_run.state, kept.step_run.text) == (StepState.SKIPPED, "still needed by event E2")
    released = record(*DONE, kept.step_run, **GONE)
    assert moves(released, record(*held, key="E2", **GONE))[1] == StartStep(key="E2", step=SAVE, phase=StepPhase.UNDO)


def test_a_shared_step_is_undone_once_when_both_events_go_together() -> None:
    held = record(deed("drain", holder="E1"), deed("save", holder="E1"), key="E2", **GONE)
    begin, wait = moves(record(*DONE, **GONE), held)
    assert begin == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO)
    assert isinstance(wait, WaitUntil)
    undone = record(*DONE, deed("save", phase=StepPhase.UNDO), deed("drain", phase=StepPhase.UNDO), **GONE)
    stays, settled = moves(undone, held)
    assert isinstance(stays, WaitUntil)
    assert isinstance(settled, RecordStepEnd)
    assert settled.step_run.text == "undone with event E1"


def test_an_event_that_comes_while_a_step_is_about_to_be_undone_takes_it_over() -> None:
    gone = record(deed("drain"), plan=("drain",), **GONE)
    held = moves(record(key="E0", plan=("drain",)), gone)[0]
    assert isinstance(held, RecordStepEnd)
    assert held.step_run.holder == "E1"


@pytest.mark.parametrize(
    "facts",
    [{}, GONE],
    ids=["it is still listed", "it is gone, and its undo failed"],
)
def test_a_step_that_failed_for_another_event_is_gone_on_with_where_that_one_began(facts: dict[str, Any]) -> None:
    """How things were before is known there only: whoever begins anew finds servers drained, and leaves them so."""
    undo = (deed("drain", StepState.FAILED, StepPhase.UNDO, ended_at=NOW),) if facts else ()
    first = record(deed("drain", StepState.FAILED), *undo, plan=("drain",), **facts)
    begin = moves(first, record(key="E2"))[-1]
    assert begin == StartStep(key="E2", step=DRAIN, phase=StepPhase.DO, holder="E1")
    again = record(deed("drain", StepState.FAILED, holder="E1"), key="E2")
    assert moves(first, again, record(key="E3"))[-1] == StartStep(key="E3", step=DRAIN, phase=StepPhase.DO, holder="E1")


def test_a_step_that_was_tried_for_several_events_is_undone_for_the_last_of_them() -> None:
    first, second = (
        record(deed("drain", StepState.FAILED), **GONE),
        record(deed("drain", holder="E1"), *DONE[1:], key="E2"),
    )
    kept = moves(first, second)[0]
    assert isinstance(kept, RecordStepEnd)
    assert kept.step_run.text == "still needed by event E2"
    gone = replace(second, **GONE).with_step_run(deed("save", StepState.SKIPPED, StepPhase.UNDO))
    assert moves(first.with_step_run(kept.step_run), gone)[-1] == StartStep(key="E2", step=DRAIN, phase=StepPhase.UNDO)


def test_what_is_done_already_for_another_event_is_never_cut() -> None:
    """It takes no time; and if it were not counted as needed, it would be undone with the other event."""
    held = moves(record(*DONE), record(key="E2", left_s=10))[1]
    assert isinstance(held, RecordStepEnd)
    assert (held.step_run.state, held.step_run.is_reused) == (StepState.DONE, True)


def test_what_a_reboot_has_undone_is_not_done_already() -> None:
    fleeting = replace(DRAIN, survives_reboot=False)
    rebooted = record(*DONE, left_s=None)
    fresh = record(key="E2", boot_id="boot-2")
    assert isinstance(moves(rebooted, fresh, boot_id="boot-2", steps=(DRAIN, SAVE))[-1], RecordStepEnd)
    begin = moves(rebooted, fresh, boot_id="boot-2", steps=(fleeting, SAVE))[-1]
    assert begin == StartStep(key="E2", step=fleeting, phase=StepPhase.DO)
