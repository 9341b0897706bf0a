"""The page of the standing order: its progress, which hosts are late, and why visits failed."""

from __future__ import annotations

from forewarn.base.duration import format_duration
from forewarn.core.windows import blackout_text, window_text
from forewarn.web.context import RequestContext
from forewarn.web.portal.export import ExportTable
from forewarn.web.portal.filters import PageNumber, items_on_page
from forewarn.web.portal.form_catalog import DoneMessageQuery, done_message
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.standing_order import HostVisitView, StandingOrderView, read_standing_order
from forewarn.web.views import BaseView

_HOSTS_PER_PAGE = 20


class StandingOrderPageQuery(DoneMessageQuery, frozen=True, kw_only=True):
    """The query of the page of the standing order: the form that led here, and the page of its hosts."""

    page: PageNumber = 1  # from 1


class StandingOrderPage(BaseView, frozen=True, kw_only=True):
    """The page of the standing order. Field names are JSON keys; times are lab time."""

    order: StandingOrderView  # without its hosts
    hosts: tuple[HostVisitView, ...]  # those that are late first: 20 per page, in an export all, at most 1,000
    page: int  # its number, from 1
    pages: int  # how many there are; an export is one
    values: dict[str, str]  # texts that the form that changes the order is filled in with; {}: there is no order
    done: str  # the done message of the form that led here; "": none

    @property
    def progress_text(self) -> str:
        """How far the standing order is, such as `3 of 6 hosts visited in time, 1 late, 2 visits in progress`."""
        order = self.order
        parts = [
            f"{order.visited} of {order.total} host{'' if order.total == 1 else 's'} visited in time",
            *([f"{order.late} late"] if order.late else []),
            *(
                [f"{order.in_progress} visit{'' if order.in_progress == 1 else 's'} in progress"]
                if order.in_progress
                else []
            ),
        ]
        return ", ".join(parts)

    def table(self) -> ExportTable:
        """Return the CSV export: one row per host of `hosts`; the columns are the fields of HostVisitView."""
        columns = HostVisitView.__struct_fields__
        return ExportTable(columns=columns, rows=[[getattr(visit, name) for name in columns] for visit in self.hosts])


async def show_standing_order_page(
    context: RequestContext, call: HandlerCall, query: StandingOrderPageQuery
) -> StandingOrderPage:
    """Show the standing order and a page of its hosts, 20 per page, those that wait longest first."""
    view = read_standing_order(context)
    hosts, pages = (view.hosts, 1) if call.for_export else items_on_page(view.hosts, query.page, _HOSTS_PER_PAGE)
    return StandingOrderPage(
        order=view.without_hosts(),
        hosts=tuple(hosts),
        page=query.page,
        pages=pages,
        values=_form_values(context),
        done=done_message(query),
    )


def _form_values(context: RequestContext) -> dict[str, str]:
    order = context.control.standing_order.order
    if order is None:
        return {}
    values = {
        "within": format_duration(order.within_s, units=4),
        "impact": str(order.impact),
        "at_once": str(order.at_once),
    }
    if order.notice_s:
        values["notice"] = format_duration(order.notice_s, units=4)
    if order.calendar is not None:
        values["windows"] = "; ".join(map(window_text, order.calendar.windows))
        values["blackouts"] = "; ".join(map(blackout_text, order.calendar.blackouts))
    return {name: value for name, value in values.items() if value}
