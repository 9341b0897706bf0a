"""The page of one request: its state, what it waits for, and its events over time.

`RequestTimeline` is shared with the rollout page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forewarn.base.times import Timestamp, timestamp
from forewarn.base.wording import first_names
from forewarn.core.event import Event, EventState
from forewarn.core.request import RequestedOperation
from forewarn.core.request_state import RequestState
from forewarn.protocol.dates import iso_date
from forewarn.web.context import RequestContext
from forewarn.web.portal.context import PORTAL_PREFIX
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import PageNumber, items_on_page
from forewarn.web.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.web.portal.status_card import EventStatusCard, may_approve_event, next_event_card
from forewarn.web.portal.timeline_chart import (
    EventRow,
    TimelineChart,
    build_chart,
    event_row_for,
    render_standalone_svg,
    window_for_rows,
)
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.requests import request_events, request_status
from forewarn.web.views import BaseView, RequestStatusView, ViewBuilder

MAX_EXPORTED_EVENTS = 100
EVENTS_PER_PAGE = 15
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


class RequestPageQuery(DoneMessageQuery, frozen=True, kw_only=True):
    """The query of the page of a request: the form that led here, and which page of its events to show."""

    page: PageNumber = 1  # from 1


class RequestTimeline(BaseView, frozen=True, kw_only=True):
    """One page of the events of a request or rollout, over time. Field names are JSON keys."""

    now: Timestamp
    lanes: tuple[EventRow, ...]  # live events first, then past ones, each newest first
    more: int  # visible events that are not in `lanes`, such as those on other pages
    approvable: tuple[str, ...]  # ids of those in `lanes` that await approval, and that the user may approve
    page: int  # its number, from 1
    pages: int  # how many there are

    def chart(self) -> TimelineChart:
        """Return the chart of the events of `lanes` over time, in a window that shows all of them."""
        return build_chart(self.lanes, window_for_rows(self.lanes, self.now), self.now)

    def svg(self) -> str:
        """Return the text of the SVG export: the chart, with a note of how many events are left out."""
        return render_standalone_svg(self.chart(), more=self.more)

    def table(self) -> ExportTable:
        """Return the CSV export: one row per event of `lanes`."""
        return ExportTable(columns=_CSV_COLUMNS, rows=[_csv_row(row) for row in self.lanes])


def request_timeline(
    context: RequestContext, events: Sequence[Event], *, page: int = 1, size: int = EVENTS_PER_PAGE
) -> RequestTimeline:
    """Return one page of the timeline of these events: `size` of those that the user may see."""
    visible = [event for event in events if context.can_see_scope(event.scope_id)]
    ordered = sorted(visible, key=lambda event: (event.is_live, event.published_at, event.seq), reverse=True)
    views = ViewBuilder(context)
    shown, pages = items_on_page(ordered, page, size)
    return RequestTimeline(
        now=timestamp(context.now()),
        lanes=tuple(event_row_for(views, event) for event in shown),
        more=len(ordered) - len(shown),
        approvable=tuple(event.id for event in shown if may_approve_event(context, event)),
        page=page,
        pages=pages,
    )


def _csv_row(row: EventRow) -> list[object]:
    instants = (row.published_at, row.not_before, row.started_at, row.over_at)
    times = [None if at is None else iso_date(at) for at in instants]
    return [row.id, row.kind, row.scope, " ".join(row.vms), row.state, *times, row.waits_for]


class RequestPage(BaseView, frozen=True, kw_only=True):
    """The page of one request, which may be a rollout. Field names are JSON keys."""

    card: EventStatusCard | None  # its live event that matters next; None: none is live
    standing: RequestStatusView  # the request with its state and what it waits for
    course: RequestTimeline  # its events over time, 15 per page; in an export the first 100
    is_rollout: bool  # the request is a rollout; False: another operation
    planned: int  # events that are not published yet
    over: int  # events that have ended, also those that the user may not see
    done: str  # the done message of the form that led here; "": none

    @property
    def target_text(self) -> str:
        """The names of the request's targets: all of up to four, else the first three and `and 17 more`."""
        return first_names(self.standing.request.targets)

    @property
    def waits(self) -> tuple[str, ...]:
        """What the request's events wait for, in their order; equal waits are counted in one text."""
        counts = Counter(wait.partition(": ")[2] for wait in self.standing.waits_for)
        first = {wait.partition(": ")[2]: wait for wait in reversed(self.standing.waits_for)}
        return tuple(first[text] if count == 1 else f"{count} events: {text}" for text, count in counts.items())

    @property
    def is_ended(self) -> bool:
        """Whether the request is over: succeeded, failed or canceled."""
        return self.standing.state != RequestState.IN_PROGRESS

    def svg(self) -> str:
        """Return the text of the SVG export: the events of `course` over time, and how many are left out."""
        return self.course.svg()

    def table(self) -> ExportTable:
        """Return the CSV export: one row per event of `course`, at most 100."""
        return self.course.table()


def request_page_path(context: RequestContext, request_id: str) -> str:
    request = context.store.request(request_id)
    if request is None or not context.visibility.can_see_request(request):
        return ""
    return f"{PORTAL_PREFIX}/{'rollouts' if request.rollout is not None else 'requests'}/{request.id}"


async def show_request_page(context: RequestContext, call: HandlerCall, query: RequestPageQuery) -> RequestPage:
    """Show a request, which may be a rollout, with its state and its events over time."""
    await context.dependencies.flush_observations()
    request = context.find_request(call.path_params["id"])
    events = request_events(context, request)
    size = MAX_EXPORTED_EVENTS if call.for_export else EVENTS_PER_PAGE
    return RequestPage(
        card=next_event_card(context, (event for event in events if context.can_see_scope(event.scope_id))),
        standing=request_status(context, request),
        course=request_timeline(context, events, page=query.page, size=size),
        is_rollout=request.operation is RequestedOperation.ROLLOUT,
        planned=len(context.store.planned(request_id=request.id)),
        over=sum(event.status is EventState.OVER for event in events),
        done=done_message(query),
    )
