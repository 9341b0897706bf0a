"""Generates docs/reference/crash-test-cases/: a page for each area, from the cases of the crash test (`make docs`)."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence

from forewarn.crash_test.case import Case
from forewarn.crash_test.cases import ALL_CASES

_ISSUE = re.compile(r"([A-Za-z0-9-]+/[A-Za-z0-9._-]+)#([0-9]+)")
_COMMENT = "<!-- generated: src/forewarn/crash_test/cases -->"
_INDEX = """\
# The cases of the crash test

{comment}

There are {count} cases, in {areas} areas. [Crash-test a handler](../../how-to/crash-test.md) explains profiles,
severities and grades; `forewarn crash-test list` shows those of each case, `forewarn crash-test explain CASE` its
demands. (P): a case whose id ends in `-preempt` does the same before an eviction, for the profile spot.

{index}
"""
_PAGE = """\
# Crash test: {area}

{comment}

{about}

{sections}
"""


def crash_test_pages() -> dict[str, str]:
    """The pages with every case: its reason, needs and sources; by their path in docs/."""
    areas = {
        area: [case for case in ALL_CASES if case.area == area] for area in dict.fromkeys(c.area for c in ALL_CASES)
    }
    index = "\n".join(f"- **{area}**: {_links(cases)}" for area, cases in areas.items())
    pages = {"index": _INDEX.format(comment=_COMMENT, count=len(ALL_CASES), areas=len(areas), index=index)}
    pages |= {area: _page(area, cases) for area, cases in areas.items()}
    return {f"reference/crash-test-cases/{name}.md": text for name, text in pages.items()}


def _page(area: str, cases: Sequence[Case]) -> str:
    about = (inspect.getdoc(sys.modules[f"forewarn.crash_test.cases.{area}"]) or "").partition("\n")[0]
    sections = [_section(case, cases) for case in cases if not _is_same(case, cases)]
    return _PAGE.format(area=area, comment=_COMMENT, about=about, sections="\n\n".join(sections))


def _eviction(case: Case, cases: Sequence[Case]) -> Case | None:
    """The case that does the same before an eviction, if there is one."""
    found = (other for other in cases if other.id == f"{case.id}-preempt" and other.reason == case.reason)
    return next(found, None)


def _is_same(case: Case, cases: Sequence[Case]) -> bool:
    return any(_eviction(other, cases) is case for other in cases)


def _links(cases: Sequence[Case]) -> str:
    return ", ".join(_link(case, cases) for case in cases if not _is_same(case, cases))


def _link(case: Case, cases: Sequence[Case]) -> str:
    name = case.id.removeprefix(f"{case.area}-")
    return f"[{name}]({case.area}.md#{case.id}){' (P)' if _eviction(case, cases) else ''}"


def _section(case: Case, cases: Sequence[Case]) -> str:
    eviction = _eviction(case, cases)
    facts = [f"needs {', '.join(sorted(case.needs))}"] if case.needs else []
    facts += [f"also `{eviction.id}`"] if eviction else []
    first = next(other for other in cases if other.reason == case.reason)
    if first is not case:
        return f"## {case.id}\n\n**{case.title}** As [{first.id}](#{first.id}).\n\n{' · '.join(facts)}".rstrip()
    facts.append(", ".join(map(_source_link, case.sources)))
    return f"## {case.id}\n\n**{case.title}** {case.reason}\n\n{' · '.join(facts)}"


def _source_link(source: str) -> str:
    issue = _ISSUE.fullmatch(source)
    if issue:
        return f"[{source}](https://github.com/{issue[1]}/issues/{issue[2]})"
    return f"<{source}>" if source.startswith("https://") else source
