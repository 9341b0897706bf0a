"""The result of a crash test for the terminal: warnings, areas, failures, what to fix, the grade."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forewarn.base.wording import first_names
from forewarn.crash_test.figures import HandlerFigures, describe_figures
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult
from forewarn.crash_test.timeline import (
    Approved,
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Impact,
    Observation,
    OtherRequest,
    Polled,
    Poller,
    ProbeAnswered,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    Timeline,
)
from forewarn.crash_test.verdict import CaseOutcome, Finding, Severity

# Says in one sentence why a handler has its grade, and counts outcomes; for all reports.


def explain_grade(result: CrashTestResult) -> str:
    """Return why the handler has this grade, as one sentence."""
    because = [case for case in result.cases if case.id in result.grade.because]
    count = _count_cases(len(because))
    match result.grade.grade:
        case Grade.A:
            judged = sum(case.outcome is CaseOutcome.PASS for case in result.cases)
            return f"It met every demand, in {_count_cases(judged)}."
        case Grade.B:
            return f"It loses nothing, but it is slow or noisy in {count}."
        case Grade.C:
            return f"It delays the platform in {count}."
        case Grade.D:
            return f"It loses work in {_count_cases(len(because), 'rare ')}."
        case Grade.F:
            return _explain_f(because)
        case Grade.INCOMPLETE:
            return f"It is not known whether it loses work: the outcome of {count} is unknown."
    return "The handler did not run, so it has no grade from A to F."


def count_outcomes(cases: Sequence[CaseResult]) -> str:
    """Return how many cases had which outcome, as text such as `3 fail, 2 slow, 40 pass`."""
    counts = Counter(case.outcome for case in cases)
    order = (CaseOutcome.FAIL, CaseOutcome.UNKNOWN, CaseOutcome.SLOW, CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome])


def _explain_f(because: Sequence[CaseResult]) -> str:
    touches = sum(case.severity is Severity.TOUCHES_ANOTHER_VM for case in because)
    loses = len(because) - touches
    parts = [f"loses work in {_count_cases(loses, 'common ')}"] if loses else []
    parts += [f"touches another VM in {_count_cases(touches)}"] if touches else []
    return f"It {' and '.join(parts)}."


def _count_cases(count: int, adjective: str = "") -> str:
    return f"1 {adjective}case" if count == 1 else f"{count} {adjective}cases"


# What to fix in a handler, most important first: the remedies of all failed and slow demands.

_ORDER = (Severity.TOUCHES_ANOTHER_VM, Severity.LOSES_WORK, Severity.DELAYS_PLATFORM, Severity.NOISE)


@dataclass(frozen=True, slots=True)
class HandlerFix:
    """One thing to change in the handler, and the cases that show it; `find_fixes` makes it."""

    remedy: str  # what to do, as a sentence
    outcome: CaseOutcome  # fail or slow: the worst of its cases
    severity: Severity  # of its first case
    cases: tuple[CaseResult, ...]  # in which it was missing, worst first
    seen: str  # what the first of them saw


def find_fixes(cases: Sequence[CaseResult]) -> list[HandlerFix]:
    """Return everything to fix in the handler, most important first; [] if nothing failed or was slow."""
    found: dict[str, list[tuple[CaseResult, Finding]]] = {}
    for case in sorted(cases, key=_rank):
        for finding in case.verdict.findings:
            if finding.outcome is case.outcome and finding.outcome in (CaseOutcome.FAIL, CaseOutcome.SLOW):
                found.setdefault(finding.remedy or f"Make this true: {finding.demand.rstrip('.')}.", []).append(
                    (case, finding)
                )
    fixes = [_make_fix(remedy, pairs) for remedy, pairs in found.items()]
    return sorted(fixes, key=lambda fix: (*_rank(fix.cases[0]), -len(fix.cases)))


def _make_fix(remedy: str, pairs: Sequence[tuple[CaseResult, Finding]]) -> HandlerFix:
    case, finding = pairs[0]
    cases = {other.id: other for other, _ in pairs}
    return HandlerFix(remedy, case.outcome, case.severity, tuple(cases.values()), finding.seen)


def _rank(case: CaseResult) -> tuple[bool, int, bool]:
    return case.outcome is not CaseOutcome.FAIL, _ORDER.index(case.severity), case.verdict.is_rare


# The timeline of a case as lines of text, for people who read why a case failed.

_SHORT_ID = 8  # characters of an event's id


def describe_timeline(timeline: Timeline, vm: str) -> list[str]:
    """Return what was observed on this VM and of all events, one line each, in order."""
    lines: list[str] = []
    last_poll, repeated = "", 0
    for item in timeline.observations:
        text = _describe(item) if item.vm in ("", vm) else ""
        if not text:
            continue
        if isinstance(item, Polled) and text == last_poll:
            repeated += 1
            continue
        lines += _repetition(repeated)
        repeated, last_poll = 0, text if isinstance(item, Polled) else last_poll
        lines.append(f"{item.at:7.1f} s  {text}")
    lines += _repetition(repeated)
    lines.append(f"{timeline.ended_at:7.1f} s  the case ended")
    return lines


def _repetition(count: int) -> Iterator[str]:
    if count:
        yield f"{'':9}  (and {count} more such poll{'s' if count > 1 else ''})"


def _describe(item: Observation) -> str:
    match item:
        case Polled() | Approved() | OtherRequest():
            return _describe_request(item) if item.by is Poller.HANDLER else ""
        case EventPublished(event=event, kind=kind, vms=vms, not_before=not_before):
            notice = "without notice" if not_before is None else f"NotBefore at {not_before:.1f} s"
            return f"{kind} of {', '.join(vms)} was published ({event[:_SHORT_ID]}), {notice}"
        case EventStarted(event=event):
            return f"the platform started {event[:_SHORT_ID]}"
        case EventEnded(event=event, is_withdrawn=is_withdrawn):
            return f"{event[:_SHORT_ID]} {'was withdrawn' if is_withdrawn else 'was over'}"
        case Impact(verb=verb, until=until):
            return f"the platform acted on the VM: {verb}" + ("" if until is None else f", until {until:.1f} s")
        case Disturbance(text=text, until=until):
            return f"disturbance by the case: {text}" + ("" if until is None else f", until {until:.1f} s")
        case ProbeAnswered(probe=probe, is_yes=is_yes):
            return f"the probe {probe} said {'yes' if is_yes else 'no'}"
        case ProgramStarted(is_boot=is_boot):
            return f"the program was started{' with its VM' if is_boot else ''}"
        case ProgramExited(code=code, signal=signal, by_case=by_case):
            how = f"status {code}" if code is not None else f"signal {signal}"
            return f"the program {'was ended' if by_case else 'ended by itself'} ({how})"
        case ProgramOutput(text=text):
            return f"it wrote: {_printable(text)}"
        case _:
            return ""


def _describe_request(item: Polled | Approved | OtherRequest) -> str:
    status = "no answer" if item.status is None else str(item.status)
    match item:
        case Polled(events=events, substitute=substitute):
            shown = ", ".join(f"{event.id[:_SHORT_ID]} {event.status}" for event in events) or "no events"
            return f"a poll got {status}, " + (f"a substitute: {substitute}, {shown}" if substitute else shown)
        case Approved(event_ids=ids, problem=problem):
            named = ", ".join(text[:_SHORT_ID] for text in ids) or "nothing"
            return f"it approved {_printable(named)} and got {status}" + (f" ({problem})" if problem else "")
        case OtherRequest(method=method, path=path):
            return f"it asked for {_printable(f'{method} {path}')} and got {status}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


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
