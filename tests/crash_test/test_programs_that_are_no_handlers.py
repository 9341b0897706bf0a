"""Programs that do not poll, exit at once, or approve blindly get the right verdict, for the right reasons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult, load_result
from forewarn.crash_test.verdict import CaseOutcome, Severity
from tests.crash_test.planted_cases import PREPARED, RECOVERED

pytestmark = [pytest.mark.crash, pytest.mark.namespaces]

POLL = """
import json, time, urllib.request

URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"

def call(body=None):
    request = urllib.request.Request(URL, data=body, headers={"Metadata": "true"})
    return urllib.request.urlopen(request, timeout=5).read()

"""
BLIND = """
while True:
    for event in json.loads(call())["Events"]:
        if event["EventStatus"] == "Scheduled":
            call(json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
    time.sleep(1)
"""
ONE_LOOK = """
for event in json.loads(call())["Events"]:
    if event["EventStatus"] == "Scheduled":
        open("prepared", "w").close()
"""


def crash_test(directory: Path, *command: str, only: str, claims: str = "") -> tuple[int, CrashTestResult, str]:
    """Run the command; returns its exit status, the result that it wrote, and its output."""
    (directory / "claims.toml").write_text(claims)
    arguments = ("crash-test", "--only", only, "--json", "result.json", "--claims", "claims.toml")
    probes = ("--prepared", PREPARED, "--recovered", RECOVERED)
    line = (sys.executable, "-m", "forewarn", *arguments, *probes, "--", *command)
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    assert (directory / "result.json").exists(), done.stderr
    return done.returncode, load_result(directory / "result.json"), done.stdout


def seen(case: CaseResult) -> dict[str, tuple[CaseOutcome, str]]:
    return {finding.demand: (finding.outcome, finding.seen) for finding in case.verdict.findings}


def test_without_a_handler_nothing_runs(tmp_path: Path) -> None:
    line = (sys.executable, "-m", "forewarn", "crash-test", "--json", "result.json", "--")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "no handler is given: write its command after `--`" in done.stderr


def test_a_program_that_exits_at_once_was_not_run(tmp_path: Path) -> None:
    status, result, output = crash_test(tmp_path, "true", only="notice-shorter-than-promised")

    assert (status, result.grade.grade) == (2, Grade.NOT_RUN)
    assert "The handler ended at once in every case: it was not run." in result.warnings[0]
    assert "not run" in output


def test_a_program_that_never_polls_fails_because_it_never_polls(tmp_path: Path) -> None:
    status, result, _ = crash_test(tmp_path, "sleep", "1000", only="notice-shorter-than-promised")

    assert (status, result.grade.grade) == (1, Grade.D)
    assert result.warnings[0].startswith("The handler never polled")
    (case,) = result.cases
    outcome, reason = seen(case)["it gets the event at least 4 s before NotBefore"]
    assert outcome is CaseOutcome.FAIL
    assert reason.startswith("no poll got the event")
    assert seen(case)["it does not exit"][0] is CaseOutcome.PASS


def test_a_one_shot_program_that_never_polls_is_not_excused(tmp_path: Path) -> None:
    status, result, _ = crash_test(
        tmp_path, "true", only="notice-shorter-than-promised", claims="one-shot = true\napproves = 'none'"
    )

    assert (status, result.grade.grade) == (1, Grade.D)
    assert result.warnings[0].startswith("The handler never polled")
    (case,) = result.cases
    assert seen(case)["it gets the event at least 4 s before NotBefore"][0] is CaseOutcome.FAIL
    assert seen(case)["it does not exit"][0] is CaseOutcome.NOT_APPLICABLE


def test_a_one_shot_program_that_looks_and_prepares_passes(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(POLL + ONE_LOOK)
    status, result, _ = crash_test(
        tmp_path,
        *(sys.executable, "-S", "look.py"),
        only="notice-shorter-than-promised",
        claims="one-shot = true\napproves = 'none'",
    )

    assert (status, result.grade.grade) == (0, Grade.A), result.cases[0].verdict


def test_a_program_that_approves_blindly_loses_work_and_touches_other_vms(tmp_path: Path) -> None:
    (tmp_path / "blind.py").write_text(POLL + BLIND)
    status, result, _ = crash_test(
        tmp_path,
        *(sys.executable, "-S", "blind.py"),
        only="approving-after-preparing,approving-for-others,approving-in-time",
    )

    assert (status, result.grade.grade) == (1, Grade.F)
    cases = {case.id: case for case in result.cases}
    outcome, reason = seen(cases["approving-after-preparing"])["it approves the event only after it is prepared"]
    assert outcome is CaseOutcome.FAIL
    assert "and was never prepared" in reason
    others = cases["approving-for-others"]
    assert (others.outcome, others.severity) == (CaseOutcome.FAIL, Severity.TOUCHES_ANOTHER_VM)
    outcome, reason = seen(others)["it approves events of its own VM only"]
    assert outcome is CaseOutcome.FAIL
    assert reason.endswith("db-0 approved an event that is for db-1")
    assert cases["approving-in-time"].outcome is CaseOutcome.PASS
