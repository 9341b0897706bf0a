"""A case is judged by its demands: those that apply, and for which there is a probe."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from forewarn.crash_test.case import Case, Demand, Observed, judge_case
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.timeline import Probe
from forewarn.crash_test.verdict import CaseOutcome, Severity
from tests.support.crash_timelines import observe


async def do_nothing(stage: Stage) -> None:
    """A script without effect."""
    await asyncio.sleep(0)


def passes(observed: Observed) -> tuple[CaseOutcome, str, tuple[float, ...]]:
    return CaseOutcome.PASS, "it polled", (1.0,)


def fails(observed: Observed) -> tuple[CaseOutcome, str, tuple[float, ...]]:
    return CaseOutcome.FAIL, "it did not poll", ()


def a_case(*demands: Demand) -> Case:
    return Case(
        id="own-case",
        title="Something happens.",
        reason="It matters.",
        sources=("a/b#1",),
        profiles=frozenset({HandlerProfile.SPOT}),
        severity=Severity.NOISE,
        script=do_nothing,
        demands=demands,
        is_rare=True,
    )


def test_the_area_of_a_case_is_the_first_word_of_its_id() -> None:
    assert a_case().area == "own"


def test_a_verdict_has_a_finding_for_each_demand() -> None:
    demands = (Demand(text="it polls", judge=passes), Demand(text="it polls often", judge=fails))
    verdict = judge_case(a_case(*demands), observe())
    assert (verdict.case, verdict.severity, verdict.is_rare) == ("own-case", Severity.NOISE, True)
    assert [(item.demand, item.outcome, item.seen, item.at) for item in verdict.findings] == [
        ("it polls", CaseOutcome.PASS, "it polled", (1.0,)),
        ("it polls often", CaseOutcome.FAIL, "it did not poll", ()),
    ]
    assert verdict.outcome is CaseOutcome.FAIL


def test_what_a_handler_does_not_claim_is_not_demanded() -> None:
    demand = Demand(text="it recovers", judge=fails, applies=lambda claims: claims.recovers)
    verdict = judge_case(a_case(demand), observe(claims=HandlerClaims()))
    assert verdict.outcome is CaseOutcome.NOT_APPLICABLE
    assert "does not claim" in verdict.findings[0].seen


def test_without_its_probe_a_demand_is_unknown() -> None:
    demand = Demand(text="it recovers", judge=fails, probe=Probe.RECOVERED)
    verdict = judge_case(a_case(demand), observe(probes=[Probe.PREPARED]))
    assert verdict.outcome is CaseOutcome.UNKNOWN
    assert "--recovered COMMAND" in verdict.findings[0].seen


def test_a_claim_counts_before_a_missing_probe() -> None:
    demand = Demand(text="it recovers", judge=fails, applies=lambda claims: claims.recovers, probe=Probe.RECOVERED)
    verdict = judge_case(a_case(demand), observe(claims=HandlerClaims(), probes=()))
    assert verdict.outcome is CaseOutcome.NOT_APPLICABLE


def test_a_demand_on_the_process_is_not_applicable_to_a_handler_that_runs_elsewhere() -> None:
    demand = Demand(text="it does not exit", judge=fails, watches_process=True)
    assert judge_case(a_case(demand), observe()).outcome is CaseOutcome.FAIL
    verdict = judge_case(a_case(demand), replace(observe(), is_attached=True))
    assert verdict.outcome is CaseOutcome.NOT_APPLICABLE
    assert verdict.findings[0].seen == "the handler runs elsewhere: its process is not observed"


def test_a_case_without_demands_is_not_applicable() -> None:
    assert judge_case(a_case(), observe()).outcome is CaseOutcome.NOT_APPLICABLE
