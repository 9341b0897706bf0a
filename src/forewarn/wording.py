"""Shortens lists for sentences: the first few names or clauses, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence


def first_names(names: Sequence[str], most: int = 3, *, total: int = 0) -> str:
    """Return names as `a, b, c and 4 more`; "" for none.

    Shows the first `most` names and counts the others; a single other one is shown too. `total` is how many there are
    altogether if `names` are only the first of them; 0 means `names` are all.
    """
    shown, others = _shown_and_others(names, most, total)
    return ", ".join(shown) + (f" and {others} more" if others else "")


def first_clauses(clauses: Sequence[str], most: int = 3) -> str:
    """Return clauses as `a; b; c; and 4 more`; "" for none. Shows `most`, or all if there is one more."""
    shown, others = _shown_and_others(clauses, most, 0)
    return "; ".join([*shown, *([f"and {others} more"] if others else [])])


def _shown_and_others(items: Sequence[str], most: int, total: int) -> tuple[Sequence[str], int]:
    count = max(len(items), total)
    shown = items if count <= most + 1 else items[:most]
    return shown, count - len(shown)
