"""The next actions follow from the journal alone, whichever process asks and how often."""

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
    record_after_action,
)
from forewarn.agent.approval import BoardView
from forewarn.agent.decision import next_actions, resolve_interrupted_step
from forewarn.agent.model import (
    ApprovalCheckConfig,
    ApprovalCheckRecord,
    ApprovalPolicy,
    ApprovalRecord,
    ApprovalState,
    ApproveWhen,
    EventRecord,
    OpenRecords,
    RuleConfig,
    StepConfig,
    StepPhase,
    StepRun,
    StepState,
)
from tests.agent.conftest import NOW, event, step

DRAIN, SAVE = step("drain", 20, cut=1), step("save", 30)
RULE = RuleConfig(name="rest", steps=(DRAIN, SAVE), approve=ApprovalPolicy(when=ApproveWhen.DONE), margin_s=0)


def record(*runs: StepRun, key: str = "E1", left_s: float | None = 900, **facts: Any) -> EventRecord:
    listed = event(key, left_s=left_s, **facts.pop("event", {}))
    given = {"rule": "rest", "plan": ("drain", "save"), "seen_at": NOW, "boot_id": "boot-1", **facts}
    return EventRecord(key=key, event=listed, step_runs=runs, not_before=listed.not_before, **given)


def run(name: str, state: StepState = StepState.DONE, phase: StepPhase = StepPhase.DO, **facts: Any) -> StepRun:
    return StepRun(**{"step": name, "state": state, "phase": phase, "begun_at": NOW, "boot_id": "boot-1", **facts})


def actions_for(
    *records: EventRecord,
    rule: RuleConfig = RULE,
    running: tuple[TaskKey, ...] = (),
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
            running_tasks=frozenset(running),
            board=board or BoardView(),
        )
    )


def action_for(*records: EventRecord, **facts: Any) -> AgentAction:
    (one,) = actions_for(*records, **facts)
    return one


DONE = (run("drain"), run("save"))
GONE: dict[str, Any] = {"gone_at": NOW, "outcome": "withdrawn"}


def test_steps_run_in_order_one_at_a_time() -> None:
    assert action_for(record()) == StartStep(key="E1", step=DRAIN, phase=StepPhase.DO)
    assert actions_for(record(run("drain", StepState.BEGUN)), running=(("E1", "drain"),)) == ()
    assert action_for(record(run("drain"))) == StartStep(key="E1", step=SAVE, phase=StepPhase.DO)


@pytest.mark.parametrize("state", [StepState.FAILED, StepState.CUT, StepState.SKIPPED])
def test_an_ended_step_never_begins_again(state: StepState) -> None:
    assert action_for(record(run("drain", state))) == StartStep(key="E1", step=SAVE, phase=StepPhase.DO)


def test_a_step_that_begins_late_waits_until_it_is_due() -> None:
    late = replace(RULE, begin="late")
    assert action_for(record(), rule=late) == WaitUntil(key="E1", until=NOW + 850, reason="drain begins late")
    assert isinstance(action_for(record(), rule=late, at=NOW + 850), StartStep)


def test_a_step_for_which_there_is_no_time_is_cut_with_the_reason() -> None:
    cut = action_for(record(left_s=40))
    assert isinstance(cut, RecordStepEnd)
    assert (cut.step_run.step, cut.step_run.state, cut.step_run.text) == (
        "drain",
        StepState.CUT,
        "no time: 40 s left",
    )


def test_once_the_event_has_started_only_essential_steps_run() -> None:
    cut = action_for(record(left_s=None))
    assert isinstance(cut, RecordStepEnd)
    assert (cut.step_run.state, cut.step_run.text) == (StepState.CUT, "the event has started")
    assert isinstance(action_for(record(run("drain", StepState.CUT), left_s=None)), StartStep)


def test_an_interrupted_step_is_repeated_if_repeatable_and_checked_if_not() -> None:
    found = record(run("drain", StepState.BEGUN))
    assert action_for(found) == ResumeStep(key="E1", step=DRAIN, phase=StepPhase.DO, check_first=True)
    may = replace(DRAIN, repeatable=True)
    assert action_for(found, steps=(may, SAVE)) == ResumeStep(key="E1", step=may, phase=StepPhase.DO, check_first=False)


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
def test_the_check_decides_how_an_interrupted_step_ends(
    phase: StepPhase, is_done: bool | None, unclear: Any, expected: StepState | None
) -> None:
    assert resolve_interrupted_step(step("s", unclear=unclear), phase, is_done) is expected


def test_after_the_reboot_no_step_runs_for_an_event_that_is_still_listed() -> None:
    interrupted = action_for(record(run("drain", StepState.BEGUN), left_s=None), boot_id="boot-2")
    assert isinstance(interrupted, RecordStepEnd)
    assert (interrupted.step_run.state, interrupted.step_run.text) == (StepState.FAILED, "interrupted by the reboot")
    skipped = action_for(record(run("drain"), left_s=None), boot_id="boot-2")
    assert isinstance(skipped, RecordStepEnd)
    assert (skipped.step_run.step, skipped.step_run.state) == ("save", StepState.SKIPPED)
    assert actions_for(record(*DONE, left_s=None), boot_id="boot-2") == ()


def test_a_step_that_is_no_longer_configured_is_skipped_and_must_be_undone_by_hand() -> None:
    skipped = action_for(record(), steps=(SAVE,))
    assert isinstance(skipped, RecordStepEnd)
    assert skipped.step_run.state is StepState.SKIPPED
    undone = action_for(record(run("drain"), **GONE), steps=(SAVE,))
    assert isinstance(undone, RecordStepEnd)
    assert (undone.step_run.phase, undone.step_run.state) == (StepPhase.UNDO, StepState.FAILED)
    assert undone.step_run.text == "the step is no longer configured: undo it by hand"


def test_the_agent_approves_once_when_all_steps_are_done() -> None:
    assert action_for(record(*DONE)) == SendApproval(key="E1")
    for state in (ApprovalState.SENT, ApprovalState.REFUSED):
        assert actions_for(record(*DONE, approval=ApprovalRecord(state=state, at=NOW))) == ()


def test_an_approval_without_an_answer_is_sent_again_a_little_later() -> None:
    asked = record(*DONE, approval=ApprovalRecord(state=ApprovalState.ASKED, at=NOW))
    assert action_for(asked) == WaitUntil(
        key="E1", until=NOW + 5, reason="the approval was sent, waiting for the answer"
    )
    assert action_for(asked, at=NOW + 5) == SendApproval(key="E1")


@pytest.mark.parametrize("state", [StepState.FAILED, StepState.CUT])
def test_an_event_whose_step_failed_or_was_cut_is_not_approved(state: StepState) -> None:
    unready = record(run("drain", state), run("save"))
    assert actions_for(unready) == ()


def test_a_step_that_a_reboot_undid_before_the_start_prevents_the_approval() -> None:
    """Another reboot: the event is still scheduled, and the VM is no longer prepared for it."""
    volatile = replace(DRAIN, survives_reboot=False)
    assert action_for(record(*DONE), boot_id="boot-2", steps=(DRAIN, SAVE)) == SendApproval(key="E1")
    assert actions_for(record(*DONE), boot_id="boot-2", steps=(volatile, SAVE)) == ()


def test_a_reboot_undoes_nothing_of_a_step_that_was_skipped() -> None:
    """The step was not configured when its turn came, and is again."""
    volatile = replace(DRAIN, survives_reboot=False)
    skipped = record(run("drain", StepState.SKIPPED), run("save"))
    assert action_for(skipped, boot_id="boot-2", steps=(volatile, SAVE)) == SendApproval(key="E1")


def test_an_event_that_has_started_or_that_no_rule_approves_is_not_approved() -> None:
    assert actions_for(record(*DONE, left_s=None)) == ()
    assert actions_for(record(*DONE), rule=replace(RULE, approve=ApprovalPolicy())) == ()
    assert actions_for(record(rule="", plan=())) == ()


ALL = replace(RULE, approve=ApprovalPolicy(when=ApproveWhen.ALL_DONE))
PAIR: dict[str, Any] = {"event": {"resources": ("vm", "mate")}}


def test_the_approving_vm_approves_when_all_listed_vms_are_ready() -> None:
    alone = BoardView(heartbeat_ages_s={"vm": 0, "mate": 1}, ready_vms={"E1": frozenset({"vm"})})
    waits = action_for(record(*DONE, **PAIR), rule=ALL, board=alone)
    assert waits == WaitUntil(key="E1", until=NOW + 2, reason="mate not ready")
    both = replace(alone, ready_vms={"E1": frozenset({"vm", "mate"})})
    assert action_for(record(*DONE, **PAIR), rule=ALL, board=both) == SendApproval(key="E1")


def test_the_approval_check_runs_before_the_approval_and_again_without_an_answer() -> None:
    gate = ApprovalCheckConfig(command=("ask",), every_s=10, deadline_s=25)
    rule = replace(RULE, approval_check=gate)
    assert action_for(record(*DONE), rule=rule) == RunApprovalCheck(key="E1", check=gate)
    silent = record(*DONE, approval_check=ApprovalCheckRecord(first_at=NOW, asked_at=NOW))
    assert action_for(silent, rule=rule) == WaitUntil(
        key="E1", until=NOW + 10, reason="the approval check gave no answer"
    )
    assert action_for(silent, rule=rule, at=NOW + 10) == RunApprovalCheck(key="E1", check=gate)
    assert action_for(silent, rule=rule, at=NOW + 25) == WaitUntil(
        key="E1", until=None, reason="the approval check gave no answer for 25 s"
    )
    assert action_for(
        silent, rule=replace(rule, approval_check=replace(gate, on_silence="approve")), at=NOW + 25
    ) == SendApproval(key="E1")


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_the_answer_of_the_approval_check_is_final(answer: str) -> None:
    answered = record(*DONE, approval_check=ApprovalCheckRecord(first_at=NOW, asked_at=NOW, answer=answer))
    expected = (
        SendApproval(key="E1")
        if answer == "yes"
        else WaitUntil(key="E1", until=None, reason="the approval check answered no")
    )
    assert action_for(answered, rule=replace(RULE, approval_check=ApprovalCheckConfig(command=("ask",)))) == expected


def test_done_steps_are_undone_last_step_first_once_the_event_is_gone() -> None:
    assert action_for(record(*DONE, **GONE)) == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO)
    undone = record(*DONE, run("save", phase=StepPhase.UNDO), **GONE)
    assert action_for(undone) == StartStep(key="E1", step=DRAIN, phase=StepPhase.UNDO)
    assert action_for(undone.with_step_run(run("drain", phase=StepPhase.UNDO))) == CloseEvent(key="E1")


def test_a_failed_step_is_undone_and_a_cut_one_is_not() -> None:
    gone = record(run("drain", StepState.FAILED), run("save", StepState.CUT), **GONE)
    assert action_for(gone) == StartStep(key="E1", step=DRAIN, phase=StepPhase.UNDO)


def test_a_running_step_is_stopped_first_when_the_event_is_gone() -> None:
    gone = record(run("drain", StepState.BEGUN), **GONE)
    assert action_for(gone, running=(("E1", "drain"),)) == StopStep(key="E1", step="drain")
    interrupted = action_for(gone)
    assert isinstance(interrupted, RecordStepEnd)
    assert interrupted.step_run.state is StepState.FAILED
    undoing = record(*DONE, run("save", StepState.BEGUN, StepPhase.UNDO), **GONE)
    assert actions_for(undoing, running=(("E1", "save"),)) == ()
    assert action_for(undoing) == ResumeStep(key="E1", step=SAVE, phase=StepPhase.UNDO, check_first=True)


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
def test_a_step_is_not_undone_where_the_configuration_says_so(
    change: dict[str, Any], rule: RuleConfig, boot_id: str, text: str
) -> None:
    settled = action_for(record(*DONE, **GONE), rule=rule, boot_id=boot_id, steps=(DRAIN, replace(SAVE, **change)))
    assert isinstance(settled, RecordStepEnd)
    assert (settled.step_run.state, settled.step_run.text) == (StepState.SKIPPED, text)


def test_a_step_that_survives_a_reboot_is_undone_after_it() -> None:
    assert action_for(record(*DONE, **GONE), boot_id="boot-2") == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO)


def test_a_failed_undo_is_retried_with_growing_pauses_and_then_given_up() -> None:
    def failed(tries: int) -> EventRecord:
        return record(*DONE, run("save", StepState.FAILED, StepPhase.UNDO, tries=tries, ended_at=NOW), **GONE)

    assert action_for(failed(1)) == WaitUntil(
        key="E1", until=NOW + 10, reason="the undo of save failed and will be retried"
    )
    assert action_for(failed(1), at=NOW + 10) == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO, tries=2)
    assert action_for(failed(2)) == WaitUntil(
        key="E1", until=NOW + 20, reason="the undo of save failed and will be retried"
    )
    assert action_for(failed(3), at=NOW + 999) == StartStep(key="E1", step=DRAIN, phase=StepPhase.UNDO)


def test_a_step_that_is_done_for_another_event_does_not_run_again() -> None:
    first, second = record(run("drain", notes={"was": "ready"}), run("save")), record(key="E2")
    approve, reused = actions_for(first, second)
    assert isinstance(reused, RecordStepEnd)
    assert (reused.key, reused.step_run.state, reused.step_run.holder) == ("E2", StepState.DONE, "E1")
    assert reused.step_run.notes == {"was": "ready"}
    assert approve == SendApproval(key="E1")


def test_of_two_new_events_only_one_starts_their_shared_step() -> None:
    begin, wait = actions_for(record(), record(key="E2"))
    assert begin == StartStep(key="E1", step=DRAIN, phase=StepPhase.DO)
    assert wait == WaitUntil(key="E2", until=None, reason="drain is running for event E1")


def test_a_notification_runs_for_each_event() -> None:
    notify = step("drain", shared_by_events=False)
    assert [type(each) for each in actions_for(record(), record(key="E2"), steps=(notify, SAVE))] == [
        StartStep,
        StartStep,
    ]


def test_a_shared_step_is_undone_for_the_last_event_that_needed_it() -> None:
    reused = (run("drain", holder="E1"), run("save", holder="E1"))
    kept, _ = actions_for(record(*DONE, **GONE), record(*reused, key="E2"))
    assert isinstance(kept, RecordStepEnd)
    assert (kept.step_run.state, kept.step_run.text) == (StepState.SKIPPED, "still needed by event E2")
    released = record(*DONE, kept.step_run, **GONE)
    assert actions_for(released, record(*reused, key="E2", **GONE))[1] == StartStep(
        key="E2", step=SAVE, phase=StepPhase.UNDO
    )


def test_a_shared_step_is_undone_once_when_both_events_go_together() -> None:
    reused = record(run("drain", holder="E1"), run("save", holder="E1"), key="E2", **GONE)
    begin, wait = actions_for(record(*DONE, **GONE), reused)
    assert begin == StartStep(key="E1", step=SAVE, phase=StepPhase.UNDO)
    assert isinstance(wait, WaitUntil)
    undone = record(*DONE, run("save", phase=StepPhase.UNDO), run("drain", phase=StepPhase.UNDO), **GONE)
    stays, settled = actions_for(undone, reused)
    assert isinstance(stays, WaitUntil)
    assert isinstance(settled, RecordStepEnd)
    assert settled.step_run.text == "undone with event E1"


@pytest.mark.parametrize("ended_at", [None, NOW], ids=["being undone", "undone"])
def test_a_new_event_does_not_reuse_a_step_that_is_undone_for_the_events_that_share_it(ended_at: float | None) -> None:
    state = StepState.BEGUN if ended_at is None else StepState.DONE
    undo = run("drain", state, StepPhase.UNDO, begun_at=NOW - 1, ended_at=ended_at)
    first = record(run("drain", begun_at=NOW - 9), undo, plan=("drain",), **GONE)
    second = record(run("drain", holder="E1", begun_at=NOW - 5), key="E2", plan=("drain",), **GONE)
    action = next(each for each in actions_for(first, second, record(key="E3", plan=("drain",))) if each.key == "E3")
    if ended_at is None:
        assert action == WaitUntil(key="E3", until=None, reason="drain is running for event E1")
    else:
        assert action == StartStep(key="E3", step=DRAIN, phase=StepPhase.DO)


def test_an_event_that_comes_before_the_undo_of_a_step_reuses_the_step() -> None:
    gone = record(run("drain"), plan=("drain",), **GONE)
    reused = actions_for(record(key="E0", plan=("drain",)), gone)[0]
    assert isinstance(reused, RecordStepEnd)
    assert reused.step_run.holder == "E1"


@pytest.mark.parametrize(
    "facts",
    [{}, GONE],
    ids=["it is still listed", "it is gone, and its undo failed"],
)
def test_a_step_that_failed_for_another_event_continues_with_the_notes_of_that_one(facts: dict[str, Any]) -> None:
    """Only those notes have the original state: a new run would find drained servers and leave them so."""
    undo = (run("drain", StepState.FAILED, StepPhase.UNDO, ended_at=NOW),) if facts else ()
    first = record(run("drain", StepState.FAILED), *undo, plan=("drain",), **facts)
    begin = actions_for(first, record(key="E2"))[-1]
    assert begin == StartStep(key="E2", step=DRAIN, phase=StepPhase.DO, holder="E1")
    again = record(run("drain", StepState.FAILED, holder="E1"), key="E2")
    assert actions_for(first, again, record(key="E3"))[-1] == StartStep(
        key="E3", step=DRAIN, phase=StepPhase.DO, holder="E1"
    )


def test_a_step_that_was_tried_for_several_events_is_undone_for_the_last_of_them() -> None:
    first, second = (
        record(run("drain", StepState.FAILED), **GONE),
        record(run("drain", holder="E1"), *DONE[1:], key="E2"),
    )
    kept = actions_for(first, second)[0]
    assert isinstance(kept, RecordStepEnd)
    assert kept.step_run.text == "still needed by event E2"
    gone = replace(second, **GONE).with_step_run(run("save", StepState.SKIPPED, StepPhase.UNDO))
    assert actions_for(first.with_step_run(kept.step_run), gone)[-1] == StartStep(
        key="E2", step=DRAIN, phase=StepPhase.UNDO
    )


def test_a_step_that_is_done_for_another_event_is_never_cut() -> None:
    """It takes no time; and if it did not count as needed, it would be undone with the other event."""
    reused = actions_for(record(*DONE), record(key="E2", left_s=10))[1]
    assert isinstance(reused, RecordStepEnd)
    assert (reused.step_run.state, reused.step_run.is_reused) == (StepState.DONE, True)


def test_a_step_that_a_reboot_undid_is_not_reused() -> None:
    volatile = replace(DRAIN, survives_reboot=False)
    rebooted = record(*DONE, left_s=None)
    fresh = record(key="E2", boot_id="boot-2")
    assert isinstance(actions_for(rebooted, fresh, boot_id="boot-2", steps=(DRAIN, SAVE))[-1], RecordStepEnd)
    begin = actions_for(rebooted, fresh, boot_id="boot-2", steps=(volatile, SAVE))[-1]
    assert begin == StartStep(key="E2", step=volatile, phase=StepPhase.DO)


def test_an_event_for_which_a_reboot_undid_a_step_does_not_keep_others_from_undoing_it() -> None:
    """The reboot ended the step for E1; E2 ran it again and is gone. E1 is still listed, and would never undo it."""
    volatile = replace(SAVE, survives_reboot=False)
    rebooted = record(*DONE)
    again = record(run("save", boot_id="boot-2"), key="E2", boot_id="boot-2", plan=("save",), **GONE)
    undo = actions_for(rebooted, again, boot_id="boot-2", steps=(DRAIN, volatile))[-1]
    assert undo == StartStep(key="E2", step=volatile, phase=StepPhase.UNDO)


def test_a_step_that_is_resumed_after_a_reboot_belongs_to_the_new_boot() -> None:
    """Otherwise its undo would be skipped, because the reboot before it seems to have undone it."""
    begun = record(run("drain"), run("save", StepState.BEGUN))
    resume = action_for(begun, boot_id="boot-2")
    assert isinstance(resume, ResumeStep)
    after = record_after_action(begun, resume, now=NOW, boot_id="boot-2").step_run("save")
    assert after is not None
    assert (after.state, after.boot_id) == (StepState.BEGUN, "boot-2")
