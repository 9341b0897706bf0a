"""Rules for names in a fleet file, and patterns such as `web-{n:03}` that name many VMs or hosts."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 64
_NUMBER_PLACEHOLDER = re.compile(r"\{n(?::0[1-9])?\}")
_BASE36_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def name_error(name: str, *, limit: int = MAX_NAME_LENGTH) -> str | None:
    """Why a thing cannot be called so, to follow its name in a sentence; None when it can."""
    if not name.strip():
        return "is empty"
    if len(name) > limit:
        return f"is {len(name)} letters long, {limit} is the most"
    if name != name.strip():
        return "begins or ends with a blank"
    if "/" in name or "\\" in name:
        return "has a slash in it"
    return None if name.isprintable() else "has a control character in it"


def pattern_error(pattern: str) -> str | None:
    rest = _NUMBER_PLACEHOLDER.sub("", pattern)
    return "has braces that are no {n}" if "{" in rest or "}" in rest else None


def plain_name_error(name: str, *, limit: int) -> str | None:
    """As for a name, and there is only one of it: no number goes in."""
    return "has braces in it" if "{" in name or "}" in name else name_error(name, limit=limit)


def is_pattern(text: str) -> bool:
    return "{n" in text


def numbered_pattern(text: str, *, counted: bool) -> str:
    """Where there is a count, a name without {n} gets -{n} at its end, so that one more changes no other's name."""
    return f"{text}-{{n}}" if counted and not is_pattern(text) else text


def fill_pattern(pattern: str, n: int) -> str:
    """A pattern without fault, with its number."""
    return pattern.format(n=n)


def instance_host_name(prefix: str, n: int) -> str:
    """The hostname of a scale-set instance: six digits of base 36 (spec §4.2)."""
    digits = ""
    while n:
        n, digit = divmod(n, 36)
        digits = _BASE36_DIGITS[digit] + digits
    return f"{prefix}{digits:0>6}"
