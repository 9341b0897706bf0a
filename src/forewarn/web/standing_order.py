"""Standing order handlers: show, set and remove the order to visit every host within an interval."""

from __future__ import annotations

from msgspec.structs import replace

from forewarn.base.times import Timestamp, timestamp
from forewarn.core.limits import CalendarTexts, DurationSeconds, WholeNumber
from forewarn.core.request import RolloutImpact
from forewarn.core.standing_order import StandingOrder, due_at, late_at
from forewarn.core.windows import calendar_text, make_calendar
from forewarn.errors import Rejected
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.views import BaseView

_MAX_SHOWN_HOSTS = 1_000


class NewStandingOrder(StrictBody, frozen=True, kw_only=True):
    """A standing order to set: visit every host within `within_s` seconds of lab time, again and again.

    Each visit is a rollout over one host, with this impact, notice and windows; `at_once` hosts are visited at the same
    time. Windows and blackouts limit only when events start without an approval; blackouts need a window. A notice
    below the minimum is rejected.
    """

    within_s: DurationSeconds  # lab time, from an hour to 366 days
    impact: RolloutImpact = RolloutImpact.UPDATE  # update (freezes VMs), migrate or reboot
    notice_s: DurationSeconds = 0  # the notice of its events, in lab time; 0: the minimum, 15 minutes
    at_once: WholeNumber = 1  # how many hosts at the same time, from 1 to 1,000
    windows: CalendarTexts = ()  # `sat,sun 02:00 4h Europe/Berlin`; (): any time
    blackouts: CalendarTexts = ()  # such as `2026-12-24..2026-12-26`; need windows

    def to_order(self, who: str, at: float) -> StandingOrder:
        """Return the standing order that this body describes, given by `who` at lab time `at`; sets nothing."""
        try:
            calendar = make_calendar(self.windows, self.blackouts, None)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return StandingOrder(
            within_s=self.within_s,
            impact=self.impact,
            set_by=who,
            set_at=at,
            notice_s=self.notice_s,
            calendar=calendar,
            at_once=self.at_once,
        )


class HostVisitView(BaseView, frozen=True, kw_only=True):
    """A host of a standing order, and its last visit. Times are lab time.

    Its state is late (its last visit is longer ago than the interval, even if one is in progress), in progress, due,
    failed (no visit has succeeded, and the next try is not due yet), or visited (and not due, even if a later visit
    failed).
    Only visits with the order's impact that succeeded count.
    """

    host: str  # its name
    state: str  # late, in progress, due, failed or visited
    visited_at: (
        Timestamp | None
    )  # when the last visit with the order's impact that succeeded ended; None: there was none
    due_at: Timestamp  # when it is to be visited next
    rollout: str  # the id of the visit in progress, also of a paused one; "": none is
    problem: str  # why the last visit did not succeed; "": it did, is in progress, or there was none


class StandingOrderView(BaseView, frozen=True, kw_only=True):
    """The standing order and its progress; `is_set` is false, and the rest empty, if there is none."""

    is_set: bool  # False: there is no order
    within_s: float = 0  # lab time within which each host is visited
    impact: str = ""  # update, migrate or reboot
    notice_s: float = 0  # the notice of its events, in lab time
    windows: str = ""  # when its events may start without an approval, for people; "": at any time
    at_once: int = 0  # how many hosts are visited at a time
    set_by: str = ""  # the name of who set it
    set_at: Timestamp | None = None
    total: int = 0  # hosts of the fleet
    visited: int = 0  # hosts whose last visit with its impact is not longer ago than the interval
    late: int = 0  # hosts that are late
    hosts: tuple[HostVisitView, ...] = ()  # those that wait longest first; at most 1,000
    in_progress: int = 0  # hosts with a visit in progress, also a paused one
    problems: int = 0  # hosts whose last visit did not succeed
    warning: str = ""  # why not all hosts can be visited in time, with numbers; "": they can

    def without_hosts(self) -> StandingOrderView:
        """Return a copy of this view with no `hosts`; the counts stay."""
        return replace(self, hosts=())


def read_standing_order(context: RequestContext) -> StandingOrderView:
    """Return the standing order and its progress now; `is_set` is False if there is no order."""
    order = context.control.standing_order.order
    if order is None:
        return StandingOrderView(is_set=False)
    now, names = context.now(), [host.name for host in context.store.hosts()]
    names.sort(key=lambda name: (late_at(order, name), due_at(order, name)))
    return StandingOrderView(
        is_set=True,
        within_s=order.within_s,
        impact=order.impact,
        notice_s=order.notice_s,
        windows=calendar_text(order.calendar) if order.calendar else "",
        at_once=order.at_once,
        set_by=order.set_by,
        set_at=timestamp(order.set_at),
        total=len(names),
        visited=sum(order.visited_at(name) is not None and late_at(order, name) > now for name in names),
        late=sum(late_at(order, name) <= now for name in names),
        hosts=tuple(_visit_view(order, name, now) for name in names[:_MAX_SHOWN_HOSTS]),
        in_progress=sum(bool(order.visit(name).request_id) for name in names),
        problems=sum(bool(order.visit(name).problem) for name in names),
        warning=context.control.standing_order.warning(),
    )


def _visit_view(order: StandingOrder, host: str, now: float) -> HostVisitView:
    visit = order.visit(host)
    if late_at(order, host) <= now:
        state = "late"
    elif visit.request_id:
        state = "in progress"
    elif due_at(order, host) <= now:
        state = "due"
    else:
        state = "failed" if order.visited_at(host) is None else "visited"
    return HostVisitView(
        host=host,
        state=state,
        visited_at=timestamp(order.visited_at(host)),
        due_at=timestamp(due_at(order, host)),
        rollout=visit.request_id,
        problem=visit.problem,
    )


async def show_standing_order(context: RequestContext, call: HandlerCall) -> StandingOrderView:
    """Show the standing order, its progress, and which hosts are late."""
    return read_standing_order(context)


async def set_standing_order(context: RequestContext, call: HandlerCall, body: NewStandingOrder) -> StandingOrderView:
    """Set the standing order: visit every host within an interval, the longest wait first."""
    await context.control.standing_order.set_order(body.to_order(context.caller_name, context.now()))
    await context.wait_for_reconciler()
    return read_standing_order(context)


async def remove_standing_order(context: RequestContext, call: HandlerCall) -> StandingOrderView:
    """Remove the standing order; visits that are in progress go on."""
    await context.control.standing_order.remove_order(who=context.caller_name)
    return read_standing_order(context)
