"""Geometry of a timeline: time window, axis ticks, event rows, and bars with positions; no HTML.

x is a percentage of the width, y is in pixels; timeline-chart.html draws it. Times are UTC. Heights are repeated in
timeline.css, and a test holds them equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from forewarn.base.duration import duration_text, parse_duration
from forewarn.base.times import Timestamp, parse_time, timestamp
from forewarn.core.event import Event
from forewarn.core.explain.explanation import event_kind_text, join_names, notice_phrases, started_without_notice
from forewarn.core.scope import Scope, scope_name
from forewarn.errors import Rejected
from forewarn.web.portal.rendering import format_utc, render_template
from forewarn.web.portal.states import event_state, state_class
from forewarn.web.views import BaseView, ViewBuilder

# The spans that the page offers as links, in seconds; the query may give any other from a minute to 31 days.
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
_DAY_S = 86400
_TICK_STEPS_S = (
    *(10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(days * _DAY_S for days in (1, 2, 3, 4, 5, 7, 14)),
)
_WINDOW_MARGIN = 0.06  # on either side, as a share of the time that the rows take
_MIN_WINDOW_S = 60.0


class TimeWindow(BaseView, frozen=True, kw_only=True):
    """The time that a chart shows, from its left edge to its right one: lab time in POSIX seconds."""

    since: Timestamp  # at the left edge
    until: Timestamp  # at the right edge, after `since`

    @property
    def span_s(self) -> float:
        return self.until - self.since

    @property
    def centre(self) -> float:
        """The time in the middle of the window, in POSIX seconds."""
        return (self.since + self.until) / 2

    def percent_at(self, at: float) -> float:
        """Return the x position of an instant in percent of the width; below 0 or above 100 if it is outside."""
        return 100 * (at - self.since) / self.span_s

    def overlaps(self, since: float, until: float) -> bool:
        """Return whether the time from `since` to `until` overlaps the window; touching an edge counts."""
        return since <= self.until and until >= self.since


class AxisTick(BaseView, frozen=True, kw_only=True):
    """A tick of the time axis of a chart, with its text and, where the day changes, the day."""

    at: Timestamp
    x: float  # percent of the width
    text: str  # the time of day in UTC; the date such as `05 Jan` if ticks are days apart
    day: str = ""  # the date at the first tick of a day, usually also at the first of all, or the weekday; "": none
    anchor: str = "middle"  # the SVG text-anchor of its text (start, middle or end), so that no edge cuts it off


class AxisDensity(NamedTuple):
    """How many ticks a time axis may have, so that their texts do not touch."""

    max_ticks: int  # the most steps in the window; there is one tick more if both edges have one
    edge_percent: float  # a tick nearer to an edge than this, in percent of the width, has its text on its inner side
    day_format: str  # of the date that is shown beside a time, for strftime


WIDE_AXIS = AxisDensity(max_ticks=8, edge_percent=5.0, day_format="%a %d %b")
NARROW_AXIS = AxisDensity(max_ticks=3, edge_percent=12.0, day_format="%d %b")  # on a phone


def window_around(centre: float, span_s: float) -> TimeWindow:
    """Return the window of `span_s` seconds with `centre`, in POSIX seconds, in the middle."""
    return TimeWindow(since=timestamp(centre - span_s / 2), until=timestamp(centre + span_s / 2))


def window_for_rows(rows: Sequence[EventRow], now: float) -> TimeWindow:
    """Return the window that shows all events from publication to end, with margins."""
    since = min((row.published_at for row in rows), default=now)
    until = max((max(row.ends_at(now), row.not_before) for row in rows), default=now)
    margin = max((until - since) * _WINDOW_MARGIN, _MIN_WINDOW_S / 2)
    return TimeWindow(since=timestamp(since - margin), until=timestamp(until + margin))


def parse_span(text: str) -> float:
    """Return the seconds of a span such as `1h`; raise Rejected unless it is from 1m to 31d, inclusive."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise Rejected(str(error)) from error
    if not _MIN_SPAN_S <= seconds <= _MAX_SPAN_S:
        raise Rejected(f"a timeline cannot span {text!r}: give between 1m and 31d")
    return seconds


def parse_instant(text: str) -> float:
    """Return the POSIX seconds of a time in ISO 8601, or written as POSIX seconds."""
    try:
        at = float(text)
    except ValueError:
        at = math.nan
        with suppress(ValueError):
            at = parse_time(text)
    if not 0 <= at <= _MAX_INSTANT:
        raise Rejected(f"{text!r} is not a time that a timeline can show: write it like 2026-01-05T12:00:00Z")
    return at


def axis_ticks(window: TimeWindow, density: AxisDensity = WIDE_AXIS) -> tuple[AxisTick, ...]:
    """Return the ticks of a window in order of time, at whole steps such as 5 minutes or a day, in UTC."""
    step = next((s for s in _TICK_STEPS_S if window.span_s / s <= density.max_ticks), _TICK_STEPS_S[-1])
    first, last = math.ceil(window.since / step), math.floor(window.until / step)
    instants = range(first * step, last * step + 1, step)
    days = _tick_days(instants, step, density)
    return tuple(
        AxisTick(
            at=timestamp(at),
            x=window.percent_at(at),
            text=_tick_text(at, step),
            day=day,
            anchor=_tick_anchor(window.percent_at(at), density.edge_percent),
        )
        for at, day in zip(instants, days, strict=True)
    )


def _tick_days(instants: Sequence[int], step: int, density: AxisDensity) -> list[str]:
    if step >= _DAY_S:
        return [f"{_utc_datetime(at):%a}" for at in instants]
    starts_day = [at // _DAY_S != (at - step) // _DAY_S for at in instants]
    starts_day[:1] = [not any(starts_day[1:2]) for _ in starts_day[:1]]
    return [
        f"{_utc_datetime(at):{density.day_format}}" if is_new else ""
        for at, is_new in zip(instants, starts_day, strict=True)
    ]


def _tick_text(at: float, step: int) -> str:
    if step >= _DAY_S:
        return f"{_utc_datetime(at):%d %b}"
    return f"{_utc_datetime(at):%H:%M:%S}" if step < 60 else f"{_utc_datetime(at):%H:%M}"


def _tick_anchor(x: float, edge_percent: float) -> str:
    return "start" if x < edge_percent else "end" if x > 100 - edge_percent else "middle"


def _utc_datetime(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


class EventRow(BaseView, frozen=True, kw_only=True):
    """One event of a timeline, for table and chart. Field names are JSON keys; times are lab time."""

    id: str  # a GUID, upper case
    scope: str  # its id
    scope_name: str  # such as `web` or `workers/pg-0`
    kind: str  # such as Reboot; what is done to the VMs if no document shows the event
    listed: bool  # documents show it while it is live
    cause: str  # a value of Cause
    vms: tuple[str, ...]  # names
    state: str  # scheduled, approved (and not started), started, finished, failed, withdrawn or not needed
    published_at: Timestamp
    not_before: Timestamp  # NotBefore, as documents show it
    approved_at: Timestamp | None  # None: not approved
    approved_by: str  # "": nobody
    started_at: Timestamp | None  # None: not started
    over_at: Timestamp | None  # None: it is live
    promised_s: float | None  # whole seconds from publication to NotBefore; None: without notice, or not `listed`
    given_s: float | None  # seconds from publication to start; None before the start
    notice: str  # both in words, or why there is no notice; and when the event ended if it never started
    waits_for: str  # what it waits for before it starts, in words; "" after that

    @property
    def names(self) -> str:
        """The names of the event's VMs, such as `web-0`; of more than four the first three and `and N more`."""
        return join_names(self.vms)

    @property
    def label(self) -> str:
        """The event's kind and VMs, such as `Reboot of web-0`; of over four VMs three names and `and N more`."""
        return f"{self.kind} of {self.names}"

    def ends_at(self, now: float) -> float:
        """Return the lab time at which the event's bar ends; `now` is the current lab time."""
        if self.over_at is not None:
            return self.over_at
        return now if self.started_at is not None else max(self.not_before, now)


def event_row(event: Event, *, scope_name: str, waits_for: str = "") -> EventRow:
    return EventRow(
        id=event.id,
        scope=event.scope_id,
        scope_name=scope_name,
        kind=event_kind_text(event),
        listed=event.listed,
        cause=event.cause,
        vms=event.vms,
        state=event_state(event),
        published_at=timestamp(event.published_at),
        not_before=timestamp(event.not_before),
        approved_at=timestamp(event.approved_at),
        approved_by=event.approved_by,
        started_at=timestamp(event.started_at),
        over_at=timestamp(event.over_at),
        promised_s=_promised_notice_s(event),
        given_s=None if event.started_at is None else event.started_at - event.published_at,
        notice=_notice_text(event),
        waits_for=waits_for,
    )


def _promised_notice_s(event: Event) -> float | None:
    """The notice in whole seconds: the rounding of NotBefore to the next second does not count."""
    if not event.listed or started_without_notice(event):
        return None
    return math.floor(event.not_before - event.published_at)


def _notice_text(event: Event) -> str:
    phrases = ", ".join(notice_phrases(event))
    if event.is_withdrawn and event.over_at is not None:
        return f"{phrases}, {event.ending} after {duration_text(event.over_at - event.published_at)}"
    return phrases


# In pixels. timeline.css repeats them for the labels beside the chart, and a test holds them equal.
BAND_HEIGHT, ROW_HEIGHT = 32, 44
_OFFSCREEN_PERCENT = 10.0  # positions outside of the window are clamped to this

# Name and text of each symbol, in the order of the legend.
LEGEND = (
    ("notice", "notice"),
    ("waiting", "waiting"),
    ("performing", "performing"),
    ("published", "published"),
    ("not-before", "not before"),
    ("approved", "approved"),
    ("started", "started"),
    ("finished", "finished"),
    ("failed", "failed"),
    ("withdrawn", "withdrawn"),
    ("not-needed", "not needed"),
    ("now", "now"),
)


class BarSegment(BaseView, frozen=True, kw_only=True):
    """A part of an event's bar in a timeline chart, such as its notice, with its position.

    `what` is promised (publication to NotBefore), notice (the part of that before the start or end), waiting (from
    NotBefore on, to the start or the end without one) or performing (start to end). Positions are clamped a little
    outside of the window.
    """

    kind: str  # promised, notice, waiting or performing
    since: Timestamp
    until: Timestamp  # where it ends
    x: float  # of its left edge, in percent of the chart's width
    width: float  # in percent of the chart's width
    grows: bool = False  # it ends at the current time, and moves with it


class ChartMark(BaseView, frozen=True, kw_only=True):
    """A mark on an event's bar in a timeline chart: something that happened at one time."""

    kind: str  # published, not-before, approved, started or a final state (finished, failed, withdrawn, not-needed)
    at: Timestamp
    x: float  # percent of the width, clamped a little outside of the window
    text: str  # of the tooltip, such as who approved it


class EventBar(BaseView, frozen=True, kw_only=True):
    row: EventRow
    y: float  # of its top, in pixels from the top of the chart
    parts: tuple[BarSegment, ...]  # in drawing order: later ones cover earlier ones
    marks: tuple[ChartMark, ...]  # in drawing order

    @property
    def title(self) -> str:
        """The tooltip of the bar: a line for the event, one for its notice, and one for each mark by time."""
        phrases = (f"{mark.text}, {format_utc(mark.at)}" for mark in sorted(self.marks, key=lambda mark: mark.at))
        return "\n".join((f"{self.row.label}: {self.row.cause}, {self.row.state}", self.row.notice, *phrases))


class ScopeBand(BaseView, frozen=True, kw_only=True):
    """The bars of one scope in a timeline chart, or of all standalone VMs."""

    scope: str  # its id; "" for standalone VMs
    title: str  # such as `web` or `workers/pg-0`
    y: float  # of its top, in pixels from the top of the chart
    bars: tuple[EventBar, ...]  # in order of publication; those of standalone VMs in natural order of names


class TimelineChart(BaseView, frozen=True, kw_only=True):
    """A timeline chart: time axis, bands of bars, and a line at the current time."""

    window: TimeWindow
    now: Timestamp
    now_x: float  # percent of the width; outside of 0 to 100, from -10 to 110, if `now` is not in the window
    ticks: tuple[AxisTick, ...]
    narrow_ticks: tuple[AxisTick, ...]  # those of a chart on a phone
    bands: tuple[ScopeBand, ...]  # from top to bottom, in natural order of their titles
    height: float  # of the bands in pixels, without the axis

    @property
    def band_height(self) -> int:
        return BAND_HEIGHT

    @property
    def row_height(self) -> int:
        """The height of each bar with its label in pixels."""
        return ROW_HEIGHT


def build_chart(rows: Iterable[EventRow], window: TimeWindow, now: float, *, banded: bool = True) -> TimelineChart:
    """Return the chart of a window: a band for each scope in natural order of titles, in it a bar per row."""
    bands: list[ScopeBand] = []
    y = 0.0
    ordered = sorted(rows, key=_sort_key)
    for (title, scope), rows_of_scope in groupby(ordered, key=_band_of):
        top = y + (BAND_HEIGHT if banded else 0)
        bars = tuple(_event_bar(row, window, now, top + n * ROW_HEIGHT) for n, row in enumerate(rows_of_scope))
        bands.append(ScopeBand(scope=scope, title=title, y=y, bars=bars))
        y = top + len(bars) * ROW_HEIGHT
    return TimelineChart(
        window=window,
        now=timestamp(now),
        now_x=_clamped_percent(window, now),
        ticks=axis_ticks(window),
        narrow_ticks=axis_ticks(window, NARROW_AXIS),
        bands=tuple(bands),
        height=y,
    )


def _band_of(row: EventRow) -> tuple[str, str]:
    return ("standalone VMs", "") if row.scope.startswith("vm:") else (row.scope_name, row.scope)


def _sort_key(row: EventRow) -> tuple[object, ...]:
    title, scope = _band_of(row)
    names = _natural_sort_key(" ".join(row.vms[:1]))  # many events of one request are published at the same time
    order = (row.published_at, names) if scope else (names, row.published_at)
    return not scope, _natural_sort_key(title), scope, order, row.id  # standalone VMs come last


def _natural_sort_key(text: str) -> list[tuple[int, str]]:
    """Sorts web-10 after web-9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text.casefold()) if part]


def _event_bar(row: EventRow, window: TimeWindow, now: float, y: float) -> EventBar:
    return EventBar(
        row=row,
        y=y,
        parts=tuple(_bar_segment(window, *stretch) for stretch in _segment_spans(row, now)),
        marks=tuple(
            ChartMark(kind=what, at=timestamp(at), x=_clamped_percent(window, at), text=text)
            for what, at, text in _mark_instants(row)
        ),
    )


def _segment_spans(row: EventRow, now: float) -> Iterator[tuple[str, float, float, bool]]:
    """The promised notice first: the given notice covers it, and the rest shows an early start."""
    start, end = row.started_at, row.over_at
    if row.promised_s is not None:
        yield "promised", row.published_at, row.not_before, False
        notice_ends = next((at for at in (start, end) if at is not None), row.not_before)
        yield "notice", row.published_at, min(notice_ends, row.not_before), False
        waits_until = next((at for at in (start, end) if at is not None), now)
        if waits_until > row.not_before:
            yield "waiting", row.not_before, waits_until, start is None and end is None
    if start is not None:
        yield "performing", start, now if end is None else end, end is None


def _mark_instants(row: EventRow) -> Iterator[tuple[str, float, str]]:
    yield "published", row.published_at, "published"
    if row.promised_s is not None:
        yield "not-before", row.not_before, "not before"
    if row.started_at is not None:
        yield "started", row.started_at, "started"
    if row.over_at is not None:
        yield state_class(row.state), row.over_at, row.state
    if row.approved_at is not None:  # last, so that it covers a start at the same instant
        yield "approved", row.approved_at, f"approved by {row.approved_by}"


def _bar_segment(window: TimeWindow, what: str, since: float, until: float, grows: bool) -> BarSegment:
    x = _clamped_percent(window, since)
    return BarSegment(
        kind=what,
        since=timestamp(since),
        until=timestamp(until),
        x=x,
        width=max(0.0, _clamped_percent(window, until) - x),
        grows=grows,
    )


def _clamped_percent(window: TimeWindow, at: float) -> float:
    """The x position, clamped: some browsers cannot draw a bar of two weeks in a window of minutes."""
    return min(100 + _OFFSCREEN_PERCENT, max(-_OFFSCREEN_PERCENT, window.percent_at(at)))


def event_row_for(views: ViewBuilder, event: Event) -> EventRow:
    """Return the row of an event, with the title of its scope and what it waits for, which `views` reads."""
    scope = views.load_scope(event.scope_id) or Scope(id=event.scope_id)
    wait = views.pending_wait(event)
    return event_row(event, scope_name=scope_name(scope), waits_for=wait.text if wait else "")


def render_standalone_svg(chart: TimelineChart, *, more: int = 0) -> str:
    """Return the text of an SVG file of its own: the chart with style, title and legend."""
    return render_template("timeline.svg", chart=chart, style=_chart_stylesheet(), legend=LEGEND, more=more)


@cache
def _chart_stylesheet() -> Markup:
    """The style sheet of the chart, which an SVG file contains. Our own file, so it needs no escaping."""
    text = files("forewarn.web.portal").joinpath("static", "timeline-chart.css").read_text("utf-8")
    return Markup(text)
