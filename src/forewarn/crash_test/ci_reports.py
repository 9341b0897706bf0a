"""The result of a crash test for CI systems: JUnit XML, one test for each case, and a badge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from xml.etree import ElementTree

from forewarn.crash_test.grading import Grade
from forewarn.crash_test.result import CaseResult, CrashTestResult
from forewarn.crash_test.text_report import explain_grade
from forewarn.crash_test.verdict import CaseOutcome, Finding, Severity

_COLOURS = {  # dark enough for white text: a contrast of at least 4.5
    Grade.A: "#1a7f37",
    Grade.B: "#4d7c0f",
    Grade.C: "#8a6100",
    Grade.D: "#b45309",
    Grade.F: "#b42318",
    Grade.INCOMPLETE: "#57606a",
    Grade.NOT_RUN: "#57606a",
}
_LABEL = "crash test"
_CHARACTER_WIDTH = 7  # pixels, of a letter of the font at 11 pixels, rounded up
_PADDING = 12


def badge_svg(grade: Grade) -> str:
    """Return the text of an SVG file with a badge `crash test | A`, 20 pixels high, coloured by grade."""
    left = len(_LABEL) * _CHARACTER_WIDTH + _PADDING
    right = len(grade.value) * _CHARACTER_WIDTH + _PADDING
    width, title = left + right, f"{_LABEL}: {grade.value}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{title}">
<title>{title}</title>
<rect width="{width}" height="20" rx="3" fill="#24292f"/>
<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z" fill="{_COLOURS[grade]}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{left / 2:g}" y="14">{_LABEL}</text>
<text x="{left + right / 2:g}" y="14">{grade.value}</text>
</g>
</svg>
"""


def junit_xml(result: CrashTestResult, expected: Mapping[str, str] | None = None) -> bytes:
    """Return the result as JUnit XML in UTF-8: one `testsuite` with a `testcase` for each case."""
    expected = expected or {}
    kinds = Counter(_kind(case, expected) for case in result.cases)
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=f"forewarn crash-test {result.profile}",
        tests=str(len(result.cases)),
        failures=str(kinds["failure"]),
        errors=str(kinds["error"]),
        skipped=str(kinds["skipped"]),
        time=f"{sum(case.took_s for case in result.cases):.3f}",
        timestamp=result.at[:19],  # the schemas of CI systems allow no offset from UTC
        hostname="localhost",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(result):
        ElementTree.SubElement(properties, "property", name=name, value=_xml_text(value))
    for case in result.cases:
        _add_case(suite, case, expected)
    body = str(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'.encode()


def _properties(result: CrashTestResult) -> list[tuple[str, str]]:
    return [
        ("grade", result.grade.grade.value),
        ("reason", explain_grade(result)),
        ("handler", result.handler),
        ("profile", result.profile.value),
        ("seed", str(result.seed)),
        ("forewarn", result.forewarn),
        ("machine", result.machine),
        *((f"warning {number}", text) for number, text in enumerate(result.warnings, start=1)),
    ]


def _add_case(suite: ElementTree.Element, case: CaseResult, expected: Mapping[str, str]) -> None:
    element = ElementTree.SubElement(
        suite, "testcase", classname=f"crash-test.{case.area}", name=case.id, time=f"{case.took_s:.3f}"
    )
    kind = _kind(case, expected)
    evidence = _xml_text("\n".join([case.title, *map(_finding_line, case.verdict.findings), *case.sources]))
    if not kind:
        ElementTree.SubElement(element, "system-out").text = evidence
        return
    message = "; ".join(f.seen for f in case.verdict.findings if f.outcome is case.outcome) or case.title
    if case.outcome is CaseOutcome.FAIL and case.id in expected:
        message = f"expected failure ({expected[case.id]}): {message}"
    child = ElementTree.SubElement(element, kind, message=_xml_text(message), type=str(case.severity))
    child.text = evidence


def _finding_line(finding: Finding) -> str:
    remedy = f" What to do: {finding.remedy}" if finding.remedy else ""
    return f"{finding.outcome}: {finding.demand}: {finding.seen}{remedy}"


def _kind(case: CaseResult, expected: Mapping[str, str]) -> str:
    match case.outcome:
        case CaseOutcome.PASS | CaseOutcome.SLOW:
            return ""
        case CaseOutcome.FAIL if case.id not in expected:
            return "failure"
        case CaseOutcome.UNKNOWN if case.severity is Severity.LOSES_WORK:
            return "error"
    return "skipped"


def _xml_text(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
