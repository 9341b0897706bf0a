"""What to fix in a handler, most important first: the remedies of all failed and slow demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forewarn.crash_test.result import CaseResult
from forewarn.crash_test.verdict import CaseOutcome, Finding, Severity

_ORDER = (Severity.TOUCHES_ANOTHER_VM, Severity.LOSES_WORK, Severity.DELAYS_PLATFORM, Severity.NOISE)


@dataclass(frozen=True, slots=True)
class HandlerFix:
    """One thing to change in the handler, and the cases that show it; `find_fixes` makes it."""

    remedy: str  # what to do, as a sentence
    outcome: CaseOutcome  # fail or slow: the worst of its cases
    severity: Severity  # of its first case
    cases: tuple[CaseResult, ...]  # in which it was missing, worst first
    seen: str  # what the first of them saw


def find_fixes(cases: Sequence[CaseResult]) -> list[HandlerFix]:
    """Return everything to fix in the handler, most important first; [] if nothing failed or was slow."""
    found: dict[str, list[tuple[CaseResult, Finding]]] = {}
    for case in sorted(cases, key=_rank):
        for finding in case.verdict.findings:
            if finding.outcome is case.outcome and finding.outcome in (CaseOutcome.FAIL, CaseOutcome.SLOW):
                found.setdefault(finding.remedy or f"Make this true: {finding.demand.rstrip('.')}.", []).append(
                    (case, finding)
                )
    fixes = [_make_fix(remedy, pairs) for remedy, pairs in found.items()]
    return sorted(fixes, key=lambda fix: (*_rank(fix.cases[0]), -len(fix.cases)))


def _make_fix(remedy: str, pairs: Sequence[tuple[CaseResult, Finding]]) -> HandlerFix:
    case, finding = pairs[0]
    cases = {other.id: other for other, _ in pairs}
    return HandlerFix(remedy, case.outcome, case.severity, tuple(cases.values()), finding.seen)


def _rank(case: CaseResult) -> tuple[bool, int, bool]:
    return case.outcome is not CaseOutcome.FAIL, _ORDER.index(case.severity), case.verdict.is_rare
