"""What makes a poll conditional: If-None-Match, and our extension Prefer: wait (spec §4.3, §4.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32


@lru_cache(maxsize=1024)
def etag(scope_id: str, epoch: int, incarnation: int) -> str:
    """Quoted. The epoch tells a scope that was enabled again from the one before; a VM that comes back in another scope

    has seen nothing of what is shown there, whatever the numbers.
    """
    return f'"{epoch}-{incarnation}-{crc32(scope_id.encode()):08x}"'


def names_tag(condition: str, tag: str) -> bool:
    """Whether an If-None-Match names this tag, alone or in a list, weak or strong.

    `*` names none: a poller that sends it could never be told of an event, and one document too many does no
    harm. What is not a quoted tag is junk, and junk never matches.
    """
    return any(given.strip().removeprefix("W/") == tag for given in condition.split(","))


def wait_of(preferences: Sequence[str], most_s: int) -> int | None:
    """How long these Prefer headers (RFC 7240) ask to wait, at most `most_s`; None if not at all.

    Of several waits the first counts, as the RFC says, so a first one that is junk means none.
    """
    for preference in _split(",".join(preferences), ","):
        name, _, value = next(_split(preference, ";")).partition("=")
        if name.strip().lower() == "wait":
            return _seconds(value.strip(), most_s)
    return None


def _seconds(value: str, most_s: int) -> int | None:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if not (value.isascii() and value.isdigit()):
        return None
    digits = value.lstrip("0")
    wait_s = most_s if len(digits) > 9 else min(int(digits or "0"), most_s)
    return wait_s if wait_s > 0 else None


def _split(text: str, separator: str) -> Iterator[str]:
    """The pieces between separators that stand outside quotes. One pass, however odd the text."""
    start, quoted, escaped = 0, False, False
    for index, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\" and quoted:
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == separator and not quoted:
            yield text[start:index]
            start = index + 1
    yield text[start:]
