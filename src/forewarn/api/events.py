"""Event handlers: list, show, approve and withdraw."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forewarn.core.event import Event, EventState
from forewarn.web.context import RequestContext
from forewarn.web.queries import event_lists_vm, events_on_host
from forewarn.web.request_parsing import HandlerCall, ResultLimit, StrictBody
from forewarn.web.view_builder import ViewBuilder
from forewarn.web.views import EventsView, EventView


class WithdrawEventBody(StrictBody, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class EventListQuery(StrictBody, frozen=True, kw_only=True):
    """Those that every given member fits."""

    all: bool = False
    vm: str = ""
    scope: str = ""
    host: str = ""  # the work is on it, or a VM that it hits is
    rollout: str = ""
    limit: ResultLimit = 1000


_SCAN_LIMIT = 20_000  # events, for somebody who may not see all of them


async def list_events(context: RequestContext, call: HandlerCall, query: EventListQuery) -> EventsView:
    """The events under way, or all of them."""
    seq = context.store.last_seq()
    return EventsView(events=ViewBuilder(context).events(_matching_events(context, query)), seq=seq)


def _matching_events(context: RequestContext, query: EventListQuery) -> list[Event]:
    statuses = tuple(EventState) if query.all else (EventState.SCHEDULED, EventState.STARTED)
    vm = context.directory.find_any(query.vm) if query.vm else None
    scope_id = context.find_scope(query.scope).id if query.scope else None
    request_id = context.find_rollout(query.rollout).id if query.rollout else None
    host = context.find_host(query.host).name if query.host else None

    if vm is not None and scope_id not in (None, vm.scope_id):
        return []
    within = vm.scope_id if vm is not None else scope_id
    picky = vm is not None or host is not None
    looked_through = query.limit if context.can_see_everything() else max(query.limit, _SCAN_LIMIT)
    events = context.store.events(
        scope_id=within, request_id=request_id, statuses=statuses, limit=None if picky else looked_through
    )
    events = [event for event in events if context.can_see_scope(event.scope_id)]
    if vm is not None:
        events = [event for event in events if event_lists_vm(event, vm.name)]
    if host is not None:
        events = events_on_host(context, host, events)
    return events[-query.limit :]


async def show_event(context: RequestContext, call: HandlerCall) -> EventView:
    """One event, by its id or the beginning of it."""
    await context.dependencies.flush_observations()
    return ViewBuilder(context).event(context.find_event(call.path_params["id"]))


async def approve_event(context: RequestContext, call: HandlerCall) -> EventView:
    """Say that an event may start."""
    event = context.find_event(call.path_params["id"])
    await context.dependencies.flush_observations()
    await context.control.requests.approve(event.id, who=context.caller_name)
    await context.run_due_work()
    return ViewBuilder(context).event(context.find_event(event.id))


async def withdraw_event(context: RequestContext, call: HandlerCall, body: WithdrawEventBody) -> EventView:
    """Take an event back before it starts."""
    event = context.find_event(call.path_params["id"])
    await context.dependencies.flush_observations()
    await context.control.requests.withdraw(event.id, who=context.caller_name, reason=body.reason)
    await context.run_due_work()
    return ViewBuilder(context).event(context.find_event(event.id))
