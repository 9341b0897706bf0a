"""The timeline page: finds the events of a time window and shows them as a chart and a table.

The number of events read is bounded; `is_cut` says that older ones may be missing.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Literal

from forewarn.core.event import Event, EventState
from forewarn.explain.phrases import event_kind_text
from forewarn.portal.export import ExportTable
from forewarn.portal.timeline_chart import (
    DEFAULT_SPAN,
    LEGEND,
    OFFERED_SPANS,
    EventRow,
    TimelineChart,
    TimeWindow,
    build_chart,
    event_row_for,
    format_iso,
    parse_instant,
    parse_span,
    render_standalone_svg,
    window_around,
)
from forewarn.web.context import RequestContext
from forewarn.web.queries import event_lists_vm
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import BaseView

_MAX_EVENTS_READ = 2_000  # events of each sort
_MAX_EVENTS_READ_FILTERED = 20_000  # for somebody who may not see all of them, or asks for few
_LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)

EventKindFilter = Literal["", "Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "unlisted"]


class TimelineQuery(StrictBody, frozen=True, kw_only=True):
    span: str = ""
    at: str = ""  # the middle; left out: now, and it follows
    scope: str = ""
    vm: str = ""
    rollout: str = ""
    kind: EventKindFilter = ""
    state: Literal["", "live", "all"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEvents:
    events: list[Event]
    is_cut: bool  # there may be others: only the newest ones were looked through


def find_events(context: RequestContext, query: TimelineQuery, window: TimeWindow) -> FoundEvents:
    """Those that fit, in the window or not."""
    vm = context.directory.find_any(query.vm) if query.vm else None
    scope_id = context.find_scope(query.scope).id if query.scope else None
    request_id = context.find_rollout(query.rollout).id if query.rollout else None
    if vm is not None and scope_id not in (None, vm.scope_id):
        return FoundEvents(events=[], is_cut=False)

    within = vm.scope_id if vm is not None else scope_id
    picky = within is not None or query.kind != "" or not context.can_see_everything()
    most = _MAX_EVENTS_READ_FILTERED if picky else _MAX_EVENTS_READ
    heaps = list(_read_candidates(context, query.state == "live", window, within, request_id, most))
    every = {event.id: event for heap in heaps for event in heap if context.can_see_scope(event.scope_id)}
    fitting = [event for event in every.values() if _matches(event, query.kind, vm.name if vm else "")]
    return FoundEvents(events=fitting, is_cut=any(len(heap) >= most for heap in heaps))


def _read_candidates(
    context: RequestContext,
    live_only: bool,
    window: TimeWindow,
    scope_id: str | None,
    request_id: str | None,
    most: int,
) -> list[list[Event]]:
    statuses = _LIVE_STATUSES if live_only else tuple(EventState)
    if scope_id is not None or request_id is not None:
        return [context.store.events(scope_id=scope_id, request_id=request_id, statuses=statuses, limit=most)]
    live = context.store.events(statuses=_LIVE_STATUSES, limit=most)
    if live_only:
        return [live]
    ended = context.store.events_ended_between(window.since, window.until, limit=most)
    # What was under way at the right edge was over soon after it.
    later = context.store.events_ended_between(window.until, math.inf, limit=most, newest=False)
    return [live, ended, later]


def _matches(event: Event, kind: str, vm: str) -> bool:
    if vm and not event_lists_vm(event, vm):
        return False
    return kind in ("", event_kind_text(event) if event.listed else "unlisted")


def newest_visible_event(context: RequestContext) -> Event | None:
    """The last event that the caller may see at all."""
    recent = context.store.events(limit=1 if context.can_see_everything() else _MAX_EVENTS_READ_FILTERED)
    return next((event for event in reversed(recent) if context.can_see_scope(event.scope_id)), None)


MAX_EVENTS_SHOWN = 200  # events
_MARGIN_FACTOR = 1.15  # around what is to be seen whole


class TimelineLink(BaseView, frozen=True, kw_only=True):
    """Where a link leads to."""

    span: str
    at: str


class TimelinePage(BaseView, frozen=True, kw_only=True):
    now: float
    window: TimeWindow
    follows: bool  # the window stays around now
    lanes: tuple[EventRow, ...]  # newest first
    more: int  # that are in view as well, and are not listed
    is_cut: bool  # there may be others still: only the newest ones were looked through
    whole: TimelineLink | None  # from where all is seen that is under way; None: nothing is
    newest: TimelineLink | None  # where the newest event is, if none is in view; None: there is none at all

    def chart(self) -> TimelineChart:
        return build_chart(self.lanes, self.window, self.now)

    def svg(self) -> str:
        """The drawing, whole by itself."""
        return render_standalone_svg(self.chart(), more=self.more)

    def table(self) -> ExportTable:
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(lane) for lane in self.lanes])

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        return LEGEND

    @property
    def spans(self) -> tuple[str, ...]:
        return tuple(OFFERED_SPANS)

    @property
    def span(self) -> str:
        return format_span(self.window.span_s)

    @property
    def earlier(self) -> str:
        return format_iso(self.window.centre - self.window.span_s / 2)

    @property
    def later(self) -> str:
        return format_iso(self.window.centre + self.window.span_s / 2)


async def show_timeline_page(context: RequestContext, call: HandlerCall, query: TimelineQuery) -> TimelinePage:
    """Events over time."""
    now = context.now()
    window = window_around(parse_instant(query.at) if query.at else now, parse_span(query.span or DEFAULT_SPAN))
    found = find_events(context, query, window)
    await asyncio.sleep(0)  # there may have been much to look through: others get their turn

    showing = ViewBuilder(context)
    seen = [event for event in found.events if _is_in_window(event, window, now)]
    seen.sort(key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    shown = sorted(seen[:MAX_EVENTS_SHOWN], key=lambda event: (event.published_at, event.seq), reverse=True)
    return TimelinePage(
        now=now,
        window=window,
        follows=not query.at,
        lanes=tuple(event_row_for(showing, event) for event in shown),
        more=len(seen) - len(shown),
        is_cut=found.is_cut,
        whole=_link_to_live_events([event for event in found.events if event.is_live], now),
        newest=None if shown else _link_to_event(newest_visible_event(context)),
    )


def _is_in_window(event: Event, window: TimeWindow, now: float) -> bool:
    return window.overlaps(event.published_at, _event_end(event, now))


def _event_end(event: Event, now: float) -> float:
    return event.over_at if event.over_at is not None else max(event.not_before, now)


def _link_to_live_events(live: list[Event], now: float) -> TimelineLink | None:
    if not live:
        return None
    since = min(event.published_at for event in live)
    until = max(_event_end(event, now) for event in live)
    shortest = OFFERED_SPANS["5m"]
    span_s = min(OFFERED_SPANS["14d"] * 2, max(shortest, math.ceil((until - since) * _MARGIN_FACTOR)))
    return TimelineLink(span=format_span(span_s), at=format_iso((since + until) / 2))


def _link_to_event(event: Event | None) -> TimelineLink | None:
    return TimelineLink(span=DEFAULT_SPAN, at=format_iso(event.published_at)) if event else None


def format_span(seconds: float) -> str:
    """As links say it: `1h` where that is one of the offered spans, else seconds."""
    return next((word for word, length in OFFERED_SPANS.items() if length == seconds), f"{seconds:.0f}s")


_CSV_COLUMNS = (
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


def _csv_row(lane: EventRow) -> list[object]:
    return [
        lane.id,
        lane.kind,
        " ".join(lane.vms),
        lane.scope,
        lane.cause,
        lane.state,
        _csv_instant(lane.published_at),
        _csv_instant(lane.not_before),
        lane.promised_s,
        _csv_instant(lane.approved_at),
        lane.approved_by,
        _csv_instant(lane.started_at),
        lane.given_s,
        _csv_instant(lane.over_at),
        lane.notice,
        lane.waits_for,
    ]


def _csv_instant(at: float | None) -> str:
    return "" if at is None else format_iso(at)
