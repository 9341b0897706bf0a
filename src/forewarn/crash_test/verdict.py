"""The words of a crash test's result: outcomes, severities, findings of demands, verdicts of cases."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class CaseOutcome(StrEnum):
    """How a demand or a case ended."""

    # The values are part of the JSON report.
    PASS = "pass"
    SLOW = "slow"  # it did what was demanded, but later than it should have
    FAIL = "fail"
    UNKNOWN = "unknown"  # it cannot be judged, such as without a probe, or on a machine that was too slow
    NOT_APPLICABLE = "not applicable"  # the handler does not claim to do this, or it cannot be run or observed here


class Severity(StrEnum):
    """What a failure costs."""

    # The values are part of the JSON report.
    LOSES_WORK = "loses work"  # the application was not prepared, or does not recover
    TOUCHES_ANOTHER_VM = "touches another VM"  # it acts on, or approves, what is not its own
    DELAYS_PLATFORM = "delays the platform"  # the platform waits for an approval that does not come
    NOISE = "noise"  # it sends or writes too much, and nothing worse


# The outcome of a case is the first of these that one of its demands has.
_BY_WEIGHT = (CaseOutcome.FAIL, CaseOutcome.UNKNOWN, CaseOutcome.SLOW, CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one demand found in the timeline of a case: an outcome, and the evidence."""

    demand: str  # what was demanded, as a sentence
    outcome: CaseOutcome  # how the demand ended
    seen: str  # what was seen, or why it cannot be judged, as a sentence
    at: tuple[float, ...] = ()  # when it was seen: seconds since the start of the case, by the service's clock
    remedy: str = ""  # what to change in the handler, as a sentence; "": nothing, or it is not known


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case: the findings of its demands, and the outcome that follows from them."""

    case: str  # the id
    severity: Severity  # of a failure of this case
    is_rare: bool  # whether what the case does is rare in production
    findings: tuple[Finding, ...]  # one per demand, in their order
    reason: str = ""  # why no demand was judged; "": they were

    @property
    def outcome(self) -> CaseOutcome:
        """The outcome of the case: the first one, in a fixed order, that a finding has."""
        return worst_outcome([finding.outcome for finding in self.findings])


def worst_outcome(outcomes: list[CaseOutcome]) -> CaseOutcome:
    """Return the first of fail, unknown, slow, pass and not applicable that is among these outcomes."""
    return next((outcome for outcome in _BY_WEIGHT if outcome in outcomes), CaseOutcome.NOT_APPLICABLE)
