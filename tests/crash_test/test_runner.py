"""Running cases side by side: what cannot run is not applicable or unknown, never a failure of the handler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.crash_test.case import Need
from forewarn.crash_test.claims import HandlerProfile
from forewarn.crash_test.preflight import select_cases
from forewarn.crash_test.runner import RunProgress, run_cases
from forewarn.crash_test.verdict import CaseOutcome
from forewarn.errors import Rejected
from tests.crash_test.results import a_case, a_plan


def test_a_case_that_needs_namespaces_is_not_applicable_without_them() -> None:
    case = replace(a_case("survival-full-disk", CaseOutcome.FAIL), needs=frozenset({Need.NAMESPACES}))
    plan = replace(a_plan(case), endpoint_env="URL")
    states: list[tuple[int, int]] = []

    def on_progress(progress: RunProgress) -> None:
        states.append((len(progress.running), len(progress.done)))

    (judged,) = asyncio.run(run_cases(plan, on_progress))
    assert judged.verdict.outcome is CaseOutcome.NOT_APPLICABLE
    assert "--endpoint-env" in judged.verdict.reason
    assert states == [(1, 0), (0, 1)]


def test_a_case_that_needs_several_copies_is_not_applicable_in_a_profile_with_one() -> None:
    case = replace(a_case("whom-nobody", CaseOutcome.FAIL), needs=frozenset({Need.SEVERAL_VMS}))
    plan = replace(a_plan(case), profile=HandlerProfile.SPOT)
    (judged,) = asyncio.run(run_cases(plan, lambda progress: None))
    assert judged.verdict.outcome is CaseOutcome.NOT_APPLICABLE
    assert "--profile cluster" in judged.verdict.reason


def test_a_case_whose_process_cannot_run_it_is_unknown() -> None:
    plan = a_plan(a_case("notice-of-nobody", CaseOutcome.FAIL))
    (judged,) = asyncio.run(run_cases(plan, lambda progress: None))
    assert judged.verdict.outcome is CaseOutcome.UNKNOWN
    assert "notice-of-nobody" in judged.verdict.reason


def test_modules_in_the_directory_of_the_handler_do_not_replace_those_of_the_crash_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h11.py").write_text("raise SystemExit('a program of the user')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (judged,) = asyncio.run(run_cases(a_plan(a_case("notice-of-nobody", CaseOutcome.FAIL)), lambda progress: None))
    assert "notice-of-nobody" in judged.verdict.reason


def test_cases_are_selected_by_profile_area_and_id() -> None:
    every = a_case("notice-30s", CaseOutcome.PASS)
    spot = replace(a_case("notice-8s", CaseOutcome.PASS), profiles=frozenset({HandlerProfile.SPOT}))
    other = a_case("cost-memory", CaseOutcome.PASS)
    cases = (every, spot, other)
    assert select_cases(cases, HandlerProfile.CLUSTER) == (every, other)
    assert select_cases(cases, HandlerProfile.SPOT, ["notice"]) == (every, spot)
    assert select_cases(cases, HandlerProfile.SPOT, ["notice-8s"]) == (spot,)
    with pytest.raises(Rejected, match="the case 'notice-8s' does not belong to profile cluster: use --profile spot"):
        select_cases(cases, HandlerProfile.CLUSTER, ["notice-8s"])
