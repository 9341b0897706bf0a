"""The dry run: what the agent says it would do."""

from dataclasses import replace

import pytest

from forewarn.agent.explanation import dry_run_event
from forewarn.agent.model import ApprovalCheckConfig, ApprovalPolicy, ApproveWhen, RuleConfig, StepConfig
from forewarn.client import ReceivedEvent

DRAIN = StepConfig(name="drain", use="drain-haproxy", budget_s=60)
SAVE = StepConfig(name="save", use="checkpoint", budget_s=300, cut=1)
RULE = RuleConfig(name="reboots", steps=(DRAIN, SAVE), kinds=frozenset({"Reboot"}), margin_s=0)
EVENT = ReceivedEvent(id="C706", kind="Reboot", status="Scheduled", resources=("web-0",), not_before=1_900.0)


def steps_of(event: ReceivedEvent, rule: RuleConfig = RULE) -> tuple[str, ...]:
    return dry_run_event(event, [rule], "WEB-0", 1_000.0).steps


def test_each_step_is_shown_with_its_latest_start() -> None:
    shown = dry_run_event(EVENT, [RULE], "web-0", 1_000.0)
    assert shown.title == "event C706: Reboot of web-0, 15m left; rule 'reboots'"
    assert shown.steps == (
        "would begin drain (drain-haproxy, 1m) at once, in 9m at the latest",
        "would begin save (checkpoint, 5m) at once, in 10m at the latest",
    )
    assert shown.approval == "would not approve it"


def test_steps_that_begin_late_are_shown_with_their_start() -> None:
    assert steps_of(EVENT, replace(RULE, begin="late"))[0] == "would begin drain (drain-haproxy, 1m) in 9m"


def test_steps_without_enough_time_are_shown_as_cut_or_late() -> None:
    assert steps_of(replace(EVENT, not_before=1_030.0)) == (
        "would begin drain (drain-haproxy, 1m) at once, maybe too late to end in time",
        "would cut save (checkpoint, 5m): no time for it",
    )


def test_a_started_event_gets_only_essential_steps() -> None:
    started = replace(EVENT, status="Started", not_before=None)
    assert steps_of(started)[1].startswith("would cut save")
    shown = dry_run_event(started, [replace(RULE, approve=ApprovalPolicy(when=ApproveWhen.DONE))], "web-0", 1_000.0)
    assert shown.title == "event C706: Reboot of web-0, started; rule 'reboots'"
    assert shown.approval == "would not approve it: it has started"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (replace(EVENT, resources=("web-1",)), "it does not list this VM, 'web-0'"),
        (replace(EVENT, kind="Freeze"), "no rule matches it"),
    ],
)
def test_an_event_without_a_rule_is_shown_with_the_reason(event: ReceivedEvent, why: str) -> None:
    shown = dry_run_event(event, [RULE], "web-0", 1_000.0)
    assert shown.title.endswith(f", 15m left; would do nothing: {why}")
    assert (shown.rule, shown.steps, shown.approval) == ("", (), "")


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (replace(RULE, approve=ApprovalPolicy(when=ApproveWhen.DONE)), "would approve it when all steps are done"),
        (
            replace(
                RULE,
                approve=ApprovalPolicy(when=ApproveWhen.ALL_DONE),
                approval_check=ApprovalCheckConfig(url="https://example.org"),
            ),
            "would approve it when the steps of all listed VMs are done, once the approval check answers yes",
        ),
        (replace(RULE, approval_check=ApprovalCheckConfig(command=("true",))), "would not approve it"),
    ],
)
def test_the_approval_is_shown(rule: RuleConfig, sentence: str) -> None:
    assert dry_run_event(EVENT, [rule], "web-0", 1_000.0).approval == sentence
