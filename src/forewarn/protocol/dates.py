"""Formats and parses dates as the wire and clients write them: RFC 1123 and ISO 8601 (spec §4.2)."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from functools import lru_cache

from forewarn.base.times import parse_time

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_NUMBERS = {name.lower(): number for number, name in enumerate(_MONTHS, start=1)}
_EPOCH_DAY = date(1970, 1, 1).toordinal()

_RFC_1123 = re.compile(
    r"(?:[a-z]+,)?\s*(\d{1,2})[ -]([a-z]{3})[ -](\d{4})\s+(\d{2}):(\d{2}):(\d{2})\s+(?:GMT|UTC|[+-]0000)",
    re.ASCII | re.IGNORECASE,
)


@lru_cache(maxsize=64)
def _format_day(days: int) -> str:
    day = date.fromordinal(days + _EPOCH_DAY)
    return f"{_WEEKDAYS[day.weekday()]}, {day.day:02} {_MONTHS[day.month - 1]} {day.year:04}"


def http_date(at: float) -> str:
    """Format POSIX seconds as an RFC 1123 date of 29 characters, in English; fractions are cut off."""
    days, second = divmod(math.floor(at), 86_400)
    return f"{_format_day(days)} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} GMT"


def iso_date(at: float) -> str:
    """Format POSIX seconds as `2017-04-05T06:07:08Z`, as Azure documented in 2017; fractions are cut off."""
    return datetime.fromtimestamp(math.floor(at), UTC).replace(tzinfo=None).isoformat() + "Z"


def parse_date(text: str) -> float | None:
    """Parse an RFC 1123 date in GMT or UTC, or an ISO 8601 one, to POSIX seconds; None if it is neither.

    The weekday may be missing, and is not checked, because Azure's own documentation shows a wrong one. An ISO date
    without a zone is in UTC.
    """
    text = text.strip()
    try:
        match = _RFC_1123.fullmatch(text)
        if match:
            return _parse_rfc_1123(match)
        return parse_time(text) if ":" in text else None
    except (ValueError, OverflowError):
        return None


def _parse_rfc_1123(match: re.Match[str]) -> float | None:
    month = _MONTH_NUMBERS.get(match[2].lower())
    if month is None:
        return None
    day, year, hour, minute, second = (int(match[index]) for index in (1, 3, 4, 5, 6))
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
