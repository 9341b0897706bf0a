"""Handlers that others wrote get the verdicts of docs/explanation/crash-test-handlers.md (reasons: `baselines`).

`tests/crash_test/foreign/install_handlers.sh` fetches them, as `make test-crash-long` does. The test of a handler that
was not fetched is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forewarn.crash_test.baseline import load_baseline
from forewarn.crash_test.cases import ALL_CASES
from tests.crash_test.foreign.__main__ import run_foreign_handler
from tests.crash_test.foreign.handlers import FOREIGN_HANDLERS, ForeignHandler, find_handler

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "crash-test-handlers.md"
EACH_HANDLER = pytest.mark.parametrize("handler", FOREIGN_HANDLERS, ids=lambda handler: handler.name)
BLIND = find_handler("termination-handler")  # it never polls, so it fails every case with an event


def run_crash_test(handler: ForeignHandler, directory: Path, *options: str) -> dict[str, Any]:
    """Run a handler's crash test and return its result; skips the test if the handler was not fetched."""
    if not handler.needs.exists():
        pytest.skip(f"{handler.name} was not fetched: see tests/crash_test/foreign/install_handlers.sh")
    result = directory / "result.json"
    run_foreign_handler(handler, ("--json", str(result), *options))
    document: dict[str, Any] = json.loads(result.read_bytes())
    return document


def outcomes(result: dict[str, Any]) -> dict[str, str]:
    return {case["id"]: case["outcome"] for case in result["cases"]}


@pytest.mark.crash
@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("name", "case", "expected"),
    [
        ("azure-events-az-debian-12", "approving-in-time", "fail"),
        ("azure-events-az-debian-13", "approving-in-time", "pass"),
        ("ai4s-jobq", "whom-neighbour-evicted", "fail"),
    ],
)
def test_one_case_tells_what_a_handler_does(name: str, case: str, expected: str, tmp_path: Path) -> None:
    assert outcomes(run_crash_test(find_handler(name), tmp_path, "--only", case)) == {case: expected}


@pytest.mark.crash_long
@pytest.mark.namespaces
@EACH_HANDLER
def test_a_whole_profile_has_no_failures_but_the_known_ones(handler: ForeignHandler, tmp_path: Path) -> None:
    result = run_crash_test(handler, tmp_path)
    assert result["grade"]["grade"] == handler.grade
    if handler is BLIND:
        assert any("never polled" in warning for warning in result["warnings"])
        return
    known = load_baseline(handler.baseline, [case.id for case in ALL_CASES])
    failed = {case for case, outcome in outcomes(result).items() if outcome == "fail"}
    assert failed - set(known) == set()


@EACH_HANDLER
def test_the_page_has_the_grade_and_every_known_failure(handler: ForeignHandler) -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition(f"\n## {handler.name}\n")[2].partition("\n## ")[0]
    assert f"Grade **{handler.grade}**" in section
    if handler is BLIND:
        return
    for case, reason in load_baseline(handler.baseline, [case.id for case in ALL_CASES]).items():
        assert f"`{case}`" in section
        assert reason in section
