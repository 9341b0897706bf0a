"""The same handler and seed get the same verdict again and again, and a busy machine accuses no good handler.

FOREWARN_CRASH_RUNS says how often the whole profile runs in `make test-crash-long`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forewarn.crash_test.case import Case
from forewarn.crash_test.cases import ALL_CASES, find_case
from forewarn.crash_test.claims import DEFAULT_CLAIMS, HandlerProfile
from forewarn.crash_test.preflight import select_cases
from forewarn.crash_test.runner import CrashTestPlan, JudgedCase, run_cases
from forewarn.crash_test.verdict import CaseOutcome
from tests.crash_test.planted_cases import PREPARED, RECOVERED, describe_findings, handler_command
from tests.crash_test.planted_handler import Defect

pytestmark = pytest.mark.namespaces

PROFILE = HandlerProfile.MAINTENANCE
WHOLE_PROFILE = select_cases(ALL_CASES, PROFILE)
FAST_CASES = tuple(
    find_case(case_id)
    for case_id in ("whom-first-is-mine", "reading-unchanged", "approving-after-preparing", "approving-answer-lost")
)
RUNS = int(os.environ.get("FOREWARN_CRASH_RUNS", "10"))
CORES = os.cpu_count() or 1
HANDLERS = {
    "good": (),
    "naive": (
        *(Defect.COMPARES_EXACTLY, Defect.EXITS_ON_BAD_DOCUMENT, Defect.EXITS_ON_CONNECTION_ERROR),
        *(Defect.HAS_NO_TIMEOUT, Defect.FORGETS_AT_RESTART, Defect.MARKS_DONE_FIRST),
    ),
    "bad": (
        *(Defect.IGNORES_RESOURCES, Defect.APPROVES_FIRST, Defect.APPROVES_TWICE, Defect.NEVER_RECOVERS),
        *(Defect.RETRIES_WITHOUT_PAUSE, Defect.NEEDS_FREE_LOCK),
    ),
}
EACH_HANDLER = pytest.mark.parametrize("defects", HANDLERS.values(), ids=list(HANDLERS))


def run_planted(cases: tuple[Case, ...], defects: tuple[Defect, ...]) -> list[JudgedCase]:
    """Run the planted handler with these defects through the cases, always with the same seed."""
    claims = DEFAULT_CLAIMS[PROFILE]
    plan = CrashTestPlan(
        command=handler_command(claims, PROFILE, *defects),
        profile=PROFILE,
        claims=claims,
        cases=cases,
        prepared=PREPARED,
        recovered=RECOVERED,
        at_once=6 * CORES,
        seed=7,
    )
    return asyncio.run(run_cases(plan, lambda progress: None))


def outcomes(judged: list[JudgedCase]) -> dict[str, CaseOutcome]:
    return {item.case.id: item.verdict.outcome for item in judged}


def require_same_verdicts(cases: tuple[Case, ...], defects: tuple[Defect, ...], runs: int) -> None:
    """Run the cases this often, and fail with both findings if a verdict changes, or a good handler does not pass."""
    first = run_planted(cases, defects)
    if not defects:
        blamed = [item for item in first if item.verdict.outcome not in (CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)]
        assert blamed == [], describe_findings(blamed)
    for _ in range(runs - 1):
        again = run_planted(cases, defects)
        changed = [
            both for both in zip(first, again, strict=True) if both[0].verdict.outcome != both[1].verdict.outcome
        ]
        assert changed == [], "\n\n".join(describe_findings(both) for both in changed)


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core of the machine busy, for the time of a block."""
    loops = [subprocess.Popen((sys.executable, "-S", "-c", "while True: pass")) for _ in range(CORES)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.crash
@EACH_HANDLER
def test_three_runs_of_a_handler_get_the_same_verdicts(defects: tuple[Defect, ...]) -> None:
    require_same_verdicts(FAST_CASES, defects, 3)


@pytest.mark.crash_long
@pytest.mark.timeout(RUNS * 900)
@EACH_HANDLER
def test_many_runs_of_a_whole_profile_get_the_same_verdicts(defects: tuple[Defect, ...]) -> None:
    require_same_verdicts(WHOLE_PROFILE, defects, RUNS)


@pytest.mark.crash_long
@pytest.mark.timeout(RUNS * 900)
def test_a_busy_machine_fails_no_good_handler() -> None:
    with busy_cores():
        for _ in range(RUNS):
            judged = run_planted(WHOLE_PROFILE, HANDLERS["good"])
            failed = [item for item in judged if item.verdict.outcome is CaseOutcome.FAIL]
            assert failed == [], describe_findings(failed)


@pytest.mark.crash_long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["naive", "bad"])
def test_a_busy_machine_finds_no_fault_that_an_idle_one_does_not(name: str) -> None:
    idle = run_planted(WHOLE_PROFILE, HANDLERS[name])
    with busy_cores():
        busy = run_planted(WHOLE_PROFILE, HANDLERS[name])
    new = [
        item
        for item in busy
        if item.verdict.outcome is CaseOutcome.FAIL and outcomes(idle)[item.case.id] is CaseOutcome.PASS
    ]
    assert new == [], describe_findings(new)
