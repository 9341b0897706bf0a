"""The reports of a crash test: for the terminal, for CI systems, for people with a browser; the badge, the baseline."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from forewarn.cli.crash_test_run import ReportFiles, report_result
from forewarn.cli.invocation import Invocation
from forewarn.crash_test.baseline import baseline_text, compare_with_baseline, load_baseline
from forewarn.crash_test.case import Case
from forewarn.crash_test.ci_reports import badge_svg, junit_xml
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.html_report import html_report, timeline_svg
from forewarn.crash_test.result import CrashTestResult
from forewarn.crash_test.text_report import explain_grade, find_fixes, render_result
from forewarn.crash_test.timeline import Disturbance, EventPublished, Impact, ProgramOutput, Timeline
from forewarn.crash_test.verdict import CaseOutcome, Severity
from forewarn.errors import Rejected
from tests.crash_test.results import a_case, a_result, a_timeline

ONE_OF_EACH = tuple(
    a_case(f"notice-{outcome.name.lower().replace('_', '-')}", outcome, seen=f"this was {outcome}")
    for outcome in CaseOutcome
)


def text_of(result: CrashTestResult, *, width: int = 120, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_result(result, **options))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_terminal_shows_warnings_first_and_the_grade_last() -> None:
    lines = text_of(a_result(*ONE_OF_EACH)).splitlines()
    assert lines[0].startswith("! 1 of 5 cases could not be judged")
    assert lines[-2] == "Grade F: It loses work in 1 common case."
    assert lines[-1] == "What decides it: notice-fail"


def test_the_terminal_shows_evidence_only_of_what_did_not_pass() -> None:
    text = text_of(a_result(*ONE_OF_EACH))
    assert "fail: this was fail" in text
    assert "unknown: this was unknown" in text
    assert "this was pass" not in text
    assert "✓~✗?–" in text


def test_the_terminal_shows_failures_before_slowness_and_how_to_run_them_again() -> None:
    text = text_of(a_result(*ONE_OF_EACH), result_file="my result.json")
    assert text.index("✗ notice-fail") < text.index("~ notice-slow") < text.index("? unknown: this was unknown")
    assert "run it again: forewarn crash-test replay 'my result.json' --case notice-fail" in text
    assert "run it again: the same command with --only notice-fail" in text_of(a_result(*ONE_OF_EACH))


def test_the_terminal_shows_what_was_done_to_a_failing_handler_and_its_last_words() -> None:
    more = (Disturbance(at=28.0, text="the handler was killed"), Disturbance(at=29.0, vm="web-1", text="not ours"))
    timeline = a_timeline(*more, ProgramOutput(at=29.0, vm="web-1", text="not ours"))
    text = text_of(a_result(*ONE_OF_EACH, timeline=timeline))
    assert "disturbed: answers 503 (from 20.0 s to 26.0 s); the handler was killed (at 28.0 s)" in text
    assert "last output: done <b>&\ufffd[31m" in text
    assert "not ours" not in text


@pytest.mark.parametrize(
    ("outcomes", "expected", "allow_unknown", "code"),
    [
        ([CaseOutcome.PASS, CaseOutcome.SLOW], {}, False, 0),
        ([CaseOutcome.FAIL], {}, False, 1),
        ([CaseOutcome.FAIL], {"notice-0": "known"}, False, 0),
        ([CaseOutcome.FAIL, CaseOutcome.UNKNOWN], {}, True, 1),
        ([CaseOutcome.NOT_APPLICABLE], {}, True, 2),
        ([CaseOutcome.PASS, CaseOutcome.UNKNOWN], {}, False, 3),
        ([CaseOutcome.PASS, CaseOutcome.UNKNOWN], {}, True, 0),
        ([CaseOutcome.FAIL, CaseOutcome.UNKNOWN], {"notice-0": "known"}, False, 3),
    ],
)
def test_the_exit_code_tells_whether_work_is_lost_or_may_be(
    outcomes: list[CaseOutcome], expected: dict[str, str], allow_unknown: bool, code: int
) -> None:
    result = a_result(*(a_case(f"notice-{number}", outcome) for number, outcome in enumerate(outcomes)))
    assert report_result(Invocation(), result, ReportFiles(), expected, allow_unknown=allow_unknown) == code


def test_the_terminal_says_what_to_fix_before_the_grade() -> None:
    case = a_case("notice-30s", CaseOutcome.FAIL)
    case = replace(case, demands=(replace(case.demands[0], remedy="Poll more often."),))
    lines = text_of(a_result(case)).splitlines()
    fix = next(line for line in lines if line.startswith("1. Poll more often. (notice-30s; owner/repository#7)"))
    assert lines.index(fix) < lines.index("Grade F: It loses work in 1 common case.")


def test_the_terminal_names_failures_that_the_baseline_expects() -> None:
    text = text_of(a_result(*ONE_OF_EACH), expected={"notice-fail"})
    assert "The title of notice-fail (expected by the baseline)" in text


def test_a_handler_that_was_not_run_gets_one_warning_and_its_grade() -> None:
    text = text_of(a_result(*ONE_OF_EACH, timeline=Timeline()))
    assert text.count("!") == 1
    assert "✓" not in text
    assert text.splitlines()[-1] == "Grade not run: The handler did not run, so it has no grade from A to F."


@pytest.mark.parametrize("width", [80, 60, 40])
def test_the_terminal_report_fits_any_width(width: int) -> None:
    long = a_case("survival-killed-while-preparing-and-once-more", CaseOutcome.FAIL, seen="it did nothing " * 20)
    many = [a_case(f"transport-{number}", CaseOutcome.PASS) for number in range(40)]
    text = text_of(a_result(*ONE_OF_EACH, long, *many), width=width, result_file="result.json")
    assert max(map(len, text.splitlines())) <= width
    assert "survival-killed-while-preparing-and-once-more" in text.replace("\n", "").replace(" ", "")


def test_output_of_a_handler_cannot_steer_the_terminal() -> None:
    text = text_of(a_result(a_case("notice-30s", CaseOutcome.FAIL, seen="bad \x1b]0;title\x07 output")))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_junit_has_a_test_for_every_case() -> None:
    quiet = a_case("cost-quiet", CaseOutcome.UNKNOWN, severity=Severity.NOISE)
    (suite,) = ElementTree.fromstring(junit_xml(a_result(*ONE_OF_EACH, quiet)))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "6",
        "1",
        "1",
        "2",
    )
    kinds = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert kinds == {
        "notice-pass": ["system-out"],
        "notice-slow": ["system-out"],
        "notice-fail": ["failure"],
        "notice-unknown": ["error"],
        "notice-not-applicable": ["skipped"],
        "cost-quiet": ["skipped"],
    }


def test_junit_has_only_what_ci_systems_read() -> None:
    """The elements and attributes of the schema that Jenkins checks, which GitLab and GitHub actions read too."""
    children = {
        "testsuites": {"testsuite"},
        "testsuite": {"properties", "testcase"},
        "properties": {"property"},
        "testcase": {"failure", "error", "skipped", "system-out"},
    }
    attributes = {
        "testsuites": set(),
        "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
        "testcase": {"name", "classname", "time"},
        "property": {"name", "value"},
        **{name: {"message", "type"} for name in ("failure", "error", "skipped")},
    }
    root = ElementTree.fromstring(junit_xml(a_result(*ONE_OF_EACH)))
    assert root.tag == "testsuites"
    for element in root.iter():
        assert {child.tag for child in element} <= children.get(element.tag, set()), element.tag
        assert set(element.attrib) == attributes.get(element.tag, set()), element.tag
    suite = root[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp") or "")
    assert re.fullmatch(r"\d+\.\d{3}", suite.get("time") or "")
    properties = {item.get("name"): item.get("value") for item in suite.iter("property")}
    assert (properties["grade"], properties["profile"], properties["seed"]) == ("F", "maintenance", "0")
    assert (properties["warning 1"] or "").startswith("1 of 5 cases could not be judged")


def test_junit_skips_failures_that_the_baseline_expects() -> None:
    (suite,) = ElementTree.fromstring(junit_xml(a_result(*ONE_OF_EACH), {"notice-fail": "we know"}))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "2")
    skipped = suite.find("testcase[@name='notice-fail']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "expected failure (we know): this was fail"


def test_junit_replaces_characters_that_xml_does_not_allow() -> None:
    xml = junit_xml(a_result(a_case("notice-30s", CaseOutcome.FAIL, seen="zero \x00 and \x1b")))
    assert ElementTree.fromstring(xml).find(".//failure") is not None


@pytest.mark.parametrize("grade", Grade)
def test_a_badge_is_an_image_that_says_its_grade(grade: Grade) -> None:
    svg = ElementTree.fromstring(badge_svg(grade))
    assert svg.get("aria-label") == f"crash test: {grade.value}"


def test_the_report_loads_nothing_from_elsewhere_and_runs_no_script() -> None:
    page = html_report(a_result(*ONE_OF_EACH))
    assert not re.findall(r"<(?:script|link|img|iframe|object)\b", page)
    assert not re.findall(r"""(?:src|@import|url\()\s*=?\s*["']?https?:""", page)


def test_the_report_escapes_what_a_handler_writes() -> None:
    page = html_report(a_result(a_case("notice-30s", CaseOutcome.FAIL, seen="<script>alert(1)</script>")))
    assert "<script>" not in page
    assert "done &lt;b&gt;&amp;\ufffd[31m" in page


def test_the_report_puts_failures_first_and_links_sources() -> None:
    page = html_report(a_result(*ONE_OF_EACH))
    cases = re.findall(r'<details id="([^"]+)"( open)?>', page)
    assert re.findall(r"<h2>(\w[\w ]+) <span", page) == [
        "Failed",
        "Could not be judged",
        "Slow",
        "Passed",
        "Not applicable",
    ]
    assert [case for case, _ in cases] == [
        "notice-fail",
        "notice-unknown",
        "notice-slow",
        "notice-pass",
        "notice-not-applicable",
    ]
    assert [bool(is_open) for _, is_open in cases] == [True, False, False, False, False]
    assert '<a href="https://github.com/owner/repository/issues/7">owner/repository#7</a>' in page
    assert "crash-test replay RESULT.json --case notice-fail" in page


def test_every_timeline_is_well_formed_and_says_what_it_shows() -> None:
    svg = ElementTree.fromstring(timeline_svg(a_timeline(), "web-0", title="a <title>", failed_at=[14.0]))
    labels = [element.text for element in svg.iter() if element.get("class") == "row"]
    assert labels == ["Reboot", "impact", "disturbance", "program", "polls", "approvals", "prepared", "recovered"]
    assert sum(element.get("class") == "failure" for element in svg.iter()) == 1
    alternative = svg.get("aria-label") or ""
    assert alternative.startswith("a <title>. Reboot: Reboot of web-0 is Scheduled at 10.0 s until 15.0 s; ")
    assert "approvals: approval: status 200 at 14.0 s." in alternative


def test_things_that_happen_at_the_same_time_have_rows_of_their_own_in_a_picture() -> None:
    timeline = a_timeline(
        Impact(at=15.0, vm="web-1", verb="reboot", until=17.0),
        Disturbance(at=21.0, vm="web-0", text="the handler was killed"),
        Disturbance(at=27.0, vm="web-0", text="answers 429", until=29.0),
    )
    svg = ElementTree.fromstring(timeline_svg(timeline, "web-0", title="a case"))
    labels = [element.text or "" for element in svg.iter() if element.get("class") == "row"]
    assert labels[:5] == ["Reboot", "impact web-0", "impact web-1", "disturbance", ""]
    texts = {element.text: element.get("y") for element in svg.iter() if element.get("class") == "inside-bar"}
    assert texts["the handler was killed"] != texts["answers 503"]


def test_a_picture_does_not_show_the_not_before_of_an_event_that_was_over() -> None:
    svg = timeline_svg(a_timeline(), "web-0", title="a case")  # NotBefore at 40 s, over at 18 s
    assert "NotBefore" not in svg


def test_a_picture_ends_with_its_case_also_if_an_event_is_a_week_away() -> None:
    week = EventPublished(at=1.0, event="far", kind="Freeze", vms=("web-0",), not_before=7 * 86_400.0)
    svg = ElementTree.fromstring(timeline_svg(a_timeline(week), "web-0", title="a case"))
    ticks = [element.text for element in svg.iter() if element.get("class") == "tick"]
    assert ticks[-1] == "30 s"


def test_the_report_says_first_what_limits_it_then_the_grade_then_what_to_fix() -> None:
    page = html_report(a_result(*ONE_OF_EACH))
    headings = re.findall(r"<h2[^>]*>([^<]+)|<p class=\"why\">([^<]+)", page)
    assert ["".join(found).strip() for found in headings][:5] == [
        "Read this first: it limits what the grade says",
        "It loses work in 1 common case.",
        "Fix first",
        "Figures",
        "All cases by area",
    ]


def test_fixes_are_ordered_by_cost_and_joined_by_remedy() -> None:
    def failing(name: str, remedy: str, severity: Severity = Severity.LOSES_WORK, *, rare: bool = False) -> Case:
        case = a_case(name, CaseOutcome.FAIL, severity=severity, rare=rare)
        return replace(case, demands=(replace(case.demands[0], remedy=remedy),))

    slow = a_case("notice-slow", CaseOutcome.SLOW, severity=Severity.TOUCHES_ANOTHER_VM)
    result = a_result(
        slow,
        failing("cost-noise", "Be quiet.", Severity.NOISE),
        failing("notice-rare", "Look twice.", rare=True),
        failing("notice-once", "Poll at start."),
        failing("notice-one", "Poll often."),
        failing("notice-two", "Poll often."),
        failing("whom-other", "Read names.", Severity.TOUCHES_ANOTHER_VM),
        a_case("reading-pass", CaseOutcome.PASS),
    )
    fixes = [(fix.remedy, [case.id for case in fix.cases]) for fix in find_fixes(result.cases)]
    assert fixes == [
        ("Read names.", ["whom-other"]),
        ("Poll often.", ["notice-one", "notice-two"]),
        ("Poll at start.", ["notice-once"]),
        ("Look twice.", ["notice-rare"]),
        ("Be quiet.", ["cost-noise"]),
        ("Make this true: It does what it should.", ["notice-slow"]),
    ]


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        (("pass", "pass"), "It met every demand, in 2 cases."),
        (("slow",), "It loses nothing, but it is slow or noisy in 1 case."),
        (("delays",), "It delays the platform in 1 case."),
        (("rare", "rare"), "It loses work in 2 rare cases."),
        (("loses", "touches", "rare"), "It loses work in 1 common case and touches another VM in 1 case."),
        (("unknown", "pass"), "It is not known whether it loses work: the outcome of 1 case is unknown."),
        ((), "The handler did not run, so it has no grade from A to F."),
    ],
)
def test_a_grade_is_explained_in_one_sentence(cases: tuple[str, ...], sentence: str) -> None:
    kinds = {
        "pass": a_case("reading-x", CaseOutcome.PASS),
        "slow": a_case("reading-x", CaseOutcome.SLOW),
        "delays": a_case("reading-x", CaseOutcome.FAIL, severity=Severity.DELAYS_PLATFORM),
        "rare": a_case("reading-x", CaseOutcome.FAIL, rare=True),
        "loses": a_case("reading-x", CaseOutcome.FAIL),
        "touches": a_case("reading-x", CaseOutcome.FAIL, severity=Severity.TOUCHES_ANOTHER_VM),
        "unknown": a_case("reading-x", CaseOutcome.UNKNOWN),
    }
    named = [replace(kinds[kind], id=f"reading-{number}") for number, kind in enumerate(cases)]
    assert explain_grade(a_result(*named)) == sentence


def test_a_baseline_separates_new_failures_from_expected_ones(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text('[expected-failures]\nnotice-fail = "we poll once a minute"\nnotice-pass = "fixed since"\n')
    result = a_result(*ONE_OF_EACH, a_case("whom-neighbour", CaseOutcome.FAIL))
    expected = load_baseline(path, [case.id for case in result.cases])
    comparison = compare_with_baseline(result, expected)
    assert comparison.new_failures == ("whom-neighbour",)
    assert comparison.expected == ("notice-fail",)
    assert comparison.fixed == ("notice-pass",)


def test_a_baseline_can_be_made_from_a_result(tmp_path: Path) -> None:
    result = a_result(*ONE_OF_EACH)
    path = tmp_path / "expected.toml"
    path.write_text(baseline_text(result, {}))
    assert compare_with_baseline(result, load_baseline(path, ["notice-fail"])).new_failures == ()


def test_a_new_baseline_keeps_reasons_and_cases_that_did_not_run(tmp_path: Path) -> None:
    expected = {"notice-fail": 'it says "no" \\ \x7f', "notice-pass": "fixed since", "whom-neighbour": "not run now"}
    path = tmp_path / "expected.toml"
    path.write_text(baseline_text(a_result(*ONE_OF_EACH), expected), encoding="utf-8")
    del expected["notice-pass"]
    assert load_baseline(path, ["notice-fail", "whom-neighbour"]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[expected-failures]\nno-such = 'x'", "there is no case 'no-such'"),
        ("[expected-failures]\nnotice-fail = ''", "notice-fail has no reason"),
        ("[other]\n", r"one table \[expected-failures\]"),
        ("notice-fail", "not TOML"),
    ],
)
def test_a_wrong_baseline_is_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(text)
    with pytest.raises(Rejected, match=message):
        load_baseline(path, ["notice-fail"])
