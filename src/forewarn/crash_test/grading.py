"""Grades a handler from the verdicts of all cases of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from forewarn.crash_test.verdict import CaseOutcome, Severity, Verdict


class Grade(StrEnum):
    """The grade of a handler in one profile."""

    # The values are part of the JSON report.
    A = "A"  # nothing failed or was slow
    B = "B"  # at worst slow, or noise
    C = "C"  # delays the platform
    D = "D"  # loses work in a rare case
    F = "F"  # loses work in a common case, or touches another VM
    INCOMPLETE = "incomplete"  # it is not known whether it loses work, and nothing is worse than B
    NOT_RUN = "not run"  # the handler did not run, or no case was applicable


class GradeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A grade, and the cases that decide it, in the order of the verdicts."""

    grade: Grade  # the worst that a case allows
    because: tuple[str, ...] = ()  # ids of the cases that would have to change for a better grade; () for an A
    unknown: tuple[str, ...] = ()  # ids of cases that lose work if they fail, and whose outcome is unknown


def grade_handler(verdicts: Sequence[Verdict]) -> GradeReport:
    """Return the grade that follows from the verdicts of one profile, with the cases that decide it."""
    applicable = [verdict for verdict in verdicts if verdict.outcome is not CaseOutcome.NOT_APPLICABLE]
    if not applicable:
        return GradeReport(grade=Grade.NOT_RUN)
    unknown = tuple(
        v.case for v in applicable if v.outcome is CaseOutcome.UNKNOWN and v.severity is Severity.LOSES_WORK
    )
    worst = Grade.A
    because: tuple[str, ...] = ()
    for grade in (Grade.F, Grade.D, Grade.C, Grade.B):
        because = tuple(verdict.case for verdict in applicable if _grade_of_case(verdict) is grade)
        if because:
            worst = grade
            break
    if unknown and worst in (Grade.A, Grade.B):
        return GradeReport(grade=Grade.INCOMPLETE, because=unknown, unknown=unknown)
    return GradeReport(grade=worst, because=because, unknown=unknown)


def _grade_of_case(verdict: Verdict) -> Grade:
    """Return the best grade that a handler with this verdict can have."""
    if verdict.outcome is CaseOutcome.SLOW:
        return Grade.B
    if verdict.outcome is not CaseOutcome.FAIL:
        return Grade.A
    match verdict.severity:
        case Severity.NOISE:
            return Grade.B
        case Severity.DELAYS_PLATFORM:
            return Grade.C
        case Severity.LOSES_WORK if verdict.is_rare:
            return Grade.D
        case _:
            return Grade.F
