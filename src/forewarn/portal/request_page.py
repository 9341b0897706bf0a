"""The page of one request: its state, what it waits for, and its events over time.

`RequestTimeline` is shared with the rollout page.
"""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.request import RequestedOperation
from forewarn.portal.export import ExportTable
from forewarn.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.portal.timeline_chart import (
    EventRow,
    TimelineChart,
    TimeWindow,
    build_chart,
    event_row_for,
    format_iso,
    render_standalone_svg,
)
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.request_views import request_events, request_status
from forewarn.web.routing import named_event
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import BaseView, RequestStatusView

_MAX_EVENTS = 100  # events drawn and listed
_WINDOW_MARGIN = 0.06
_MIN_WINDOW_S = 60.0
_CSV_COLUMNS = (
    "event",
    "kind",
    "scope",
    "vms",
    "state",
    "published_at",
    "not_before",
    "started_at",
    "over_at",
    "waits_for",
)


class RequestTimeline(BaseView, frozen=True, kw_only=True):
    now: float
    lanes: tuple[EventRow, ...]  # what is under way first, then the newest
    more: int
    approvable: tuple[str, ...]  # ids of those that the visitor may approve

    def chart(self) -> TimelineChart:
        return build_chart(self.lanes, self._window, self.now)

    def svg(self) -> str:
        return render_standalone_svg(self.chart(), more=self.more)

    def table(self) -> ExportTable:
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(lane) for lane in self.lanes])

    @property
    def _window(self) -> TimeWindow:
        since = min((lane.published_at for lane in self.lanes), default=self.now)
        until = max((max(lane.ends_at(self.now), lane.not_before) for lane in self.lanes), default=self.now)
        margin = max((until - since) * _WINDOW_MARGIN, _MIN_WINDOW_S / 2)
        return TimeWindow(since=since - margin, until=until + margin)


def request_timeline(context: RequestContext, events: Sequence[Event]) -> RequestTimeline:
    seen = [event for event in events if context.can_see_scope(event.scope_id)]
    ordered = sorted(seen, key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    showing = ViewBuilder(context)
    shown = ordered[:_MAX_EVENTS]
    return RequestTimeline(
        now=context.now(),
        lanes=tuple(event_row_for(showing, event) for event in shown),
        more=len(ordered) - len(shown),
        approvable=tuple(event.id for event in shown if _may_approve(context, event)),
    )


def _may_approve(context: RequestContext, event: Event) -> bool:
    if event.status is not EventState.SCHEDULED or event.approved_at is not None:
        return False
    return context.principal.may_all(Right.APPROVE, named_event(context, HandlerCall(path_params={"id": event.id})))


def _csv_row(lane: EventRow) -> list[object]:
    instants = (lane.published_at, lane.not_before, lane.started_at, lane.over_at)
    told = [None if at is None else format_iso(at) for at in instants]
    return [lane.id, lane.kind, lane.scope, " ".join(lane.vms), lane.state, *told, lane.waits_for]


_FINAL_STATES = ("finished", "failed", "withdrawn")


class RequestPage(BaseView, frozen=True, kw_only=True):
    standing: RequestStatusView
    course: RequestTimeline
    is_rollout: bool
    planned: int  # events that it has still to publish
    over: int  # of its events
    done: str

    @property
    def is_ended(self) -> bool:
        return self.standing.state in _FINAL_STATES

    def svg(self) -> str:
        return self.course.svg()

    def table(self) -> ExportTable:
        return self.course.table()


async def show_request_page(context: RequestContext, call: HandlerCall, query: DoneMessageQuery) -> RequestPage:
    """A request, by its id."""
    await context.dependencies.flush_observations()
    request = context.find_request(call.path_params["id"])
    events = request_events(context, request)
    return RequestPage(
        standing=request_status(context, request),
        course=request_timeline(context, events),
        is_rollout=request.ask is RequestedOperation.ROLLOUT,
        planned=len(context.store.planned(request_id=request.id)),
        over=sum(event.status is EventState.OVER for event in events),
        done=done_message(query),
    )
