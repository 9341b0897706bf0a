"""The page of one request: its state, what it waits for, and its events over time.

`RequestTimeline` is shared with the rollout page.
"""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.request import RequestedOperation
from forewarn.core.request_state import RequestState
from forewarn.portal.export import ExportTable
from forewarn.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.portal.timeline_chart import (
    EventRow,
    TimelineChart,
    build_chart,
    event_row_for,
    format_iso,
    render_standalone_svg,
    window_for_rows,
)
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.request_views import request_events, request_status
from forewarn.web.routing import named_event
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import BaseView, RequestStatusView

_MAX_EVENTS = 100
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
    """The events of a request or rollout over time. Field names are JSON keys."""

    now: float  # lab time
    lanes: tuple[EventRow, ...]  # live events first, then past ones, each newest first
    more: int  # visible events that are left out
    approvable: tuple[str, ...]  # ids of those in `lanes` that await approval, and that the user may approve

    def chart(self) -> TimelineChart:
        """The chart that the page shows: the events of `lanes` over time, in a window that shows all of them."""
        return build_chart(self.lanes, window_for_rows(self.lanes, self.now), self.now)

    def svg(self) -> str:
        """The text of the SVG export: the chart, with a note of how many events are left out."""
        return render_standalone_svg(self.chart(), more=self.more)

    def table(self) -> ExportTable:
        """The CSV export, with one row per event of `lanes`: its id, kind, scope, VMs, state, times and wait.

        Times are lab time in ISO 8601. It does not say that events are left out (`more`).
        """
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(row) for row in self.lanes])


def request_timeline(context: RequestContext, events: Sequence[Event]) -> RequestTimeline:
    """The timeline of those of these events that the user may see; at most 100, live ones first.

    Both live and past ones are newest first.
    """
    visible = [event for event in events if context.can_see_scope(event.scope_id)]
    ordered = sorted(visible, key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    views = ViewBuilder(context)
    shown = ordered[:_MAX_EVENTS]
    return RequestTimeline(
        now=context.now(),
        lanes=tuple(event_row_for(views, event) for event in shown),
        more=len(ordered) - len(shown),
        approvable=tuple(event.id for event in shown if _may_approve(context, event)),
    )


def _may_approve(context: RequestContext, event: Event) -> bool:
    if event.status is not EventState.SCHEDULED or event.approved_at is not None:
        return False
    return context.principal.may_all(Right.APPROVE, named_event(context, HandlerCall(path_params={"id": event.id})))


def _csv_row(row: EventRow) -> list[object]:
    instants = (row.published_at, row.not_before, row.started_at, row.over_at)
    times = [None if at is None else format_iso(at) for at in instants]
    return [row.id, row.kind, row.scope, " ".join(row.vms), row.state, *times, row.waits_for]


class RequestPage(BaseView, frozen=True, kw_only=True):
    """The page of one request. Field names are JSON keys."""

    standing: RequestStatusView  # the request with its state and what it waits for
    course: RequestTimeline  # its events over time
    is_rollout: bool
    planned: int  # events that are not published yet
    over: int  # events that have ended, also those that the user may not see
    done: str  # the done message of the form that led here; "": none

    @property
    def is_ended(self) -> bool:
        """Whether the request is over: succeeded, failed or canceled."""
        return self.standing.state != RequestState.IN_PROGRESS

    def svg(self) -> str:
        """The text of the SVG export: the request's events (`course`) over time, at most 100 of them."""
        return self.course.svg()

    def table(self) -> ExportTable:
        """The CSV export, with one row per event of `course`, at most 100; times are lab time in ISO 8601."""
        return self.course.table()


async def show_request_page(context: RequestContext, call: HandlerCall, query: DoneMessageQuery) -> RequestPage:
    """Shows a request, also a rollout, by its full id. Raises NotFound, also if the user may not see it.

    First stores the polls and deliveries observed so far.
    """
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
