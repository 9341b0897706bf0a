"""Standing order handlers: show, set and remove the order to visit every host within an interval."""

from __future__ import annotations

from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall
from forewarn.web.standing_order_views import NewStandingOrder, StandingOrderView, read_standing_order


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
