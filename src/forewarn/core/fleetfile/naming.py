"""Rules for names in a fleet file, and patterns such as `web-{n:03}` that name many VMs or hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import NAMESPACE_URL, uuid5

MAX_NAME_LENGTH = 64  # characters
_NUMBER_PLACEHOLDER = re.compile(r"\{n(?::0[1-9])?\}")
_BASE36_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def name_error(name: str, *, limit: int = MAX_NAME_LENGTH) -> str | None:
    """Return why a name is not allowed, to follow the name in a sentence; None if it is allowed."""
    if not name.strip():
        return "is empty"
    if len(name) > limit:
        return f"is {len(name)} characters long, but the limit is {limit}"
    if name != name.strip():
        return "begins or ends with a blank"
    if "/" in name or "\\" in name:
        return "contains a slash"
    return None if name.isprintable() else "contains a control character"


def pattern_error(pattern: str) -> str | None:
    """Return why the braces of a name pattern are invalid, to follow the pattern in a sentence, or None."""
    rest = _NUMBER_PLACEHOLDER.sub("", pattern)
    return "has braces other than {n}" if "{" in rest or "}" in rest else None


def plain_name_error(name: str, *, limit: int) -> str | None:
    """Return why a name that cannot have a number is not allowed, to follow it in a sentence, or None."""
    return "contains braces" if "{" in name or "}" in name else name_error(name, limit=limit)


def is_pattern(text: str) -> bool:
    """Return whether the text contains `{n`, the beginning of a placeholder for the number, valid or not."""
    return "{n" in text


def numbered_pattern(text: str, *, counted: bool) -> str:
    """Return the pattern for names: with a count, a name without {n} gets -{n}, even for a count of 1."""
    # So the name of the first VM stays the same when the count grows.
    return f"{text}-{{n}}" if counted and not is_pattern(text) else text


def fill_pattern(pattern: str, n: int) -> str:
    """Return the pattern with the number in place of each {n}; {n:03} pads it with zeros to three digits."""
    return pattern.format(n=n)


def instance_host_name(prefix: str, n: int) -> str:
    """Return the hostname of a scale set instance: the prefix and at least six base-36 digits (spec §4.2)."""
    digits = ""
    while n:
        n, digit = divmod(n, 36)
        digits = _BASE36_DIGITS[digit] + digits
    return f"{prefix}{digits:0>6}"


def flexible_instance_ids(set_key: str) -> Iterator[str]:
    """Yield the ids of a flexible scale set's VMs without end: 8 hexadecimal digits, none of them twice."""
    taken: set[str] = set()
    n = 0
    while True:
        digits = uuid5(NAMESPACE_URL, f"{set_key}/{n}").hex[:8]
        n += 1
        if digits not in taken:
            taken.add(digits)
            yield digits
