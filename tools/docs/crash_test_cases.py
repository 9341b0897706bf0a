"""Generates docs/reference/crash-test-cases.md from the cases of the crash test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from forewarn.crash_test.case import Case
from forewarn.crash_test.cases import ALL_CASES

_ISSUE = re.compile(r"([A-Za-z0-9-]+/[A-Za-z0-9._-]+)#([0-9]+)")
_PAGE = """\
# The cases of the crash test

*Generated from `src/forewarn/crash_test/cases` by `make docs`; change the cases there, not this page.*

[Crash-test a handler](../how-to/crash-test.md) explains profiles, demands, severities and grades.
There are {count} cases, in {areas} areas.

{index}

{sections}
"""


def crash_test_cases_markdown() -> str:
    """The page with every case: its reason, sources, profiles, demands and severity."""
    areas = list(dict.fromkeys(case.area for case in ALL_CASES))
    by_area = {area: [case for case in ALL_CASES if case.area == area] for area in areas}
    return _PAGE.format(
        count=len(ALL_CASES),
        areas=len(areas),
        index=" · ".join(f"[{area}](#{area}) ({len(cases)})" for area, cases in by_area.items()),
        sections="\n\n".join(_section(area, cases) for area, cases in by_area.items()),
    )


def _section(area: str, cases: Sequence[Case]) -> str:
    return "\n\n".join([f"## {area}", *("\n".join(_case_lines(case)) for case in cases)])


def _case_lines(case: Case) -> Iterator[str]:
    yield f"### {case.id}\n"
    yield f"**{case.title}** {case.reason}\n"
    yield f"- profiles: {', '.join(sorted(case.profiles))}"
    yield f"- a failure: {case.severity}{', in a rare case' if case.is_rare else ''}"
    if case.needs:
        yield f"- needs: {', '.join(sorted(case.needs))}"
    yield f"- demanded: {'; '.join(demand.text for demand in case.demands)}"
    yield f"- sources: {', '.join(map(_source_link, case.sources))}"


def _source_link(source: str) -> str:
    issue = _ISSUE.fullmatch(source)
    if issue:
        return f"[{source}](https://github.com/{issue[1]}/issues/{issue[2]})"
    return f"<{source}>" if source.startswith("https://") else source
