"""Grades follow from the verdicts of all cases."""

from __future__ import annotations

import pytest

from forewarn.crash_test.grading import Grade, grade_handler
from forewarn.crash_test.verdict import CaseOutcome, Finding, Severity, Verdict, worst_outcome


def verdict(
    case: str, outcome: CaseOutcome, severity: Severity = Severity.LOSES_WORK, *, is_rare: bool = False
) -> Verdict:
    finding = Finding(demand="it polls", outcome=outcome, seen="it did")
    return Verdict(case=case, severity=severity, is_rare=is_rare, findings=(finding,))


GOOD = verdict("good", CaseOutcome.PASS)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        pytest.param(verdict("x", CaseOutcome.PASS), Grade.A, id="all pass"),
        pytest.param(verdict("x", CaseOutcome.NOT_APPLICABLE), Grade.A, id="not applicable"),
        pytest.param(verdict("x", CaseOutcome.SLOW), Grade.B, id="slow"),
        pytest.param(verdict("x", CaseOutcome.FAIL, Severity.NOISE), Grade.B, id="noise"),
        pytest.param(verdict("x", CaseOutcome.FAIL, Severity.DELAYS_PLATFORM), Grade.C, id="delays the platform"),
        pytest.param(verdict("x", CaseOutcome.FAIL, is_rare=True), Grade.D, id="loses work in a rare case"),
        pytest.param(verdict("x", CaseOutcome.FAIL), Grade.F, id="loses work"),
        pytest.param(verdict("x", CaseOutcome.FAIL, Severity.TOUCHES_ANOTHER_VM), Grade.F, id="touches another VM"),
        pytest.param(
            verdict("x", CaseOutcome.FAIL, Severity.TOUCHES_ANOTHER_VM, is_rare=True), Grade.F, id="also in a rare case"
        ),
        pytest.param(verdict("x", CaseOutcome.UNKNOWN), Grade.INCOMPLETE, id="unknown whether it loses work"),
        pytest.param(verdict("x", CaseOutcome.UNKNOWN, Severity.NOISE), Grade.A, id="unknown noise"),
    ],
)
def test_one_bad_case_decides_the_grade(bad: Verdict, expected: Grade) -> None:
    report = grade_handler([GOOD, bad])
    assert report.grade is expected
    assert report.because == (() if expected is Grade.A else ("x",))


def test_the_worst_case_decides_the_grade() -> None:
    slow, rare = verdict("slow", CaseOutcome.SLOW), verdict("rare", CaseOutcome.FAIL, is_rare=True)
    report = grade_handler([slow, rare, GOOD])
    assert (report.grade, report.because) == (Grade.D, ("rare",))


def test_an_unknown_outcome_does_not_hide_a_bad_grade() -> None:
    report = grade_handler([verdict("unknown", CaseOutcome.UNKNOWN), verdict("bad", CaseOutcome.FAIL)])
    assert (report.grade, report.because, report.unknown) == (Grade.F, ("bad",), ("unknown",))


@pytest.mark.parametrize("verdicts", [[], [verdict("x", CaseOutcome.NOT_APPLICABLE)]])
def test_a_handler_without_an_applicable_case_was_not_run(verdicts: list[Verdict]) -> None:
    assert grade_handler(verdicts).grade is Grade.NOT_RUN


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], CaseOutcome.NOT_APPLICABLE),
        ([CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE], CaseOutcome.PASS),
        ([CaseOutcome.PASS, CaseOutcome.SLOW], CaseOutcome.SLOW),
        ([CaseOutcome.SLOW, CaseOutcome.UNKNOWN], CaseOutcome.UNKNOWN),
        ([CaseOutcome.UNKNOWN, CaseOutcome.FAIL, CaseOutcome.PASS], CaseOutcome.FAIL),
    ],
)
def test_the_most_telling_finding_decides_a_case(outcomes: list[CaseOutcome], expected: CaseOutcome) -> None:
    assert worst_outcome(outcomes) is expected
