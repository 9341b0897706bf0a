"""Lengths of time as tests write them, and instants as they read them: counted from the lab's beginning."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from forewarn.errors import Rejected

Span = str | float | timedelta  # "15m", "7d", "1h30m"; seconds; a timedelta

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?[wdhms])+", re.ASCII | re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])", re.ASCII | re.IGNORECASE)


def seconds_of(span: Span) -> float:
    if isinstance(span, timedelta):
        return span.total_seconds()
    if not isinstance(span, str):
        return float(span)
    bare = span.replace(" ", "")
    if not _WHOLE.fullmatch(bare):
        raise Rejected(f"{span!r} is not a length of time: write it like '15m', '7d', '1h30m', or give seconds")
    return sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(bare))


def instant_of(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def since(began_at: float, at: float) -> str:
    """`+0:15:00`, `+7d 0:10:00`: the same in every run, whatever the time of day."""
    days, left = divmod(max(0, round(at - began_at)), 86_400)
    hours, left = divmod(left, 3_600)
    minutes, seconds = divmod(left, 60)
    return f"+{f'{days}d ' if days else ''}{hours}:{minutes:02}:{seconds:02}"
