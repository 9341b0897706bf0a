"""Says in one sentence why a handler has its grade, and counts outcomes; for all reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult
from forewarn.crash_test.verdict import CaseOutcome, Severity


def explain_grade(result: CrashTestResult) -> str:
    """Return why the handler has this grade, as one sentence."""
    because = [case for case in result.cases if case.id in result.grade.because]
    count = _count_cases(len(because))
    match result.grade.grade:
        case Grade.A:
            judged = sum(case.outcome is CaseOutcome.PASS for case in result.cases)
            return f"It met every demand, in {_count_cases(judged)}."
        case Grade.B:
            return f"It loses nothing, but it is slow or noisy in {count}."
        case Grade.C:
            return f"It delays the platform in {count}."
        case Grade.D:
            return f"It loses work in {_count_cases(len(because), 'rare ')}."
        case Grade.F:
            return _explain_f(because)
        case Grade.INCOMPLETE:
            return f"It is not known whether it loses work: the outcome of {count} is unknown."
    return "The handler did not run, so it has no grade from A to F."


def count_outcomes(cases: Sequence[CaseResult]) -> str:
    """Return how many cases had which outcome, as text such as `3 fail, 2 slow, 40 pass`."""
    counts = Counter(case.outcome for case in cases)
    order = (CaseOutcome.FAIL, CaseOutcome.UNKNOWN, CaseOutcome.SLOW, CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome])


def _explain_f(because: Sequence[CaseResult]) -> str:
    touches = sum(case.severity is Severity.TOUCHES_ANOTHER_VM for case in because)
    loses = len(because) - touches
    parts = [f"loses work in {_count_cases(loses, 'common ')}"] if loses else []
    parts += [f"touches another VM in {_count_cases(touches)}"] if touches else []
    return f"It {' and '.join(parts)}."


def _count_cases(count: int, adjective: str = "") -> str:
    return f"1 {adjective}case" if count == 1 else f"{count} {adjective}cases"
