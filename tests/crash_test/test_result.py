"""The result of a crash test: its JSON, its grade, its warnings and its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.crash_test.claims import HandlerClaims
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.html_report import html_report
from forewarn.crash_test.result import encode_result, load_result
from forewarn.crash_test.timeline import Polled, Poller, ProgramExited, ProgramStarted, Timeline, build_timeline
from forewarn.crash_test.verdict import CaseOutcome, Severity
from forewarn.errors import Rejected
from tests.crash_test.results import a_case, a_plan, a_result, a_timeline


def test_a_result_can_be_read_from_its_json(tmp_path: Path) -> None:
    result = a_result(a_case("notice-30s", CaseOutcome.PASS), a_case("whom-neighbour", CaseOutcome.FAIL))
    path = tmp_path / "result.json"
    path.write_bytes(encode_result(result))
    assert load_result(path) == result
    document = json.loads(path.read_bytes())
    assert document["schema"] == 1
    assert document["cases"][1]["outcome"] == "fail"


def test_a_result_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"schema": 2, "more": "than we know"}')
    with pytest.raises(Rejected, match=r"newer forewarn \(schema 2\): use that version"):
        load_result(path)


@pytest.mark.parametrize(("text", "message"), [("{}", "not the JSON of a crash test"), ("no", "not the JSON")])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(Rejected, match=message):
        load_result(path)
    with pytest.raises(Rejected, match="cannot be read"):
        load_result(tmp_path / "absent.json")


def test_a_program_that_ends_at_once_everywhere_was_not_run() -> None:
    timeline = build_timeline(
        [ProgramStarted(at=0.0, vm="web-0", run=1), ProgramExited(at=0.2, vm="web-0", code=1)], 9.0
    )
    result = a_result(a_case("notice-30s", CaseOutcome.PASS), timeline=timeline)
    assert result.grade.grade is Grade.NOT_RUN
    assert result.warnings[0].startswith("The handler ended at once")
    one_shot = a_plan(a_case("notice-30s", CaseOutcome.PASS), claims=HandlerClaims(one_shot=True))
    assert a_result(*one_shot.cases, plan=one_shot, timeline=timeline).grade.grade is Grade.A


def test_a_handler_that_ran_elsewhere_and_polled_was_run() -> None:
    cases = (a_case("notice-30s", CaseOutcome.PASS), a_case("survival-killed", CaseOutcome.PASS))
    plan = replace(a_plan(*cases), command=(), attached="10.0.0.1:80", vm="web-0")
    polled = build_timeline([Polled(at=1.0, vm="web-0", by=Poller.HANDLER, status=200, answered_at=1.0)], 9.0)
    result = a_result(*cases, plan=plan, timeline=polled)
    assert result.grade.grade is Grade.A
    assert result.handler == "handler at 10.0.0.1:80"
    assert "<title>Crash test of handler at 10.0.0.1:80: grade A</title>" in html_report(result)
    assert result.warnings == ("The handler ran elsewhere. Cases that need its process were left out: 0.",)
    silent = a_result(*cases, plan=plan, timeline=Timeline())
    assert silent.grade.grade is Grade.NOT_RUN
    assert silent.warnings[0].startswith("The handler polled in no case")


def test_reports_show_a_command_as_it_was_typed() -> None:
    plan = replace(a_plan(a_case("notice-30s", CaseOutcome.PASS)), command=("handler.sh", "date > drained"))
    assert a_result(*plan.cases, plan=plan, timeline=Timeline()).handler == "handler.sh 'date > drained'"


def test_a_handler_that_was_never_started_was_not_run() -> None:
    assert a_result(a_case("notice-30s", CaseOutcome.PASS), timeline=Timeline()).grade.grade is Grade.NOT_RUN


def test_warnings_say_what_makes_a_result_worth_less() -> None:
    plan = a_plan(
        a_case("notice-30s", CaseOutcome.UNKNOWN),
        claims=HandlerClaims(prepares=True, recovers=True),
        prepared="",
        recovered="",
    )
    warnings = "\n".join(a_result(*plan.cases, plan=plan).warnings)
    assert "1 of 1 cases could not be judged" in warnings
    assert "--prepared" in warnings
    assert "--recovered" in warnings


def test_figures_follow_from_the_timelines() -> None:
    figures = a_result(a_case("notice-30s", CaseOutcome.PASS)).figures
    assert figures.notice_p50_s == figures.notice_worst_s == 2.0
    assert figures.notice_share_worst == pytest.approx(2 / 30)
    assert (figures.prepared_p50_s, figures.recovered_p50_s) == (3.0, 4.0)
    assert (figures.approvals, figures.approvals_late, figures.never_approved) == (1, 0, 0)
    assert figures.requests_at_rest_per_s == pytest.approx(1 / 9)
    assert figures.requests_in_errors_per_s == 0.0


def test_an_event_that_no_poll_got_is_never_noticed_and_uses_up_its_notice() -> None:
    timeline = a_timeline()
    deaf = build_timeline([item for item in timeline.observations if item.at not in (12.0, 14.0)], 30.0)
    figures = a_result(a_case("notice-30s", CaseOutcome.PASS), timeline=deaf).figures
    assert (figures.never_noticed, figures.notice_p50_s, figures.notice_share_worst) == (1, None, 1.0)
    assert (figures.approvals, figures.never_approved) == (0, 1)


def test_the_severity_of_a_case_is_part_of_the_result() -> None:
    result = a_result(a_case("cost-poll-rate", CaseOutcome.FAIL, severity=Severity.NOISE))
    assert (result.cases[0].severity, result.grade.grade) == (Severity.NOISE, Grade.B)
