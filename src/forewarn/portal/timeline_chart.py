"""Geometry of a timeline: time window, axis ticks, event rows, and bars with positions; no HTML.

x is a percentage of the width, y is in pixels; timeline-chart.html draws it. Times are UTC. Heights are repeated in
timeline.css, and a test holds them equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import groupby

from markupsafe import Markup

from forewarn.core.event import Ending, Event
from forewarn.core.scope import Scope
from forewarn.duration import parse_duration
from forewarn.errors import Rejected
from forewarn.explain.phrases import duration_text, event_kind_text, join_names, notice_phrases, started_without_notice
from forewarn.portal.rendering import format_utc, render_template
from forewarn.web.view_builder import ViewBuilder, scope_title
from forewarn.web.views import BaseView

# The spans that are offered; any other within bounds can be asked for.
OFFERED_SPANS = {
    "5m": 300.0,
    "15m": 900.0,
    "1h": 3600.0,
    "6h": 21600.0,
    "1d": 86400.0,
    "7d": 604800.0,
    "14d": 1209600.0,
}
DEFAULT_SPAN = "1h"
_MIN_SPAN_S, _MAX_SPAN_S = 60.0, 31 * 86400.0
_MAX_INSTANT = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_TICK_STEPS_S = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000)
_MAX_TICKS = 8
_DAY_S = 86400
_EDGE_PERCENT = 4.0  # percent


class TimeWindow(BaseView, frozen=True, kw_only=True):
    """What is in view, from the left edge to the right one."""

    since: float
    until: float

    @property
    def span_s(self) -> float:
        return self.until - self.since

    @property
    def centre(self) -> float:
        return (self.since + self.until) / 2

    def percent_at(self, at: float) -> float:
        """How far right that is, in percent of the width."""
        return 100 * (at - self.since) / self.span_s

    def overlaps(self, since: float, until: float) -> bool:
        return since <= self.until and until >= self.since


class AxisTick(BaseView, frozen=True, kw_only=True):
    at: float
    x: float
    text: str
    day: str = ""  # where another day begins, and at the first tick

    @property
    def anchor(self) -> str:
        """How its text stands to it: at the edges it must not be cut."""
        return "start" if self.x < _EDGE_PERCENT else "end" if self.x > 100 - _EDGE_PERCENT else "middle"


def window_around(centre: float, span_s: float) -> TimeWindow:
    return TimeWindow(since=centre - span_s / 2, until=centre + span_s / 2)


def parse_span(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise Rejected(str(error)) from error
    if not _MIN_SPAN_S <= seconds <= _MAX_SPAN_S:
        raise Rejected(f"a timeline cannot span {text!r}: give 1m or more, and 31d at most")
    return seconds


def parse_instant(text: str) -> float:
    """As links carry it: ISO 8601, or seconds since 1970."""
    try:
        at = float(text)
    except ValueError:
        at = _parse_iso(text)
    if not 0 <= at <= _MAX_INSTANT:
        raise Rejected(f"{text!r} is no instant that a timeline can show: write it like 2026-01-05T12:00:00Z")
    return at


def _parse_iso(text: str) -> float:
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def format_iso(at: float) -> str:
    return f"{_utc_datetime(at):%Y-%m-%dT%H:%M:%SZ}"


def axis_ticks(window: TimeWindow) -> tuple[AxisTick, ...]:
    """At whole steps of UTC, a handful of them."""
    step = next((s for s in _TICK_STEPS_S if window.span_s / s <= _MAX_TICKS), _TICK_STEPS_S[-1])
    first, last = math.ceil(window.since / step), math.floor(window.until / step)
    ticks: list[AxisTick] = []
    for at in range(first * step, last * step + 1, step):
        begins = not ticks or at // _DAY_S != int(ticks[-1].at) // _DAY_S
        ticks.append(
            AxisTick(at=at, x=window.percent_at(at), text=_tick_text(at, step), day=_tick_day(at) if begins else "")
        )
    return tuple(ticks)


def _tick_text(at: float, step: int) -> str:
    return f"{_utc_datetime(at):%H:%M:%S}" if step < 60 else f"{_utc_datetime(at):%H:%M}"


def _tick_day(at: float) -> str:
    return f"{_utc_datetime(at):%a %d %b}"


def _utc_datetime(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


# Every state, with the sign that tells it without colour.
STATE_SYMBOLS = {
    "scheduled": "◇",
    "approved": "✓",
    "started": "▶",
    "finished": "●",
    "failed": "✕",
    "withdrawn": "⊘",
}


class EventRow(BaseView, frozen=True, kw_only=True):
    id: str
    scope: str
    title_of_scope: str
    kind: str
    listed: bool
    cause: str
    vms: tuple[str, ...]
    state: str  # one of SIGNS
    published_at: float
    not_before: float
    approved_at: float | None
    approved_by: str
    started_at: float | None
    over_at: float | None
    promised_s: float | None  # of notice; None: it came without
    given_s: float | None
    notice: str
    waits_for: str

    @property
    def label(self) -> str:
        return f"{self.kind} of {join_names(self.vms)}"

    def ends_at(self, now: float) -> float:
        """When the bar ends, as far as that can be said now."""
        if self.over_at is not None:
            return self.over_at
        return now if self.started_at is not None else max(self.not_before, now)


def event_row(event: Event, *, title_of_scope: str, waits_for: str = "") -> EventRow:
    return EventRow(
        id=event.id,
        scope=event.scope_id,
        title_of_scope=title_of_scope,
        kind=event_kind_text(event),
        listed=event.listed,
        cause=event.cause,
        vms=event.vms,
        state=event_state(event),
        published_at=event.published_at,
        not_before=event.not_before,
        approved_at=event.approved_at,
        approved_by=event.approved_by,
        started_at=event.started_at,
        over_at=event.over_at,
        promised_s=_promised_notice_s(event),
        given_s=None if event.started_at is None else event.started_at - event.published_at,
        notice=_notice_text(event),
        waits_for=waits_for,
    )


def event_state(event: Event) -> str:
    if event.ending is not None:
        return str(event.ending)
    if event.started_at is not None:
        return "started"
    return "scheduled" if event.approved_at is None else "approved"


def _promised_notice_s(event: Event) -> float | None:
    """NotBefore was rounded up to a whole second: the rest was not asked for."""
    if not event.listed or started_without_notice(event):
        return None
    return math.floor(event.not_before - event.published_at)


def _notice_text(event: Event) -> str:
    told = ", ".join(notice_phrases(event))
    if event.ending is Ending.WITHDRAWN and event.over_at is not None:
        return f"{told}, withdrawn after {duration_text(event.over_at - event.published_at)}"
    return told


# Heights, which timeline.css repeats for the labels beside the drawing: a test holds them equal.
AXIS_HEIGHT, BAND_HEIGHT, ROW_HEIGHT = 40, 32, 44
_OFFSCREEN_PERCENT = 10.0  # percent outside of the view, where nothing needs to be drawn exactly any more
_LABEL_FLIP_PERCENT = 55.0  # percent: words of bars that begin further right end with the bar

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


class BarSegment(BaseView, frozen=True, kw_only=True):
    """A stretch of a bar. One that grows goes on until now."""

    what: str
    since: float
    until: float
    x: float
    width: float
    grows: bool = False


class ChartMark(BaseView, frozen=True, kw_only=True):
    """An instant of a bar."""

    what: str
    at: float
    x: float
    text: str


class EventBar(BaseView, frozen=True, kw_only=True):
    row: EventRow
    y: float
    parts: tuple[BarSegment, ...]
    marks: tuple[ChartMark, ...]
    label_x: float
    label_ends_at_x: bool  # the words end there instead of beginning
    until: float

    @property
    def title(self) -> str:
        told = (f"{mark.text}, {format_utc(mark.at)}" for mark in sorted(self.marks, key=lambda mark: mark.at))
        return "\n".join((f"{self.row.label}: {self.row.cause}, {self.row.state}", self.row.notice, *told))


class ScopeBand(BaseView, frozen=True, kw_only=True):
    """The bars of one scope."""

    scope: str
    title: str
    y: float
    bars: tuple[EventBar, ...]


class TimelineChart(BaseView, frozen=True, kw_only=True):
    window: TimeWindow
    now: float
    now_x: float
    ticks: tuple[AxisTick, ...]
    bands: tuple[ScopeBand, ...]
    height: float  # of the bands, without the axis

    @property
    def band_height(self) -> int:
        return BAND_HEIGHT

    @property
    def row_height(self) -> int:
        return ROW_HEIGHT


def build_chart(lanes: Iterable[EventRow], window: TimeWindow, now: float, *, banded: bool = True) -> TimelineChart:
    """Grouped by scope, in an order that what happens does not change; without bands, one lane below the other."""
    bands: list[ScopeBand] = []
    y = 0.0
    for title, of_scope in groupby(sorted(lanes, key=_sort_key), key=lambda lane: (lane.title_of_scope, lane.scope)):
        top = y + (BAND_HEIGHT if banded else 0)
        bars = tuple(_event_bar(lane, window, now, top + n * ROW_HEIGHT) for n, lane in enumerate(of_scope))
        bands.append(ScopeBand(scope=title[1], title=title[0], y=y, bars=bars))
        y = top + len(bars) * ROW_HEIGHT
    return TimelineChart(
        window=window,
        now=now,
        now_x=_clamped_percent(window, now),
        ticks=axis_ticks(window),
        bands=tuple(bands),
        height=y,
    )


def _sort_key(lane: EventRow) -> tuple[Sequence[tuple[int, str]], str, float, str]:
    return _natural_sort_key(lane.title_of_scope), lane.scope, lane.published_at, lane.id


def _natural_sort_key(text: str) -> list[tuple[int, str]]:
    """So that web-10 comes after web-9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text.casefold()) if part]


def _event_bar(lane: EventRow, window: TimeWindow, now: float, y: float) -> EventBar:
    until = lane.ends_at(now)
    begins, ends = max(0.0, window.percent_at(lane.published_at)), min(100.0, window.percent_at(until))
    words_end = begins > _LABEL_FLIP_PERCENT
    return EventBar(
        row=lane,
        y=y,
        parts=tuple(_bar_segment(window, *stretch) for stretch in _segment_spans(lane, now)),
        marks=tuple(
            ChartMark(what=what, at=at, x=_clamped_percent(window, at), text=text)
            for what, at, text in _mark_instants(lane)
        ),
        label_x=ends if words_end else begins,
        label_ends_at_x=words_end,
        until=until,
    )


def _segment_spans(lane: EventRow, now: float) -> Iterator[tuple[str, float, float, bool]]:
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


def _mark_instants(lane: EventRow) -> Iterator[tuple[str, float, str]]:
    yield "published", lane.published_at, "published"
    if lane.promised_s is not None:
        yield "not-before", lane.not_before, "not before"
    if lane.started_at is not None:
        yield "started", lane.started_at, "started"
    if lane.over_at is not None:
        yield lane.state, lane.over_at, lane.state
    if lane.approved_at is not None:  # last, so that it lies above a start at the same moment
        yield "approved", lane.approved_at, f"approved by {lane.approved_by}"


def _bar_segment(window: TimeWindow, what: str, since: float, until: float, grows: bool) -> BarSegment:
    x = _clamped_percent(window, since)
    return BarSegment(
        what=what, since=since, until=until, x=x, width=max(0.0, _clamped_percent(window, until) - x), grows=grows
    )


def _clamped_percent(window: TimeWindow, at: float) -> float:
    """A bar of two weeks in a window of minutes would be too long for some browsers to draw."""
    return min(100 + _OFFSCREEN_PERCENT, max(-_OFFSCREEN_PERCENT, window.percent_at(at)))


def event_row_for(showing: ViewBuilder, event: Event) -> EventRow:
    scope = showing.load_scope(event.scope_id) or Scope(id=event.scope_id)
    wait = showing.pending_wait(event)
    return event_row(event, title_of_scope=scope_title(scope), waits_for=wait.text if wait else "")


def render_standalone_svg(chart: TimelineChart, *, more: int = 0) -> str:
    """As a file: with its looks, its title and what its signs mean."""
    return render_template("timeline.svg", chart=chart, style=_chart_stylesheet(), legend=LEGEND, more=more)


@cache
def _chart_stylesheet() -> Markup:
    """The drawing's looks, which its page links and a drawing that stands alone carries. Ours, so it is trusted."""
    text = files("forewarn.portal").joinpath("static", "timeline-chart.css").read_text("utf-8")
    return Markup(text)
