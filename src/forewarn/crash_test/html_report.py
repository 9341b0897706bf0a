"""The report of a crash test as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from forewarn.crash_test.claims import describe_claims
from forewarn.crash_test.figures import describe_figures
from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult
from forewarn.crash_test.text_report import OUTCOME_SYMBOLS, HandlerFix, count_outcomes, explain_grade, find_fixes
from forewarn.crash_test.timeline import (
    Approved,
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Impact,
    Polled,
    Poller,
    Probe,
    ProbeAnswered,
    ProgramExited,
    ProgramOutput,
    ProgramStarted,
    Timeline,
)
from forewarn.crash_test.verdict import CaseOutcome, Severity

# Draws the timeline of one case as an SVG: one row for each event and each kind of observation.

_WIDTH = 900  # of the picture, in its own units; it scales with the page
_LEFT, _RIGHT = 110, 20  # margins: labels of the rows, and the last label of the axis
_ROW_HEIGHT = 26
_AXIS_HEIGHT = 30
_MAX_TICKS = 10
_CHARACTER_WIDTH = 7  # of the text in bars, rounded up
_MAX_DESCRIBED = 6  # items of one row that the text alternative names
_TICK_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 86_400)


@dataclass(frozen=True, slots=True)
class _Item:
    at: float
    label: str  # its tooltip, and what the text alternative says
    shape: str  # the class in the style sheet, and for marks also the shape
    until: float | None = None
    text: str = ""  # what is written in the bar, if that is wide enough


def timeline_svg(timeline: Timeline, vm: str, *, title: str, failed_at: Sequence[float] = ()) -> str:
    """Return the SVG of a timeline, as seen from this VM, with a line at each time of `failed_at`."""
    rows = [(label, items) for label, items in _rows(timeline, vm) if items]
    end = max(timeline.ended_at, 1.0)
    height = _AXIS_HEIGHT + _ROW_HEIGHT * len(rows) + 8
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" class="timeline" xmlns="http://www.w3.org/2000/svg" '
        f'aria-label="{escape(f"{title}. {_describe(rows)}")}">',
        *_axis(end, height),
    ]
    for number, (label, items) in enumerate(rows):
        top = _AXIS_HEIGHT + _ROW_HEIGHT * number
        parts.append(f'<text x="0" y="{top + 17}" class="row">{escape(label)}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top + 13}" y2="{top + 13}" class="lane"/>')
        parts += [_draw(item, top, end) for item in items if item.at <= end]
    parts += [_failure_line(at, end, height) for at in sorted(set(failed_at)) if at <= end]
    return "\n".join([*parts, "</svg>"])


def _rows(timeline: Timeline, vm: str) -> Iterator[tuple[str, list[_Item]]]:
    for event in timeline.of(EventPublished):
        yield event.kind, list(_event_items(timeline, event))
    hit = list(dict.fromkeys(item.vm for item in timeline.of(Impact)))
    for name in hit:
        impacts = [
            _Item(item.at, f"{item.verb} of {item.vm}", "impact", item.until or item.at + 0.5, item.verb)
            for item in timeline.of(Impact, name)
        ]
        yield (f"impact {name}" if len(hit) > 1 else "impact"), impacts
    disturbances = [
        _Item(item.at, item.text, "disturbance", item.until, item.text) for item in timeline.of(Disturbance)
    ]
    for number, lane in enumerate(_without_overlaps(disturbances, max(timeline.ended_at, 1.0))):
        yield ("disturbance" if number == 0 else ""), lane
    yield "program", list(_program_items(timeline, vm))
    yield "polls", [_poll_item(poll) for poll in timeline.polls(vm)]
    yield "approvals", [_approval_item(approval) for approval in timeline.approvals(vm)]
    for probe in Probe:
        yield str(probe), [_probe_item(item) for item in timeline.of(ProbeAnswered, vm) if item.probe is probe]
    yield "reference", [_poll_item(poll) for poll in timeline.polls(vm, Poller.REFERENCE)]


def _event_items(timeline: Timeline, event: EventPublished) -> Iterator[_Item]:
    start = next((item.at for item in timeline.of(EventStarted) if item.event == event.event), None)
    end = next((item.at for item in timeline.of(EventEnded) if item.event == event.event), timeline.ended_at)
    vms = ", ".join(event.vms)
    label = f"{event.kind} of {vms}"
    yield _Item(event.at, f"{label} is Scheduled", "scheduled", end if start is None else start, f"Scheduled: {vms}")
    if start is not None:
        yield _Item(start, f"{label} is Started", "started", end, "Started")
    if event.not_before is not None and event.not_before <= end:
        yield _Item(event.not_before, f"NotBefore of the {event.kind}", "deadline")


def _without_overlaps(items: Sequence[_Item], end: float) -> list[list[_Item]]:
    lanes: list[tuple[float, list[_Item]]] = []  # where the last item of a row ends, in the units of the picture
    for item in sorted(items, key=lambda item: item.at):
        begin = _x(item.at, end)
        until = begin + _mark_width(item) if item.until is None else _x(item.until, end)
        for number, (free_from, lane) in enumerate(lanes):
            if begin >= free_from:
                lane.append(item)
                lanes[number] = (until, lane)
                break
        else:
            lanes.append((until, [item]))
    return [lane for _, lane in lanes]


def _mark_width(item: _Item) -> float:
    return len(item.text) * _CHARACTER_WIDTH + 8.0


def _probe_item(answer: ProbeAnswered) -> _Item:
    return _Item(answer.at, "yes" if answer.is_yes else "no", "yes" if answer.is_yes else "no")


def _program_items(timeline: Timeline, vm: str) -> Iterator[_Item]:
    exits = [item.at for item in timeline.of(ProgramExited, vm)]
    for start in timeline.of(ProgramStarted, vm):
        end = next((at for at in exits if at >= start.at), timeline.ended_at)
        label = f"run {start.run}{', after a boot' if start.is_boot else ''}"
        yield _Item(start.at, f"the handler's {label}", "program", end, label)


def _poll_item(poll: Polled) -> _Item:
    status = "no answer" if poll.status is None else f"status {poll.status}"
    events = f", {len(poll.events)} events" if poll.events else ""
    spoiled = f", {poll.substitute}" if poll.substitute else ""
    shape = "bad" if poll.status != 200 else "delivery" if poll.events else "poll"
    return _Item(poll.at, f"poll: {status}{events}{spoiled}", shape)


def _approval_item(approval: Approved) -> _Item:
    status = "no answer" if approval.status is None else f"status {approval.status}"
    return _Item(approval.at, f"approval: {status}", "yes" if approval.status == 200 else "bad")


def _draw(item: _Item, top: float, end: float) -> str:
    x = _x(item.at, end)
    tip = f"<title>{escape(item.label)}, at {item.at:.1f} s</title>"
    if item.until is not None:
        width = max(_x(min(item.until, end), end) - x, 2.0)
        bar = f'<rect x="{x:.1f}" y="{top + 4}" width="{width:.1f}" height="18" class="{item.shape}">{tip}</rect>'
        if not item.text or len(item.text) * _CHARACTER_WIDTH > width:
            return bar
        return f'{bar}<text x="{x + 4:.1f}" y="{top + 17}" class="inside-bar">{escape(item.text)}</text>'
    middle = top + 13
    match item.shape:
        case "bad" | "no":
            path = f"M{x - 5:.1f} {middle - 5}l10 10m0-10l-10 10"
        case "yes":
            path = f"M{x - 5:.1f} {middle}l4 5l7-10"
        case "deadline":
            path = f"M{x:.1f} {top}v26"
        case "delivery":
            path = f"M{x:.1f} {middle - 7}v14m-4 -7a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"
        case _:
            path = f"M{x:.1f} {middle - 6}v12"
    mark = f'<path d="{path}" class="mark {item.shape}">{tip}</path>'
    if not item.text:
        return mark
    is_left = x + _mark_width(item) > _WIDTH  # there is no space to the right
    place = f'x="{x - 5:.1f}" text-anchor="end"' if is_left else f'x="{x + 5:.1f}"'
    return f'{mark}<text {place} y="{top + 17}" class="inside-bar">{escape(item.text)}</text>'


def _axis(end: float, height: int) -> Iterator[str]:
    step = next((step for step in _TICK_STEPS_S if end / step <= _MAX_TICKS), _TICK_STEPS_S[-1])
    for number in range(int(end // step) + 1):
        x = _x(number * step, end)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height}" class="grid"/>'
        yield f'<text x="{x:.1f}" y="14" class="tick">{number * step} s</text>'


def _x(at: float, end: float) -> float:
    return _LEFT + (max(0.0, min(at, end)) / end) * (_WIDTH - _LEFT - _RIGHT)


def _failure_line(at: float, end: float, height: int) -> str:
    x = _x(at, end)
    path = f"M{x:.1f} {_AXIS_HEIGHT - 2}v{height - _AXIS_HEIGHT}m-5 {_AXIS_HEIGHT - height - 8}h10l-5 8z"
    return f'<path d="{path}" class="failure"><title>a demand failed, at {at:.1f} s</title></path>'


def _describe(rows: Iterable[tuple[str, list[_Item]]]) -> str:
    return " ".join(f"{label or 'also'}: {_describe_items(items)}." for label, items in rows)


def _describe_items(items: Sequence[_Item]) -> str:
    if len(items) > _MAX_DESCRIBED:
        return f"{len(items)}, from {items[0].at:.1f} s to {items[-1].at:.1f} s"
    return "; ".join(
        f"{item.label} at {item.at:.1f} s" + (f" until {item.until:.1f} s" if item.until is not None else "")
        for item in items
    )


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
