"""Generates docs/contributing/decisions/index.md: the list of decisions, from their titles."""

from __future__ import annotations

from pathlib import Path

_PAGE = """\
# Decisions

What was decided, why, and what it costs. A decision that no longer holds is replaced by a new one, which names it.

{rows}
"""


def decisions_markdown(folder: Path) -> str:
    """The list of the decisions in `folder`, in the order of their numbers, each with its title as the link."""
    pages = sorted(folder.glob("[0-9]*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    rows = (f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True))
    return _PAGE.format(rows="\n".join(rows))
