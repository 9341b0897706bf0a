"""Which time a timeline shows: a window of lab time, and the ticks of its axis. Pure; instants are UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from forewarn.console.views import View
from forewarn.duration import read_duration
from forewarn.errors import Rejected

# The spans that are offered; any other within bounds can be asked for.
SPANS = {"5m": 300.0, "15m": 900.0, "1h": 3600.0, "6h": 21600.0, "1d": 86400.0, "7d": 604800.0, "14d": 1209600.0}
USUAL_SPAN = "1h"
_SHORTEST_S, _LONGEST_S = 60.0, 31 * 86400.0
_LAST_AT = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_STEPS_S = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000)
_MOST_TICKS = 8
_DAY_S = 86400
_EDGE = 4.0  # percent


class Window(View, frozen=True, kw_only=True):
    """What is in view, from the left edge to the right one."""

    since: float
    until: float

    @property
    def span_s(self) -> float:
        return self.until - self.since

    @property
    def centre(self) -> float:
        return (self.since + self.until) / 2

    def place(self, at: float) -> float:
        """How far right that is, in percent of the width."""
        return 100 * (at - self.since) / self.span_s

    def meets(self, since: float, until: float) -> bool:
        return since <= self.until and until >= self.since


class Tick(View, frozen=True, kw_only=True):
    at: float
    x: float
    text: str
    day: str = ""  # where another day begins, and at the first tick

    @property
    def anchor(self) -> str:
        """How its text stands to it: at the edges it must not be cut."""
        return "start" if self.x < _EDGE else "end" if self.x > 100 - _EDGE else "middle"


def window_around(centre: float, span_s: float) -> Window:
    return Window(since=centre - span_s / 2, until=centre + span_s / 2)


def read_span(text: str) -> float:
    try:
        seconds = read_duration(text)
    except ValueError as error:
        raise Rejected(str(error)) from error
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise Rejected(f"a timeline cannot span {text!r}: give 1m or more, and 31d at most")
    return seconds


def read_instant(text: str) -> float:
    """As links carry it: ISO 8601, or seconds since 1970."""
    try:
        at = float(text)
    except ValueError:
        at = _read_iso(text)
    if not 0 <= at <= _LAST_AT:
        raise Rejected(f"{text!r} is no instant that a timeline can show: write it like 2026-01-05T12:00:00Z")
    return at


def _read_iso(text: str) -> float:
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def iso(at: float) -> str:
    return f"{_utc(at):%Y-%m-%dT%H:%M:%SZ}"


def ticks_of(window: Window) -> tuple[Tick, ...]:
    """At whole steps of UTC, a handful of them."""
    step = next((s for s in _STEPS_S if window.span_s / s <= _MOST_TICKS), _STEPS_S[-1])
    first, last = math.ceil(window.since / step), math.floor(window.until / step)
    ticks: list[Tick] = []
    for at in range(first * step, last * step + 1, step):
        begins = not ticks or at // _DAY_S != int(ticks[-1].at) // _DAY_S
        ticks.append(Tick(at=at, x=window.place(at), text=_text(at, step), day=_day(at) if begins else ""))
    return tuple(ticks)


def _text(at: float, step: int) -> str:
    return f"{_utc(at):%H:%M:%S}" if step < 60 else f"{_utc(at):%H:%M}"


def _day(at: float) -> str:
    return f"{_utc(at):%a %d %b}"


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
