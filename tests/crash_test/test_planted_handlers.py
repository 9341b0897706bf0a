"""Each built-in case tells a good handler from one with the defect that it is about, for real and in namespaces."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.crash_test import remedies
from forewarn.crash_test.cases import ALL_CASES, find_case
from forewarn.crash_test.runner import JudgedCase, run_cases
from forewarn.crash_test.verdict import CaseOutcome
from tests.crash_test.planted_cases import DEFECTS, REMEDIES, describe_findings, plan_of
from tests.crash_test.planted_handler import Defect

# The fastest of each area, which `make test-crash` runs; `make test-crash-long` runs all.
FAST_CASES = {
    *("notice-8s", "whom-first-is-mine", "whom-longer-name", "reading-unchanged", "transport-slow-body"),
    *("acting-failed-preparation", "approving-after-preparing", "approving-for-others", "afterwards-still-listed"),
    *("survival-clock-ahead", "cost-errors", "reading-wrong-weekday", "whom-upper-case"),
}


EACH_CASE = pytest.mark.parametrize(
    "case_id",
    [
        pytest.param(case.id, marks=[pytest.mark.crash_long, *([pytest.mark.crash] if case.id in FAST_CASES else [])])
        for case in ALL_CASES
    ],
)


def test_every_case_has_a_defect_that_it_must_find() -> None:
    assert set(DEFECTS) == {case.id for case in ALL_CASES}


def test_every_defect_is_found_by_a_case() -> None:
    assert set(DEFECTS.values()) == set(Defect)


def test_every_area_has_a_fast_case() -> None:
    assert {find_case(case_id).area for case_id in FAST_CASES} == {case.area for case in ALL_CASES}


def test_each_case_names_the_remedy_for_the_defect_that_it_must_find() -> None:
    wrong = {
        case.id: defect
        for case in ALL_CASES
        if not {demand.remedy for demand in case.demands} & set(REMEDIES[defect := DEFECTS[case.id]])
    }
    assert wrong == {}


def test_every_remedy_belongs_to_a_case() -> None:
    texts = {text for name, text in vars(remedies).items() if name.isupper()}
    assert texts == {demand.remedy for case in ALL_CASES for demand in case.demands}


@pytest.mark.namespaces
@EACH_CASE
def test_a_case_tells_a_good_handler_from_a_defective_one(case_id: str) -> None:
    good, bad = asyncio.run(judge_both(case_id))

    assert good.verdict.outcome is CaseOutcome.PASS, describe_findings([good])
    assert bad.verdict.outcome is CaseOutcome.FAIL, describe_findings([bad])
    assert {finding.remedy for finding in bad.verdict.findings} & set(REMEDIES[DEFECTS[case_id]]), describe_findings(
        [bad]
    )


async def judge_both(case_id: str) -> tuple[JudgedCase, JudgedCase]:
    case = find_case(case_id)
    plans = (plan_of(case), plan_of(case, DEFECTS[case_id]))
    runs = await asyncio.gather(*(run_cases(plan, lambda progress: None) for plan in plans))
    return runs[0][0], runs[1][0]
