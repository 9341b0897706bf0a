"""docs/reference/lifecycle.md is generated from the transition table (spec §6)."""

from __future__ import annotations

from pathlib import Path

from forewarn.core.lifecycle import TRANSITIONS, UNCHANGED
from tools.docs.lifecycle import lifecycle_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lifecycle.md"


def test_the_lifecycle_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == lifecycle_markdown(), (
        "docs/reference/lifecycle.md is not what core/lifecycle.py says any more: run `make docs`"
    )


def test_every_edge_of_the_table_is_drawn_once() -> None:
    drawn = [line for line in lifecycle_markdown().splitlines() if " --> " in line]
    edges = [cell for cell, to in TRANSITIONS.items() if to is not UNCHANGED]
    assert len(drawn) == len(edges) + 1  # and one from Over to the end


def test_every_cell_that_is_not_in_the_table_is_shown_as_refused() -> None:
    assert lifecycle_markdown().count("refused") == 4 * 7 - len(TRANSITIONS)
