"""The timeline: events as bars from publication to their end, drawn by the server, and the same as a table."""

from __future__ import annotations

import asyncio
import math
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from forewarn.console.call import Call
from forewarn.console.portal.axis import SPANS, USUAL_SPAN, Window, iso, read_instant, read_span, window_around
from forewarn.console.portal.drawing import LEGEND, Chart, chart_of
from forewarn.console.portal.finding import TimelineQuery, found_by, newest_seen
from forewarn.console.portal.lane import Lane, lane_of
from forewarn.console.portal.page import Table
from forewarn.console.portal.rendering import render
from forewarn.console.room import Room
from forewarn.console.showing import Showing, title_of_scope
from forewarn.console.views import View
from forewarn.core.event import Event
from forewarn.core.scope import Scope

MOST_SHOWN = 200  # events
_ROOM = 1.15  # around what is to be seen whole


class Place(View, frozen=True, kw_only=True):
    """Where a link leads to."""

    span: str
    at: str


class TimelinePage(View, frozen=True, kw_only=True):
    now: float
    window: Window
    follows: bool  # the window stays around now
    lanes: tuple[Lane, ...]  # newest first
    more: int  # that are in view as well, and are not listed
    is_cut: bool  # there may be others still: only the newest ones were looked through
    whole: Place | None  # from where all is seen that is under way; None: nothing is
    newest: Place | None  # where the newest event is, if none is in view; None: there is none at all

    def chart(self) -> Chart:
        return chart_of(self.lanes, self.window, self.now)

    def svg(self) -> str:
        """The drawing, whole by itself."""
        return drawn_alone(self.chart(), more=self.more)

    def table(self) -> Table:
        return Table(columns=_COLUMNS, rows=[_row(lane) for lane in self.lanes])

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        return LEGEND

    @property
    def spans(self) -> tuple[str, ...]:
        return tuple(SPANS)

    @property
    def span(self) -> str:
        return span_word(self.window.span_s)

    @property
    def earlier(self) -> str:
        return iso(self.window.centre - self.window.span_s / 2)

    @property
    def later(self) -> str:
        return iso(self.window.centre + self.window.span_s / 2)


async def show(room: Room, call: Call, query: TimelineQuery) -> TimelinePage:
    """Events over time."""
    now = room.now()
    window = window_around(read_instant(query.at) if query.at else now, read_span(query.span or USUAL_SPAN))
    found = found_by(room, query, window)
    await asyncio.sleep(0)  # there may have been much to look through: others get their turn

    showing = Showing(room)
    seen = [event for event in found.events if _is_seen(event, window, now)]
    seen.sort(key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    shown = sorted(seen[:MOST_SHOWN], key=lambda event: (event.published_at, event.seq), reverse=True)
    return TimelinePage(
        now=now,
        window=window,
        follows=not query.at,
        lanes=tuple(lane_for(showing, event) for event in shown),
        more=len(seen) - len(shown),
        is_cut=found.is_cut,
        whole=_whole([event for event in found.events if event.is_live], now),
        newest=None if shown else _place_of(newest_seen(room)),
    )


def lane_for(showing: Showing, event: Event) -> Lane:
    scope = showing.scope_of(event.scope_id) or Scope(id=event.scope_id)
    wait = showing.wait(event)
    return lane_of(event, title_of_scope=title_of_scope(scope), waits_for=wait.text if wait else "")


def _is_seen(event: Event, window: Window, now: float) -> bool:
    return window.meets(event.published_at, _ends_at(event, now))


def _ends_at(event: Event, now: float) -> float:
    return event.over_at if event.over_at is not None else max(event.not_before, now)


def _whole(live: list[Event], now: float) -> Place | None:
    if not live:
        return None
    since = min(event.published_at for event in live)
    until = max(_ends_at(event, now) for event in live)
    shortest = SPANS["5m"]
    span_s = min(SPANS["14d"] * 2, max(shortest, math.ceil((until - since) * _ROOM)))
    return Place(span=span_word(span_s), at=iso((since + until) / 2))


def _place_of(event: Event | None) -> Place | None:
    return Place(span=USUAL_SPAN, at=iso(event.published_at)) if event else None


def span_word(seconds: float) -> str:
    """As links say it: `1h` where that is one of the offered spans, else seconds."""
    return next((word for word, length in SPANS.items() if length == seconds), f"{seconds:.0f}s")


def drawn_alone(chart: Chart, *, more: int = 0) -> str:
    """As a file: with its looks, its title and what its signs mean."""
    return render("timeline.svg", chart=chart, style=_style(), legend=LEGEND, more=more)


@cache
def _style() -> Markup:
    """The drawing's looks, which its page links and a drawing that stands alone carries. Ours, so it is trusted."""
    text = files("forewarn.console.portal").joinpath("static", "drawing.css").read_text("utf-8")
    return Markup(text)


_COLUMNS = (
    "event",
    "kind",
    "vms",
    "scope",
    "cause",
    "state",
    "published_at",
    "not_before",
    "promised_s",
    "approved_at",
    "approved_by",
    "started_at",
    "given_s",
    "over_at",
    "notice",
    "waits_for",
)


def _row(lane: Lane) -> list[object]:
    return [
        lane.id,
        lane.kind,
        " ".join(lane.vms),
        lane.scope,
        lane.cause,
        lane.state,
        _cell(lane.published_at),
        _cell(lane.not_before),
        lane.promised_s,
        _cell(lane.approved_at),
        lane.approved_by,
        _cell(lane.started_at),
        lane.given_s,
        _cell(lane.over_at),
        lane.notice,
        lane.waits_for,
    ]


def _cell(at: float | None) -> str:
    return "" if at is None else iso(at)
