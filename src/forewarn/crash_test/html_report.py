"""The report of a crash test as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from forewarn.crash_test.claims import describe_claims
from forewarn.crash_test.figures import describe_figures
from forewarn.crash_test.fixes import HandlerFix, find_fixes
from forewarn.crash_test.grade_text import count_outcomes, explain_grade
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult
from forewarn.crash_test.text_report import OUTCOME_SYMBOLS
from forewarn.crash_test.timeline import ProgramOutput
from forewarn.crash_test.timeline_picture import timeline_svg
from forewarn.crash_test.verdict import CaseOutcome, Severity

_MAX_OUTPUT_LINES = 60  # of the handler, for each case
_FIRST_FIXES = 3  # that are shown before anything else
_OPEN_CASES = 5  # failed cases that are unfolded
_GROUPS = {  # the cases that need attention come first
    CaseOutcome.FAIL: "Failed",
    CaseOutcome.UNKNOWN: "Could not be judged",
    CaseOutcome.SLOW: "Slow",
    CaseOutcome.PASS: "Passed",
    CaseOutcome.NOT_APPLICABLE: "Not applicable",
}


def html_report(result: CrashTestResult) -> str:
    """Return the text of one HTML file with the whole result, which needs nothing else to be shown."""
    fixes = find_fixes(result.cases)
    return _template().render(
        result=result,
        command=_printable(result.handler),
        areas=_areas(result.cases),
        groups=_groups(result),
        was_run=result.grade.grade is not Grade.NOT_RUN,
        grade_reason=explain_grade(result),
        counts=count_outcomes(result.cases),
        place=_place(result),
        claims=describe_claims(result.claims),
        fixes=[_fix_values(fix) for fix in fixes[:_FIRST_FIXES]],
        more_fixes=[_fix_values(fix) for fix in fixes[_FIRST_FIXES:]],
        figures=describe_figures(result.figures),
    )


def _place(result: CrashTestResult) -> str:
    if result.attached:
        return f"elsewhere; it called {result.attached}"
    if result.endpoint_env:
        return f"as a child process, with the endpoint's URL in {result.endpoint_env}"
    return "in VMs made of namespaces, with 169.254.169.254"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("forewarn.crash_test"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html")


def _areas(cases: Sequence[CaseResult]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    names = dict.fromkeys(case.area for case in cases)
    return [(a, [(c.id, str(c.outcome), OUTCOME_SYMBOLS[c.outcome]) for c in cases if c.area == a]) for a in names]


def _groups(result: CrashTestResult) -> list[dict[str, object]]:
    decisive = {case: number for number, case in enumerate(result.grade.because)}
    groups: list[dict[str, object]] = []
    for outcome, title in _GROUPS.items():
        cases = [case for case in result.cases if case.outcome is outcome]
        cases.sort(key=lambda case: decisive.get(case.id, len(decisive)))
        if cases:
            is_failed = outcome is CaseOutcome.FAIL
            values = [_case_values(case, is_open=is_failed and n < _OPEN_CASES) for n, case in enumerate(cases)]
            groups.append({"title": title, "cases": values, "outcome": outcome})
    return groups


def _fix_values(fix: HandlerFix) -> dict[str, object]:
    case = fix.cases[0]
    return {
        "fix": fix,
        "case": case,
        "cost": f"{'slow' if fix.outcome is CaseOutcome.SLOW else 'fails'}; {case.severity}",
        "links": [(_source_text(source), _source_link(source)) for source in case.sources],
    }


def _case_values(case: CaseResult, *, is_open: bool) -> dict[str, object]:
    output = [item.text for item in case.timeline.of(ProgramOutput, case.vm)]
    failed = [at for finding in case.verdict.findings if finding.outcome is CaseOutcome.FAIL for at in finding.at]
    has_picture = bool(case.timeline.observations)
    picture = timeline_svg(case.timeline, case.vm, title=f"What happened in {case.id}", failed_at=failed)
    return {
        "case": case,
        "symbol": OUTCOME_SYMBOLS[case.outcome],
        "findings": sorted(case.verdict.findings, key=lambda finding: list(_GROUPS).index(finding.outcome)),
        "picture": Markup(picture) if has_picture else "",
        "links": [(_source_text(source), _source_link(source)) for source in case.sources],
        "output": [_printable(line) for line in output[-_MAX_OUTPUT_LINES:]],
        "omitted": max(0, len(output) - _MAX_OUTPUT_LINES),
        "replay": f"forewarn crash-test replay RESULT.json --case {case.id}",
        "is_open": is_open,
        "severity_text": "is noise" if case.severity is Severity.NOISE else case.severity,
    }


def _source_link(source: str) -> str:
    """Return the address of a source: OWNER/REPOSITORY#NUMBER is an issue on GitHub; "" if it has none."""
    if source.startswith("https://"):
        return source
    repository, _, number = source.partition("#")
    if repository.count("/") == 1 and number.isdigit():
        return f"https://github.com/{repository}/issues/{number}"
    return ""


def _source_text(source: str) -> str:
    if not source.startswith("https://"):
        return source
    host, *path = source.removeprefix("https://").rstrip("/").split("/")
    if host == "github.com":
        return "/".join(path[:2]) + (f" ({path[-1]})" if len(path) > 2 else "")
    return f"{host}/{'…/' if len(path) > 1 else ''}{path[-1]}" if path else host


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in text)
