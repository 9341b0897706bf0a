"""Planted results of crash tests, for tests of reports."""

from __future__ import annotations

from forewarn.crash_test.case import Case, Demand, Observed
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.result import CrashTestResult, build_result
from forewarn.crash_test.runner import CrashTestPlan, JudgedCase, judge_again, unknown_verdict
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.timeline import (
    Approved,
    DeliveredEvent,
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Impact,
    Observation,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    Timeline,
    build_timeline,
)
from forewarn.crash_test.verdict import CaseOutcome, Severity

EVENT = "8F5F4BE7-8B08-46B3-87C4-D1CEEE73ECF9"


async def do_nothing(stage: Stage) -> None:
    return None


def a_demand(outcome: CaseOutcome, *, seen: str = "it was seen", text: str = "It does what it should.") -> Demand:
    """A demand that always finds this outcome."""

    def judge(observed: Observed) -> tuple[CaseOutcome, str, tuple[float, ...]]:
        return outcome, seen, (1.0,)

    return Demand(text=text, judge=judge)


def a_case(
    case_id: str,
    outcome: CaseOutcome,
    *,
    severity: Severity = Severity.LOSES_WORK,
    rare: bool = False,
    seen: str = "so",
) -> Case:
    """A case whose only demand always finds this outcome."""
    return Case(
        id=case_id,
        title=f"The title of {case_id}",
        reason="It happened to somebody.",
        sources=("owner/repository#7", "https://example.com/page", "a book"),
        profiles=frozenset(HandlerProfile),
        severity=severity,
        is_rare=rare,
        script=do_nothing,
        demands=(a_demand(outcome, seen=seen),),
    )


def a_timeline(*more: Observation) -> Timeline:
    """A handler on web-0 that notices a Reboot after 2 s, approves it after 4 s, and is rebooted after 5 s."""
    shown = DeliveredEvent(id=EVENT, kind="Reboot", status="Scheduled", vms=("web-0",))
    observations: list[Observation] = [
        ProgramStarted(at=0.0, vm="web-0", run=1),
        Polled(at=1.0, vm="web-0", by=Poller.HANDLER, status=200, answered_at=1.0, incarnation=1),
        EventPublished(at=10.0, event=EVENT, kind="Reboot", vms=("web-0",), not_before=40.0),
        Polled(at=12.0, vm="web-0", by=Poller.HANDLER, status=200, answered_at=12.0, incarnation=2, events=(shown,)),
        ProbeAnswered(at=13.0, vm="web-0", probe=Probe.PREPARED, is_yes=True),
        Approved(at=14.0, vm="web-0", by=Poller.HANDLER, event_ids=(EVENT,), status=200),
        EventStarted(at=15.0, event=EVENT),
        Impact(at=15.0, vm="web-0", verb="reboot", until=17.0, event=EVENT),
        ProgramExited(at=15.0, vm="web-0", code=None, signal=9, by_case=True),
        ProgramStarted(at=17.0, vm="web-0", run=2, is_boot=True),
        EventEnded(at=18.0, event=EVENT),
        ProbeAnswered(at=19.0, vm="web-0", probe=Probe.RECOVERED, is_yes=True),
        ProgramOutput(at=19.5, vm="web-0", text="done <b>&\x1b[31m"),
        Disturbance(at=20.0, vm="web-0", text="answers 503", until=26.0),
        *more,
    ]
    return build_timeline(observations, 30.0)


def a_plan(
    *cases: Case, claims: HandlerClaims | None = None, prepared: str = "true", recovered: str = "true"
) -> CrashTestPlan:
    """A plan for a handler called ./handler."""
    return CrashTestPlan(
        command=("./handler", "--fast"),
        profile=HandlerProfile.MAINTENANCE,
        claims=claims or HandlerClaims(),
        cases=cases,
        prepared=prepared,
        recovered=recovered,
    )


def judged(case: Case, plan: CrashTestPlan, timeline: Timeline | None = None) -> JudgedCase:
    """The case, judged from a planted timeline."""
    before = JudgedCase(
        case=case,
        verdict=unknown_verdict(case, "not judged yet"),
        timeline=a_timeline() if timeline is None else timeline,
        took_s=1.5,
        vm="web-0",
        events=(EVENT,),
    )
    return judge_again(case, before, plan)


def a_result(*cases: Case, plan: CrashTestPlan | None = None, timeline: Timeline | None = None) -> CrashTestResult:
    """The result of a run over these cases, each with the same timeline."""
    plan = plan or a_plan(*cases)
    found = [judged(case, plan, timeline) for case in cases]
    return build_result(plan, found, version="1.0", at="2026-01-05T12:00:00+00:00", machine="2 cores")
