"""Parses durations such as `15m`, `1h30m` and `90`, and writes them for people, short or in words."""

from __future__ import annotations

import math
import re

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
# A unit may also be a word, such as 5 minutes; its first letter says which it is.
_UNIT = r"(?:ms|w(?:eeks?)?|d(?:ays?)?|h(?:rs?|ours?)?|m(?:ins?|inutes?)?|s(?:ecs?|econds?)?)"
_UNITS_PATTERN = re.compile(rf"(?:\d+(?:\.\d+)?{_UNIT})+", re.ASCII | re.IGNORECASE)
_UNIT_PATTERN = re.compile(rf"(\d+(?:\.\d+)?)({_UNIT})", re.ASCII | re.IGNORECASE)
_NUMBER_PATTERN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
MAX_DURATION_S = 3_660 * 86_400  # about ten years


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `15m`, `1h 30m`, `1.5d` or `90` (seconds).

    The message of its ValueError is a sentence for people.
    """
    bare = text.strip().replace(" ", "")
    if bare.startswith("-"):
        raise ValueError(f"{text!r} is negative: give a duration such as 15m, 7d, 1h30m or 90 (seconds)")
    if _NUMBER_PATTERN.fullmatch(bare):
        seconds = float(bare)
    elif _UNITS_PATTERN.fullmatch(bare):
        found = [(float(number), unit.lower()) for number, unit in _UNIT_PATTERN.findall(bare)]
        seconds = sum(number * (0.001 if unit == "ms" else _UNITS[unit[0]]) for number, unit in found)
    else:
        raise ValueError(f"{text!r} is not a duration: write it like 15m, 7d, 1h30m or 90 (seconds)")
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is more than ten years: give a shorter duration")
    return seconds


def _round_to_units(seconds: float, units: int = 2) -> int:
    """Return a duration rounded to what `units` units can show; with two, to hours from a day on."""
    # So a duration that was 7 days a moment ago still reads `7 d`, and none is overstated by more than half an hour,
    # half a minute and half a second.
    whole = max(0, math.floor(seconds + 0.5))
    lengths = [_UNITS[unit] for unit in ("d", "h", "m", "s")]
    largest = next((index for index, length in enumerate(lengths) if whole >= length), len(lengths))
    step = lengths[min(largest + units, len(lengths)) - 1]
    return (whole + step // 2) // step * step


def format_duration(seconds: float, *, units: int = 2) -> str:
    """Return a duration in seconds as its largest unit and the next one, if not zero: `6d 23h`, `2h`."""
    left = _round_to_units(seconds, units)
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _UNITS[unit])
        if count or parts or unit == "s":
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:units] if count or len(parts) == 1)


def duration_text(seconds: float) -> str:
    """Return seconds in words: the largest unit and the next one, if not zero: `14 min 59 s`."""
    left = _round_to_units(seconds)
    if left == 0:
        return "less than a second"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        parts.append(f"{count} {unit}" if count else "")
    first = next(index for index, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)


def exact_duration_text(seconds: float) -> str:
    """Return seconds in words, `2 min`; as a number, such as `3661 s`, if words would round them."""
    seconds = round(seconds, 3)
    step = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1  # words leave out what is smaller
    is_exact = seconds >= 1 and seconds % step == 0
    return duration_text(seconds) if is_exact else f"{seconds:.12g} s"
