"""Where everything of a timeline stands: x in percent of the width, y in pixels. Numbers only; a template draws it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from forewarn.console.portal.axis import Tick, Window, ticks_of
from forewarn.console.portal.lane import Lane
from forewarn.console.portal.rendering import day
from forewarn.console.views import View

# Heights, which timeline.css repeats for the labels beside the drawing: a test holds them equal.
AXIS_H, BAND_H, LANE_H = 40, 32, 44
_BEYOND = 10.0  # percent outside of the view, where nothing needs to be drawn exactly any more
_LEFT_OF = 55.0  # percent: words of bars that begin further right end with the bar

# What a drawing can show, in the order of its legend.
LEGEND = (
    ("notice", "notice"),
    ("waiting", "waits longer"),
    ("performing", "performed"),
    ("published", "published"),
    ("not-before", "not before"),
    ("approved", "approved"),
    ("started", "started"),
    ("finished", "finished"),
    ("failed", "failed"),
    ("withdrawn", "withdrawn"),
    ("now", "now"),
)


class Part(View, frozen=True, kw_only=True):
    """A stretch of a bar. One that grows goes on until now."""

    what: str
    since: float
    until: float
    x: float
    width: float
    grows: bool = False


class Mark(View, frozen=True, kw_only=True):
    """An instant of a bar."""

    what: str
    at: float
    x: float
    text: str


class Bar(View, frozen=True, kw_only=True):
    lane: Lane
    y: float
    parts: tuple[Part, ...]
    marks: tuple[Mark, ...]
    words_x: float
    words_end: bool  # the words end there instead of beginning
    until: float

    @property
    def title(self) -> str:
        told = (f"{mark.text}, {day(mark.at)}" for mark in sorted(self.marks, key=lambda mark: mark.at))
        return "\n".join((f"{self.lane.label}: {self.lane.cause}, {self.lane.state}", self.lane.notice, *told))


class Band(View, frozen=True, kw_only=True):
    """The bars of one scope."""

    scope: str
    title: str
    y: float
    bars: tuple[Bar, ...]


class Chart(View, frozen=True, kw_only=True):
    window: Window
    now: float
    now_x: float
    ticks: tuple[Tick, ...]
    bands: tuple[Band, ...]
    height: float  # of the bands, without the axis

    @property
    def band_h(self) -> int:
        return BAND_H

    @property
    def lane_h(self) -> int:
        return LANE_H


def chart_of(lanes: Iterable[Lane], window: Window, now: float, *, banded: bool = True) -> Chart:
    """Grouped by scope, in an order that what happens does not change; without bands, one lane below the other."""
    bands: list[Band] = []
    y = 0.0
    for title, of_scope in groupby(sorted(lanes, key=_order), key=lambda lane: (lane.title_of_scope, lane.scope)):
        top = y + (BAND_H if banded else 0)
        bars = tuple(_bar(lane, window, now, top + n * LANE_H) for n, lane in enumerate(of_scope))
        bands.append(Band(scope=title[1], title=title[0], y=y, bars=bars))
        y = top + len(bars) * LANE_H
    return Chart(
        window=window,
        now=now,
        now_x=_x(window, now),
        ticks=ticks_of(window),
        bands=tuple(bands),
        height=y,
    )


def _order(lane: Lane) -> tuple[Sequence[tuple[int, str]], str, float, str]:
    return _natural(lane.title_of_scope), lane.scope, lane.published_at, lane.id


def _natural(text: str) -> list[tuple[int, str]]:
    """So that web-10 comes after web-9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text.casefold()) if part]


def _bar(lane: Lane, window: Window, now: float, y: float) -> Bar:
    until = lane.ends_at(now)
    begins, ends = max(0.0, window.place(lane.published_at)), min(100.0, window.place(until))
    words_end = begins > _LEFT_OF
    return Bar(
        lane=lane,
        y=y,
        parts=tuple(_part(window, *stretch) for stretch in _stretches(lane, now)),
        marks=tuple(Mark(what=what, at=at, x=_x(window, at), text=text) for what, at, text in _instants(lane)),
        words_x=ends if words_end else begins,
        words_end=words_end,
        until=until,
    )


def _stretches(lane: Lane, now: float) -> Iterator[tuple[str, float, float, bool]]:
    """What was promised lies below what was got: where it started early, the rest of the promise is seen."""
    start, end = lane.started_at, lane.over_at
    if lane.promised_s is not None:
        yield "promised", lane.published_at, lane.not_before, False
        stops = next((at for at in (start, end) if at is not None), lane.not_before)
        yield "notice", lane.published_at, min(stops, lane.not_before), False
        waits_until = next((at for at in (start, end) if at is not None), now)
        if waits_until > lane.not_before:
            yield "waiting", lane.not_before, waits_until, start is None and end is None
    if start is not None:
        yield "performing", start, now if end is None else end, end is None


def _instants(lane: Lane) -> Iterator[tuple[str, float, str]]:
    yield "published", lane.published_at, "published"
    if lane.promised_s is not None:
        yield "not-before", lane.not_before, "not before"
    if lane.started_at is not None:
        yield "started", lane.started_at, "started"
    if lane.over_at is not None:
        yield lane.state, lane.over_at, lane.state
    if lane.approved_at is not None:  # last, so that it lies above a start at the same moment
        yield "approved", lane.approved_at, f"approved by {lane.approved_by}"


def _part(window: Window, what: str, since: float, until: float, grows: bool) -> Part:
    x = _x(window, since)
    return Part(what=what, since=since, until=until, x=x, width=max(0.0, _x(window, until) - x), grows=grows)


def _x(window: Window, at: float) -> float:
    """A bar of two weeks in a window of minutes would be too long for some browsers to draw."""
    return min(100 + _BEYOND, max(-_BEYOND, window.place(at)))
