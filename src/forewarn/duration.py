"""Parses durations such as `15m`, `7d`, `1h30m` and `90`, and formats them for people."""

from __future__ import annotations

import re

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_UNITS_PATTERN = re.compile(r"(?:\d+(?:\.\d+)?[wdhms])+", re.ASCII | re.IGNORECASE)
_UNIT_PATTERN = re.compile(r"(\d+(?:\.\d+)?)([wdhms])", re.ASCII | re.IGNORECASE)
_NUMBER_PATTERN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
MAX_DURATION_S = 3_660 * 86_400  # about ten years


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `15m`, `1h 30m`, `1.5d` or `90` (seconds).

    The units are w, d, h, m and s, in upper or lower case. Raises ValueError, whose message is a sentence for people,
    if the text is no such duration (negative ones are not), or if it is longer than MAX_DURATION_S.
    """
    bare = text.strip().replace(" ", "")
    if _NUMBER_PATTERN.fullmatch(bare):
        seconds = float(bare)
    elif _UNITS_PATTERN.fullmatch(bare):
        seconds = sum(float(number) * _UNITS[unit.lower()] for number, unit in _UNIT_PATTERN.findall(bare))
    else:
        raise ValueError(f"{text!r} is not a duration: write it like 15m, 7d, 1h30m or 90 (seconds)")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is more than ten years: give a shorter duration")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as its largest unit and the next one, if not zero: `6d 23h`, `2h`.

    The units are d, h, m and s; smaller ones are cut off: 1 d 0 h 5 min is `1d`. Rounded to seconds first; a negative
    duration is `0s`.
    """
    left = max(0, round(seconds))
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _UNITS[unit])
        if count or parts or unit == "s":
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count or len(parts) == 1)
