"""The handlers in examples/handlers get the grades that their README promises, with the README's own commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.crash_test.cases import ALL_CASES
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.verdict import CaseOutcome
from tests.support.example_handlers import (
    describe_failures,
    missing_programs,
    readme_command,
    readme_text,
    run_crash_test,
)

GOOD_HANDLERS = ("shell", "python", "node", "go")
AGENT_CASES = {  # of each profile, a few that the agent once failed or that need several VMs
    "maintenance": "notice-reboot,transport-huge,survival-full-disk",
    "spot": "notice-30s,transport-no-answer-preempt",
    "cluster": "approving-in-time,approving-approver-dies",
    "observer": "notice-none,transport-refused",
}
FEW_CASES = "notice-reboot,whom-neighbour-only,reading-empty-body,afterwards-reboot"
FEW_CASES_THAT_THE_BAD_ONE_FAILS = ("whom-neighbour-only", "reading-empty-body", "reading-unchanged")
LONGEST_PROFILE_S = 1800

EACH_GOOD_HANDLER = pytest.mark.parametrize("handler", [f"{name}/" for name in GOOD_HANDLERS], ids=GOOD_HANDLERS)


def require_programs(handler: str) -> None:
    if missing := missing_programs(handler):
        pytest.skip(f"{' and '.join(missing)} not installed")


def faults_of_bad_handler() -> list[list[str]]:
    """The cases that the README says the bad handler fails, for each row of its table."""
    table = readme_text().partition("## The bad one")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    known = {case.id for case in ALL_CASES}
    return [[name for name in re.findall(r"`([a-z0-9-]+)`", row) if name in known] for row in rows]


@EACH_GOOD_HANDLER
def test_the_readme_has_commands_for_each_handler(handler: str) -> None:
    assert f"forewarn crash-test --claims {handler}claims.toml" in readme_command(handler)


def test_the_readme_names_a_case_for_each_thing_that_the_bad_handler_does_wrong() -> None:
    faults = faults_of_bad_handler()
    assert len(faults) >= 6
    assert all(faults)


@pytest.mark.crash
@pytest.mark.namespaces
@EACH_GOOD_HANDLER
def test_a_good_handler_passes_a_few_cases(handler: str, tmp_path: Path) -> None:
    require_programs(handler)
    status, result = run_crash_test(handler, f"--only {FEW_CASES}", tmp_path)
    assert (result.grade.grade, status) == (Grade.A, 0), describe_failures(result)


@pytest.mark.crash
@pytest.mark.namespaces
@pytest.mark.parametrize(("profile", "cases"), AGENT_CASES.items(), ids=AGENT_CASES)
def test_the_agent_passes_a_few_cases_of_each_profile(profile: str, cases: str, tmp_path: Path) -> None:
    status, result = run_crash_test(f"agent/{profile}-", f"--only {cases}", tmp_path)
    assert (result.grade.grade, status) == (Grade.A, 0), describe_failures(result)


@pytest.mark.crash
@pytest.mark.namespaces
def test_the_bad_handler_fails_a_few_cases(tmp_path: Path) -> None:
    status, result = run_crash_test("bad/", f"--only {','.join(FEW_CASES_THAT_THE_BAD_ONE_FAILS)}", tmp_path)
    assert (result.grade.grade, status) == (Grade.F, 1)
    assert {case.id: case.outcome for case in result.cases} == dict.fromkeys(
        FEW_CASES_THAT_THE_BAD_ONE_FAILS, CaseOutcome.FAIL
    )


@pytest.mark.crash_long
@pytest.mark.namespaces
@pytest.mark.timeout(LONGEST_PROFILE_S)
@pytest.mark.parametrize("profile", ["maintenance", "spot"])
@EACH_GOOD_HANDLER
def test_a_good_handler_gets_an_a(handler: str, profile: str, tmp_path: Path) -> None:
    require_programs(handler)
    status, result = run_crash_test(handler, f"--profile {profile}", tmp_path)
    assert (result.grade.grade, status) == (Grade.A, 0), describe_failures(result)


@pytest.mark.crash_long
@pytest.mark.namespaces
@pytest.mark.timeout(LONGEST_PROFILE_S)
@pytest.mark.parametrize("profile", AGENT_CASES)
def test_the_agent_gets_an_a_in_each_profile(profile: str, tmp_path: Path) -> None:
    status, result = run_crash_test(f"agent/{profile}-", "", tmp_path)
    assert (result.grade.grade, status) == (Grade.A, 0), describe_failures(result)


@pytest.mark.crash_long
@pytest.mark.namespaces
@pytest.mark.timeout(LONGEST_PROFILE_S)
def test_the_bad_handler_gets_an_f_for_the_reasons_in_the_readme(tmp_path: Path) -> None:
    status, result = run_crash_test("bad/", "", tmp_path)
    assert (result.grade.grade, status) == (Grade.F, 1)
    failed = {case.id for case in result.cases if case.outcome is CaseOutcome.FAIL}
    assert {name for row in faults_of_bad_handler() for name in row} <= failed
