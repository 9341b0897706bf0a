"""The built-in cases are complete, and their demands tell good handlers from bad ones."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace

import pytest

from forewarn.crash_test.case import Case, Layout, judge_case
from forewarn.crash_test.cases import ALL_CASES, find_case
from forewarn.crash_test.claims import DEFAULT_CLAIMS, Approves, HandlerClaims, HandlerProfile
from forewarn.crash_test.verdict import CaseOutcome, Severity, Verdict
from forewarn.errors import Rejected
from tests.crash_test.results import a_case, a_demand, a_result
from tests.support.crash_handler_model import Behaviour
from tests.support.crash_simulation import simulate_case

AREAS = ("notice", "whom", "reading", "transport", "acting", "approving", "afterwards", "survival", "cost")
SOURCE = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+#[0-9]+|https://[a-z0-9.-]+/\S+")
EACH_CASE = pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.id)
GOOD = Behaviour()
BAD = {
    "exits after two seconds": Behaviour(exits_at=2.0),
    "uses too much": Behaviour(is_wasteful=True, sends_header=False),
    "exits at the first bad answer": Behaviour(exits_on_bad_answer=True),
    "polls and does nothing": Behaviour(reacts=False),
    "polls every minute": Behaviour(polls_every_s=60.0),
    "acts on every event": Behaviour(reads_resources=False, approves_at_once=True),
    "approves before it is prepared": Behaviour(approves_at_once=True),
    "never recovers": Behaviour(recovers=False),
    "prepares again and again": Behaviour(loses_preparation=True),
    "forgets everything": Behaviour(keeps_state=False, loses_preparation=True),
    "does not retry approvals": Behaviour(retries_approvals=False),
    "waits for ever": Behaviour(has_timeout=False),
    "polls twenty times a second": Behaviour(polls_every_s=0.05),
}


def claims_of(case: Case, profile: HandlerProfile) -> HandlerClaims:
    """The profile's default claims; for the case of a handler that claims not to approve, such claims."""
    if case.id == "approving-although-it-claims-not-to":
        return HandlerClaims(prepares=True)
    return DEFAULT_CLAIMS[profile]


def verdict_of(case: Case, profile: HandlerProfile, behaviour: Behaviour) -> Verdict:
    _, observed = asyncio.run(simulate_case(case, profile, claims_of(case, profile), behaviour))
    return judge_case(case, observed)


def pairs() -> list[tuple[Case, HandlerProfile]]:
    return [(case, profile) for case in ALL_CASES for profile in sorted(case.profiles)]


EACH_CASE_AND_PROFILE = pytest.mark.parametrize(
    ("case", "profile"), [pytest.param(case, profile, id=f"{case.id}-{profile}") for case, profile in pairs()]
)


def test_there_are_at_least_sixty_different_cases() -> None:
    assert len({case.id.removesuffix("-preempt") for case in ALL_CASES}) >= 60


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(case.id for case in ALL_CASES).items() if count > 1] == []


def test_each_area_has_at_least_three_cases() -> None:
    counts = Counter(case.area for case in ALL_CASES)
    assert set(counts) == set(AREAS)
    assert min(counts.values()) >= 3


@pytest.mark.parametrize("profile", HandlerProfile)
def test_each_profile_has_cases_that_lose_work(profile: HandlerProfile) -> None:
    cases = [case for case in ALL_CASES if profile in case.profiles]
    assert len(cases) >= 15
    assert any(case.severity is Severity.LOSES_WORK and not case.is_rare for case in cases)


@EACH_CASE
def test_a_case_says_what_happens_and_why_it_matters(case: Case) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", case.id)
    assert re.fullmatch(r"[A-Z][^\n]+\.", case.title)
    assert re.fullmatch(r"[A-Z][^\n]+\.", case.reason)
    assert len(case.reason) >= 40
    assert case.profiles


@EACH_CASE
def test_a_case_has_public_sources(case: Case) -> None:
    assert case.sources
    assert [source for source in case.sources if not SOURCE.fullmatch(source)] == []


@EACH_CASE_AND_PROFILE
def test_a_script_takes_less_than_a_minute_without_a_reaction(case: Case, profile: HandlerProfile) -> None:
    stage, _ = asyncio.run(simulate_case(case, profile, claims_of(case, profile), Behaviour(reacts=False)))
    assert stage.now <= 60.0
    assert stage.now <= case.longest_s / 2


@EACH_CASE_AND_PROFILE
def test_a_good_handler_passes(case: Case, profile: HandlerProfile) -> None:
    verdict = verdict_of(case, profile, GOOD)
    bad = [
        finding for finding in verdict.findings if finding.outcome not in (CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)
    ]
    assert bad == []


@EACH_CASE
def test_at_least_one_bad_handler_fails(case: Case) -> None:
    assert any(
        verdict_of(case, profile, behaviour).outcome is CaseOutcome.FAIL
        for behaviour in BAD.values()
        for profile in case.profiles
    )


def test_every_bad_handler_fails_somewhere() -> None:
    cases = [case for case in ALL_CASES if HandlerProfile.MAINTENANCE in case.profiles]
    blameless = [
        name
        for name, behaviour in BAD.items()
        if not any(
            verdict_of(case, HandlerProfile.MAINTENANCE, behaviour).outcome is CaseOutcome.FAIL for case in cases
        )
    ]
    assert blameless == []


@pytest.mark.parametrize(
    "case_id",
    ["approving-refused-429", "approving-refused-500", "approving-refused-503", "afterwards-withdrawn"],
)
def test_a_pause_of_twenty_seconds_after_a_refused_approval_is_no_failure(case_id: str) -> None:
    verdict = verdict_of(find_case(case_id), HandlerProfile.MAINTENANCE, Behaviour(pause_after_refusal_s=20.0))
    assert verdict.outcome in (CaseOutcome.PASS, CaseOutcome.SLOW)


def test_a_handler_that_acts_on_every_event_touches_other_vms() -> None:
    verdict = verdict_of(find_case("whom-neighbour-only"), HandlerProfile.MAINTENANCE, BAD["acts on every event"])
    assert (verdict.outcome, verdict.severity) == (CaseOutcome.FAIL, Severity.TOUCHES_ANOTHER_VM)


def test_a_cluster_that_must_approve_has_several_vms() -> None:
    """Some copies approve only for other VMs."""
    leader = HandlerClaims(approves=Approves.SCOPE)
    for case in ALL_CASES:
        must_approve = any(
            re.match("it approves the event (before|again)", demand.text) and demand.applies(leader)
            for demand in case.demands
        )
        if HandlerProfile.CLUSTER in case.profiles and must_approve:
            assert case.layout in (Layout.SET, Layout.SCALE_SET), case.id


def test_a_handler_that_claims_nothing_is_asked_only_to_notice_and_to_run() -> None:
    for case in ALL_CASES:
        for demand in case.demands:
            if demand.applies(HandlerClaims()):
                assert demand.probe is None


def test_claims_of_the_scope_are_not_held_against_a_leader() -> None:
    leader = HandlerClaims(approves=Approves.SCOPE)
    assert not any(demand.applies(leader) for demand in find_case("approving-for-others").demands[:3])


def test_a_case_is_found_by_its_id() -> None:
    assert find_case("notice-30s").id == "notice-30s"


@pytest.mark.parametrize(
    ("case_id", "part"), [("notice-30", "did you mean notice-30s"), ("x", "`forewarn crash-test list` shows all cases")]
)
def test_an_unknown_case_is_rejected_with_what_is_like_it(case_id: str, part: str) -> None:
    with pytest.raises(Rejected, match=re.escape(part)):
        find_case(case_id)


def test_a_case_of_a_case_file_is_found_too() -> None:
    own = ALL_CASES[0]
    assert find_case(own.id, [own]) is own


def test_every_demand_says_what_to_change_in_a_handler() -> None:
    missing = [(case.id, demand.text) for case in ALL_CASES for demand in case.demands if not demand.remedy]
    assert missing == []
    assert all(d.remedy.endswith(".") and d.remedy[0].isupper() for case in ALL_CASES for d in case.demands)


def test_a_finding_has_the_remedy_only_if_something_is_wrong() -> None:
    for outcome in CaseOutcome:
        demand = replace(a_demand(outcome), remedy="Change it.")
        case = replace(a_case("notice-30s", outcome), demands=(demand,))
        (finding,) = a_result(case).cases[0].verdict.findings
        assert bool(finding.remedy) is (outcome in (CaseOutcome.FAIL, CaseOutcome.SLOW))


@pytest.mark.parametrize(
    ("name", "profile"),
    [("transport-no-answer", HandlerProfile.MAINTENANCE), ("transport-no-answer-preempt", HandlerProfile.SPOT)],
)
def test_a_request_may_be_given_up_after_the_ten_seconds_that_the_service_promises(
    name: str, profile: HandlerProfile
) -> None:
    claims = HandlerClaims(prepares=True, polls_every_s=3.0)
    behaviour = Behaviour(timeout_s=11.0, polls_every_s=1.0)
    case = find_case(name)
    _, observed = asyncio.run(simulate_case(case, profile, claims, behaviour))
    assert judge_case(case, observed).outcome is CaseOutcome.PASS
