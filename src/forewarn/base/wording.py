"""Words for sentences: the first names of a list, and the known name that is like a wrong one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

_MAX_NAMES_TO_COMPARE = 5_000  # among more names a search for similar ones takes too long
_MAX_NAME_LENGTH = 200
_DIGIT, _NO_DIGIT = re.compile(r"\d"), re.compile(r"\D+")


def first_names(names: Sequence[str], most: int = 3, *, total: int = 0) -> str:
    """Return names as `a, b, c and 4 more`; "" for none."""
    shown, others = _shown_and_others(names, most, total)
    return ", ".join(shown) + (f" and {others} more" if others else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `: did you mean 'host-1'?` with the known name most like `name`; "" if none is similar."""
    names = list(islice(known, _MAX_NAMES_TO_COMPARE + 1))
    if len(names) > _MAX_NAMES_TO_COMPARE or len(name) > _MAX_NAME_LENGTH:
        return ""
    folded = {each.casefold(): each for each in names}
    close = similar_names(name.strip().casefold(), folded, cutoff=0.65)
    return f": did you mean {folded[close[0]]!r}?" if close else ""


def similar_names(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names most like `name`, but none with other digits: a wrong digit is no typo.

    Where the number was left out, a name is offered only if no other one differs from it in its number alone.
    """
    digits, names = _NO_DIGIT.sub("", name), list(known)
    stems = Counter() if digits else Counter(_DIGIT.sub("", each) for each in names)
    likely = [each for each in names if _NO_DIGIT.sub("", each) == digits or stems[_DIGIT.sub("", each)] == 1]
    return get_close_matches(name, likely, n=most, cutoff=cutoff)


def first_clauses(clauses: Sequence[str], most: int = 3) -> str:
    """Return clauses as `a; b; c; and 4 more`; "" for none. Shows `most`, or all if there is one more."""
    shown, others = _shown_and_others(clauses, most, 0)
    return "; ".join([*shown, *([f"and {others} more"] if others else [])])


def _shown_and_others(items: Sequence[str], most: int, total: int) -> tuple[Sequence[str], int]:
    count = max(len(items), total)
    shown = items if count <= most + 1 else items[:most]
    return shown, count - len(shown)


def scope_name_from_id(scope_id: str) -> str:
    """Return the short name of the scope with this id, in lower case; needs no VM of the scope."""
    return "/".join(scope_id.partition(":")[2].split("/")[2:])
