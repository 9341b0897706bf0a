"""The explanation of an event from its journal record, for people."""

from dataclasses import replace

import pytest

from forewarn.agent.explanation import explain_event, step_plan_table
from forewarn.agent.model import (
    ApprovalCheckRecord,
    ApprovalPolicy,
    ApprovalRecord,
    ApprovalState,
    ApproveWhen,
    EventRecord,
    RuleConfig,
    StepConfig,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.client import ReceivedEvent

DRAIN = StepConfig(name="drain", use="command", budget_s=60)
SAVE = StepConfig(name="save", use="checkpoint", budget_s=300, cut=1)
RULE = RuleConfig(name="reboots", steps=(DRAIN, SAVE), margin_s=5)
EVENT = ReceivedEvent(id="C706", kind="Reboot", resources=("web-0", "web-1"), description="Host update.")
SEEN = EventRecord(
    key="C706", event=EVENT, seen_at=1_000.0, boot_id="b1", not_before=1_900.0, rule="reboots", plan=("drain", "save")
)


def lines_of(record: EventRecord, rule: RuleConfig = RULE) -> list[str]:
    return [f"{line.at:.0f} {line.text}" for line in explain_event(record, {rule.name: rule}).lines]


def ended(step: str, begun_at: float, ended_at: float, state: StepState = StepState.DONE, **facts: object) -> StepRun:
    return replace(StepRun(step=step, begun_at=begun_at, ended_at=ended_at, state=state), **facts)  # type: ignore[arg-type]


def test_an_explanation_shows_everything_in_the_order_of_time() -> None:
    record = replace(
        SEEN,
        started_at=1_100.0,
        gone_at=1_200.0,
        outcome="finished",
        closed=True,
        approval_check=ApprovalCheckRecord(first_at=1_070.0, asked_at=1_080.0, answer="yes"),
        approval=ApprovalRecord(state=ApprovalState.SENT, at=1_081.0),
        step_runs=(
            ended("drain", 1_001.0, 1_013.0, text="exit status 0"),
            ended("save", 1_013.0, 1_070.0),
            ended("save", 1_201.0, 1_202.5, phase=StepPhase.UNDO),
            ended("drain", 1_203.0, 1_204.0, StepState.FAILED, phase=StepPhase.UNDO, text="exit status 1", tries=3),
        ),
    )
    assert lines_of(record) == [
        "1000 first seen, a notice of 15m; rule 'reboots'",
        "1001 drain began",
        "1013 drain done after 12s: exit status 0",
        "1013 save began",
        "1070 save done after 57s",
        "1070 approval check asked",
        "1080 approval check answered yes",
        "1081 approved",
        "1100 started, after 1m 40s of the 15m announced",
        "1200 gone: finished",
        "1201 undo of save began",
        "1202 undo of save done after 1.5s",
        "1203 undo of drain began, try 3",
        "1204 undo of drain failed after 1.0s: exit status 1",
    ]
    explanation = explain_event(record, {"reboots": RULE})
    assert explanation.title == "event C706: Reboot of web-0, web-1"
    assert explanation.now == "closed, but not undone: drain; undo it by hand"


@pytest.mark.parametrize("seen_at", [999.9, 1_000.0])
def test_causes_come_before_effects_although_the_servers_time_stood_still(seen_at: float) -> None:
    """A lab's clock may stand still, and dates are whole seconds, so the agent's time can go backwards."""
    record = replace(
        SEEN,
        started_at=1_000.0,
        gone_at=1_002.0,
        outcome="finished",
        approval=ApprovalRecord(state=ApprovalState.SENT, at=1_000.0),
        step_runs=(
            ended("drain", 1_000.1, 1_003.2),
            ended("save", 1_003.2, 1_003.3),
            ended("drain", 1_002.0, 1_002.1, phase=StepPhase.UNDO),
        ),
    )
    assert [text.split(maxsplit=1)[1] for text in lines_of(replace(record, seen_at=seen_at))] == [
        "first seen, a notice of 15m; rule 'reboots'",
        "drain began",
        "drain done after 3.1s",
        "save began",
        "save done after 0.1s",
        "approved",
        "started, after 0s of the 15m announced",
        "gone: finished",
        "undo of drain began",
        "undo of drain done after 0.1s",
    ]


def test_a_start_during_a_step_is_shown_between_its_begin_and_end() -> None:
    record = replace(SEEN, started_at=1_900.0).with_step_run(ended("drain", 1_890.0, 1_905.0))
    assert [line.split()[0] for line in lines_of(record)] == ["1000", "1890", "1900", "1905"]


def test_a_step_is_shown_with_its_schedule_by_the_present_file() -> None:
    record = SEEN.with_step_run(StepRun(step="drain", begun_at=1_001.0)).with_step_run(ended("save", 1_001.0, 1_002.0))
    details = [line.detail for line in explain_event(record, {"reboots": RULE}).lines]
    assert details[0] == "Host update."
    assert "by the present file: budget 1m, to begin 6m 5s before NotBefore at the latest" in details
    assert "by the present file: budget 5m, to begin 5m 5s before NotBefore at the latest" in details


def test_the_schedule_of_a_step_is_that_of_the_newest_not_before() -> None:
    record = replace(SEEN, not_before=1_060.0).with_step_run(ended("save", 1_001.0, 1_002.0))
    assert "by the present file: budget 5m" in [line.detail for line in explain_event(record, {"reboots": RULE}).lines]
    postponed = replace(record, event=replace(record.event, not_before=1_900.0))
    details = [line.detail for line in explain_event(postponed, {"reboots": RULE}).lines]
    assert "by the present file: budget 5m, to begin 5m 5s before NotBefore at the latest" in details


def test_a_cut_step_is_shown_with_the_reason() -> None:
    cut = ended("save", 1_001.0, 1_001.0, StepState.CUT, text="no time: 30 s left")
    record = replace(SEEN, not_before=1_030.0).with_step_run(cut)
    assert "1001 save cut: no time: 30 s left" in lines_of(record)


def test_a_step_reused_from_another_event_is_shown_as_such() -> None:
    reused = ended("drain", 1_001.0, 1_001.0, holder="B000", text="done already for event B000")
    assert "1001 drain reused: done already for event B000" in lines_of(SEEN.with_step_run(reused))


@pytest.mark.parametrize(
    ("record", "notice"),
    [
        (replace(SEEN, not_before=None, started_at=1_000.0), "already started: no notice"),
        (replace(SEEN, not_before=990.0), "its notice had already ended"),
        (replace(SEEN, not_before=None), "no start time given"),
        (replace(SEEN, not_before=1_030.0), "a notice of 30s"),
        (replace(SEEN, not_before=1_000.0 + 7 * 86_400), "a notice of 7d"),
    ],
    ids=["started", "over", "no date", "Preempt", "7 days"],
)
def test_the_notice_is_shown_as_it_was_when_the_event_was_first_seen(record: EventRecord, notice: str) -> None:
    assert lines_of(record) == [f"1000 first seen, {notice}; rule 'reboots'"]


def test_an_event_without_a_rule_is_shown_as_such() -> None:
    assert lines_of(replace(SEEN, rule="", plan=())) == ["1000 first seen, a notice of 15m; no rule matches"]


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (ApprovalState.ASKED, "approval asked for"),
        (ApprovalState.SENT, "approved"),
        (ApprovalState.REFUSED, "approval refused"),
    ],
)
def test_the_state_of_an_approval_is_shown(state: ApprovalState, sentence: str) -> None:
    assert f"1005 {sentence}" in lines_of(replace(SEEN, approval=ApprovalRecord(state=state, at=1_005.0)))


@pytest.mark.parametrize(
    ("record", "now"),
    [
        (SEEN, "scheduled"),
        (replace(SEEN, started_at=1_900.0), "started"),
        (SEEN.with_step_run(StepRun(step="drain", begun_at=1_001.0)), "drain running"),
        (
            replace(SEEN, gone_at=2_000.0).with_step_run(StepRun(step="drain", begun_at=1.0, phase=StepPhase.UNDO)),
            "undo of drain running",
        ),
        (replace(SEEN, gone_at=2_000.0), "gone, the undo is in progress"),
        (replace(SEEN, gone_at=2_000.0, closed=True), "closed: nothing left to do"),
    ],
)
def test_the_current_state_is_shown_last(record: EventRecord, now: str) -> None:
    assert explain_event(record, {}).now == now
    assert explain_event(record, {}, "waits for web-1").now == "waits for web-1"


def test_an_event_that_will_not_be_approved_is_shown_with_the_reason() -> None:
    failed, cut = ended("drain", 1_001.0, 1_002.0, StepState.FAILED), ended("save", 1_000.0, 1_000.0, StepState.CUT)
    record = SEEN.with_step_run(failed).with_step_run(cut)
    approving = replace(RULE, approve=ApprovalPolicy(when=ApproveWhen.DONE))
    now = "scheduled, will start at its NotBefore without an approval: drain failed, save cut"
    assert explain_event(record, {"reboots": approving}).now == now
    assert explain_event(record, {"reboots": RULE}).now == "scheduled"


def test_the_plan_shows_which_steps_a_shorter_notice_cuts() -> None:
    assert step_plan_table(RULE, (900.0, 120.0, 30.0)) == [
        (DRAIN, ["at once, by 6m 5s before", "at once, by 1m 5s before", "at once, late"]),
        (SAVE, ["at once, by 5m 5s before", "cut", "cut"]),
    ]


def test_the_plan_of_a_late_rule_shows_when_steps_begin() -> None:
    assert step_plan_table(replace(RULE, begin="late"), (900.0,)) == [
        (DRAIN, ["6m 5s before"]),
        (SAVE, ["5m 5s before"]),
    ]
