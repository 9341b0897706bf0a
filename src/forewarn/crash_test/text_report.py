"""The result of a crash test for the terminal: warnings, areas, failures, what to fix, the grade."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forewarn.base.wording import first_names
from forewarn.crash_test.figures import HandlerFigures, describe_figures
from forewarn.crash_test.fixes import HandlerFix, find_fixes
from forewarn.crash_test.grade_text import explain_grade
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult
from forewarn.crash_test.timeline import Disturbance, EventEnded, ProgramOutput
from forewarn.crash_test.verdict import CaseOutcome, Finding

OUTCOME_STYLES = {
    CaseOutcome.PASS: "green",
    CaseOutcome.SLOW: "yellow",
    CaseOutcome.FAIL: "bold red",
    CaseOutcome.UNKNOWN: "magenta",
    CaseOutcome.NOT_APPLICABLE: "bright_black",
}
OUTCOME_SYMBOLS = {  # so that the table can be read without colours
    CaseOutcome.PASS: "✓",
    CaseOutcome.SLOW: "~",
    CaseOutcome.FAIL: "✗",
    CaseOutcome.UNKNOWN: "?",
    CaseOutcome.NOT_APPLICABLE: "–",
}
_FIRST_FIXES = 3
_FIRST_DISTURBANCES = 4
_INDENT = 4


def render_result(result: CrashTestResult, *, result_file: str = "", expected: Collection[str] = ()) -> RenderableType:
    """Return everything that the terminal shows at the end of a run, for a console of rich of any width."""
    parts: list[RenderableType] = [Text(f"! {_one_line(warning)}", style="yellow") for warning in result.warnings]
    if result.grade.grade is not Grade.NOT_RUN:
        parts += [Text(), _matrix(result.cases)]
        for outcome in (CaseOutcome.FAIL, CaseOutcome.SLOW):
            for case in result.cases:
                if case.outcome is outcome:
                    parts += _case_evidence(case, _replay_command(case, result_file), is_expected=case.id in expected)
        parts += _unknown_lines(result.cases)
        parts += _figure_lines(result.figures)
        parts += _fix_lines(find_fixes(result.cases))
    parts.append(_grade_line(result))
    return Group(*parts)


def _matrix(cases: Sequence[CaseResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("area", "pass", "slow", "fail", "unknown", "n/a", "cases"):
        table.add_column(name, justify="left" if name in ("area", "cases") else "right", overflow="fold")
    for area in dict.fromkeys(case.area for case in cases):
        here = [case for case in cases if case.area == area]
        counts = [sum(case.outcome is outcome for case in here) for outcome in OUTCOME_SYMBOLS]
        symbols = Text()
        for case in here:
            symbols.append(OUTCOME_SYMBOLS[case.outcome], style=OUTCOME_STYLES[case.outcome])
        table.add_row(area, *(str(count) if count else "" for count in counts), symbols)
    return table


def _case_evidence(case: CaseResult, replay: str, *, is_expected: bool) -> Iterator[RenderableType]:
    headline = Text(f"\n{OUTCOME_SYMBOLS[case.outcome]} {case.id}", style=OUTCOME_STYLES[case.outcome])
    about = "expected by the baseline" if is_expected else str(case.severity)
    headline.append(f"  {_one_line(case.title)} ({about})", style="default not bold")
    yield headline
    if done := _describe_disturbances(case):
        yield _indented(Text(f"disturbed: {_one_line(done)}"))
    for finding in _findings(case):
        yield _indented(Text(f"demanded: {_one_line(finding.demand)}"))
        seen = f"{finding.outcome}: {_one_line(finding.seen)}"
        yield _indented(Text(seen, style=OUTCOME_STYLES[finding.outcome]))
    if written := case.timeline.of(ProgramOutput, case.vm):
        yield _indented(Text(f"last output: {_one_line(written[-1].text)}"))
    yield _indented(Text(f"run it again: {replay}", style="bright_black"))


def _describe_disturbances(case: CaseResult) -> str:
    texts = []
    for item in case.timeline.observations:
        if isinstance(item, EventEnded) and item.is_withdrawn:
            texts.append(f"an event was withdrawn (at {item.at:.1f} s)")
        elif isinstance(item, Disturbance) and item.vm in ("", case.vm):
            until = "" if item.until is None else f" to {item.until:.1f} s"
            texts.append(f"{item.text} ({'from' if until else 'at'} {item.at:.1f} s{until})")
    shown, more = texts[:_FIRST_DISTURBANCES], len(texts) - _FIRST_DISTURBANCES
    return "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def _unknown_lines(cases: Sequence[CaseResult]) -> Iterator[RenderableType]:
    by_reason: dict[str, list[str]] = {}
    for case in cases:
        if case.outcome is CaseOutcome.UNKNOWN:
            reasons = [case.verdict.reason] if case.verdict.reason else [f.seen for f in _findings(case)]
            by_reason.setdefault("; ".join(dict.fromkeys(reasons)), []).append(case.id)
    for reason, ids in by_reason.items():
        symbol, style = OUTCOME_SYMBOLS[CaseOutcome.UNKNOWN], OUTCOME_STYLES[CaseOutcome.UNKNOWN]
        yield Text(f"\n{symbol} unknown: {_one_line(reason)}", style=style)
        yield _indented(Text(", ".join(ids)))


def _findings(case: CaseResult) -> list[Finding]:
    return [finding for finding in case.verdict.findings if finding.outcome is case.outcome]


def _replay_command(case: CaseResult, result_file: str) -> str:
    if result_file:
        return f"forewarn crash-test replay {shlex.quote(result_file)} --case {case.id}"
    return f"the same command with --only {case.id}"


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, _INDENT), expand=False)


def _figure_lines(figures: HandlerFigures) -> Iterator[RenderableType]:
    yield Text()
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, text in describe_figures(figures):
        grid.add_row(label, text)
    yield grid


def _fix_lines(fixes: Sequence[HandlerFix]) -> Iterator[RenderableType]:
    if not fixes:
        return
    yield Text("\nFix first", style="bold")
    for number, fix in enumerate(fixes[:_FIRST_FIXES], start=1):
        grid = Table.grid(padding=(0, 1, 0, 0))
        evidence = [first_names([case.id for case in fix.cases]), *fix.cases[0].sources[:1]]
        grid.add_row(f"{number}.", Text(_one_line(f"{fix.remedy} ({'; '.join(evidence)})")))
        yield grid
    if len(fixes) > _FIRST_FIXES:
        yield Text(f"   The report of --html has all {len(fixes)}.")


def _grade_line(result: CrashTestResult) -> Text:
    grade = result.grade
    text = Text(f"\nGrade {grade.grade}", style="bold")
    text.append(f": {explain_grade(result)}", style="not bold")
    if grade.because:
        text.append(f"\nWhat decides it: {first_names(grade.because, 6)}", style="not bold")
    return text


def _one_line(text: str) -> str:
    """Return text from elsewhere on one line, without characters that could steer the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
