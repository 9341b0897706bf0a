"""Standing order handlers: show, set and remove the order to visit every host within an interval."""

from __future__ import annotations

from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.standing_order_views import NewStandingOrder, StandingOrderView, read_standing_order


async def show_standing_order(context: RequestContext, call: HandlerCall) -> StandingOrderView:
    """Show the standing order, its progress, and which hosts are late.

    Hosts are sorted by when they are late, then by when they are due; the first 1,000 are shown. `is_set` is false if
    there is no order.
    """
    return read_standing_order(context)


async def set_standing_order(context: RequestContext, call: HandlerCall, body: NewStandingOrder) -> StandingOrderView:
    """Set the standing order: visit every host within an interval, the longest wait first.

    The new order replaces the present one. Visits so far still count, except for those with another impact; visits
    under way with another impact, notice or windows end and begin again. Returns the order with its progress. Raises
    Rejected unless the interval is an hour to 366 days and the number of hosts 1 to 1,000, for too short a notice, and
    for wrong windows or blackouts without a window; Refused if the fleet has no host or the hypervisor cannot do it; or
    Unavailable if the store cannot be written. The history gets an entry.
    """
    await context.control.standing_order.set_order(body.to_order(context.caller_name, context.now()))
    await context.wait_for_reconciler()
    return read_standing_order(context)


async def remove_standing_order(context: RequestContext, call: HandlerCall) -> StandingOrderView:
    """Remove the standing order; visits that are under way go on.

    Returns a view whose `is_set` is false. Raises Refused if there is no order, or Unavailable if the store cannot be
    written. The history gets an entry.
    """
    await context.control.standing_order.remove_order(who=context.caller_name)
    return read_standing_order(context)
