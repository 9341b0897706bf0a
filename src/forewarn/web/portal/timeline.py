"""The timeline page: finds the events of a time window and shows them as a chart and a table.

The number of events read is bounded; `is_partial` says that older ones may be missing.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.event import Event, EventState
from forewarn.core.explain.explanation import event_kind_text
from forewarn.protocol.dates import iso_date
from forewarn.protocol.document import Kind
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PortalContext
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import (
    FilterChoice,
    offer_rollouts,
    offer_scopes,
    offer_vms,
    require_choice,
    resolve,
)
from forewarn.web.portal.timeline_chart import (
    DEFAULT_SPAN,
    LEGEND,
    OFFERED_SPANS,
    EventRow,
    TimelineChart,
    TimeWindow,
    build_chart,
    event_row_for,
    parse_instant,
    parse_span,
    render_standalone_svg,
    window_around,
)
from forewarn.web.queries import event_lists_vm
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView, ViewBuilder

_MAX_EVENTS_READ = 2_000  # per query of the store
_MAX_EVENTS_READ_FILTERED = 20_000  # if a filter, or what the user may see, leaves out some of them
_LIVE_STATUSES = (EventState.SCHEDULED, EventState.STARTED)

# The kinds and states that the page filters by, each with its label.
KIND_LABELS = {kind: kind for kind in (*map(str, Kind), "unlisted")}
STATE_LABELS = {"all": "all", "live": "not ended"}


class TimelineQuery(StrictBody, frozen=True, kw_only=True):
    """The query of the timeline page: its time window, and filters that all have to match."""

    span: str = ""  # the length of the window, from 1m to 31d; "": 1h
    at: str = ""  # the centre, in ISO 8601 or POSIX seconds; "": the current time, which the page then follows
    scope: str = ""  # a name or id; "": all, as in the next three
    vm: str = ""  # a name, `group/name` or key, also of a removed VM
    rollout: str = ""  # an id or its beginning
    kind: str = ""  # an EventType such as Reboot, or unlisted: events that no document shows; exact letter case
    state: str = ""  # live (not ended) or all; "": all


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundEvents:
    events: list[Event]
    is_partial: bool  # the search was bounded: older events may be missing


def _find_events(context: PortalContext, query: TimelineQuery, window: TimeWindow) -> _FoundEvents:
    """The visible events that match the filters of a query, in no order; not all need be in the window."""
    # Each read is bounded; `is_partial` of the result says if a bound was reached.
    require_choice("kind", query.kind, KIND_LABELS, "a kind of event")
    require_choice("state", query.state, STATE_LABELS, "a state to filter by")
    vm = resolve("vm", query.vm, context.directory.find_any, partial(offer_vms, context))
    scope = resolve("scope", query.scope, context.find_scope, partial(offer_scopes, context))
    rollout = resolve("rollout", query.rollout, context.find_rollout, partial(offer_rollouts, context))
    scope_id = scope.id if scope is not None else None
    request_id = rollout.id if rollout is not None else None
    if vm is not None and scope_id not in (None, vm.scope_id):
        return _FoundEvents(events=[], is_partial=False)

    within = vm.scope_id if vm is not None else scope_id
    is_filtered = within is not None or query.kind != "" or not context.can_see_everything()
    limit = _MAX_EVENTS_READ_FILTERED if is_filtered else _MAX_EVENTS_READ
    candidate_lists = list(_read_candidates(context, query.state == "live", window, within, request_id, limit))
    visible_events = {
        event.id: event
        for candidates in candidate_lists
        for event in candidates
        if context.can_see_scope(event.scope_id)
    }
    matching = [event for event in visible_events.values() if _matches(event, query.kind, vm.name if vm else "")]
    return _FoundEvents(events=matching, is_partial=any(len(candidates) >= limit for candidates in candidate_lists))


def _read_candidates(
    context: RequestContext,
    live_only: bool,
    window: TimeWindow,
    scope_id: str | None,
    request_id: str | None,
    limit: int,
) -> list[list[Event]]:
    statuses = _LIVE_STATUSES if live_only else tuple(EventState)
    if scope_id is not None or request_id is not None:
        return [context.store.events(scope_id=scope_id, request_id=request_id, statuses=statuses, limit=limit)]
    live = context.store.events(statuses=_LIVE_STATUSES, limit=limit)
    if live_only:
        return [live]
    ended = context.store.events_ended_between(window.since, window.until, limit=limit)
    # Events that were live at the end of the window ended soon after it.
    later = context.store.events_ended_between(window.until, math.inf, limit=limit, newest=False)
    return [live, ended, later]


def _matches(event: Event, kind: str, vm: str) -> bool:
    if vm and not event_lists_vm(event, vm):
        return False
    return kind in ("", event_kind_text(event) if event.listed else "unlisted")


def _newest_visible_event(context: RequestContext) -> Event | None:
    """The newest event that the user may see, live or over, even if no filter matches it; None for none."""
    recent = context.store.events(limit=1 if context.can_see_everything() else _MAX_EVENTS_READ_FILTERED)
    return next((event for event in reversed(recent) if context.can_see_scope(event.scope_id)), None)


MAX_EVENTS_SHOWN = 200
_MARGIN_FACTOR = 1.15  # of a window that shows all live events


class TimelineLink(BaseView, frozen=True, kw_only=True):
    """The query parameters of a link to another window of the timeline."""

    span: str  # the length of the window, such as 1h
    at: str  # the centre of the window, in ISO 8601


class TimelinePage(BaseView, frozen=True, kw_only=True):
    """The timeline page: events over time. Field names are JSON keys."""

    now: Timestamp
    window: TimeWindow  # the time that the chart shows
    follows: bool  # the window moves with the current time
    lanes: tuple[EventRow, ...]  # newest first; at most MAX_EVENTS_SHOWN, of more the live ones and then the newest
    more: int  # events in the window that are left out
    is_partial: bool  # the search was bounded: older events may be missing
    whole: TimelineLink | None  # to a window, of at most 28 days, around all live events that match; None: none do
    newest: TimelineLink | None  # to the newest event that the user may see; None: there is none, or `lanes` has events

    def chart(self) -> TimelineChart:
        """Return the chart of the events of `lanes` in the window, with a band for each scope."""
        return build_chart(self.lanes, self.window, self.now)

    def svg(self) -> str:
        """Return the text of the SVG export: the chart, with a note of how many events are left out."""
        return render_standalone_svg(self.chart(), more=self.more)

    def table(self) -> ExportTable:
        """Return the CSV export: one row per event of `lanes`."""
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(row) for row in self.lanes])

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """The legend of the chart: pairs of a symbol's name (its CSS class) and its text, in order."""
        return LEGEND

    @property
    def kinds(self) -> dict[str, str]:
        """The label of each kind of event that the page filters by, by its value in the query."""
        return KIND_LABELS

    @property
    def states(self) -> dict[str, str]:
        """The label of each state of events that the page filters by, by its value in the query: all and live."""
        return STATE_LABELS

    @property
    def spans(self) -> tuple[str, ...]:
        """The lengths of the window that the page offers, such as `1h`, the shortest first."""
        return tuple(OFFERED_SPANS)

    @property
    def span(self) -> str:
        """The length of the window: one of `spans`, such as `1h`, else whole seconds, such as `4000s`."""
        return _format_span(self.window.span_s)

    @property
    def earlier(self) -> str:
        """The centre of the window that begins half a span earlier, in ISO 8601, for a link."""
        return iso_date(self.window.centre - self.window.span_s / 2)

    @property
    def later(self) -> str:
        """The centre of the window that begins half a span later, in ISO 8601, for a link."""
        return iso_date(self.window.centre + self.window.span_s / 2)


async def show_timeline_page(context: PortalContext, call: HandlerCall, query: TimelineQuery) -> TimelinePage:
    """Show the visible events that match the filters and overlap a time window, newest first."""
    now = context.now()
    centre = resolve("at", query.at, parse_instant)
    span_s = resolve("span", query.span or DEFAULT_SPAN, parse_span, _offer_spans)
    assert span_s is not None
    window = window_around(now if centre is None else centre, span_s)
    found = _find_events(context, query, window)
    await asyncio.sleep(0)  # the search may have been long: lets other tasks run

    views = ViewBuilder(context)
    in_window = [event for event in found.events if _is_in_window(event, window, now)]
    in_window.sort(key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    shown = sorted(in_window[:MAX_EVENTS_SHOWN], key=lambda event: (event.published_at, event.seq), reverse=True)
    return TimelinePage(
        now=timestamp(now),
        window=window,
        follows=not query.at,
        lanes=tuple(event_row_for(views, event) for event in shown),
        more=len(in_window) - len(shown),
        is_partial=found.is_partial,
        whole=_link_to_live_events([event for event in found.events if event.is_live], now),
        newest=None if shown else _link_to_event(_newest_visible_event(context)),
    )


def _offer_spans(value: str) -> list[FilterChoice]:
    return [FilterChoice(value=span, label=span) for span in OFFERED_SPANS]


def _is_in_window(event: Event, window: TimeWindow, now: float) -> bool:
    return window.overlaps(event.published_at, _event_end(event, now))


def _event_end(event: Event, now: float) -> float:
    return event.over_at if event.over_at is not None else max(event.not_before, now)


def _link_to_live_events(live: list[Event], now: float) -> TimelineLink | None:
    if not live:
        return None
    since = min(event.published_at for event in live)
    until = max(_event_end(event, now) for event in live)
    min_span_s = OFFERED_SPANS["5m"]
    span_s = min(OFFERED_SPANS["14d"] * 2, max(min_span_s, math.ceil((until - since) * _MARGIN_FACTOR)))
    return TimelineLink(span=_format_span(span_s), at=iso_date((since + until) / 2))


def _link_to_event(event: Event | None) -> TimelineLink | None:
    return TimelineLink(span=DEFAULT_SPAN, at=iso_date(event.published_at)) if event else None


def _format_span(seconds: float) -> str:
    """A span as links write it: the name of an offered span such as `1h`, else seconds such as `4000s`."""
    return next((name for name, length in OFFERED_SPANS.items() if length == seconds), f"{seconds:.0f}s")


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


def _csv_row(row: EventRow) -> list[object]:
    return [
        row.id,
        row.kind,
        " ".join(row.vms),
        row.scope,
        row.cause,
        row.state,
        _csv_instant(row.published_at),
        _csv_instant(row.not_before),
        row.promised_s,
        _csv_instant(row.approved_at),
        row.approved_by,
        _csv_instant(row.started_at),
        row.given_s,
        _csv_instant(row.over_at),
        row.notice,
        row.waits_for,
    ]


def _csv_instant(at: float | None) -> str:
    return "" if at is None else iso_date(at)
