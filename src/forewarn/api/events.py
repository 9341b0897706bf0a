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

_SCAN_LIMIT = 20_000  # events read for a caller who may not see all of them


class WithdrawEventBody(StrictBody, frozen=True, kw_only=True):
    """Why an event is withdrawn, for people; may be empty."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class EventListQuery(StrictBody, frozen=True, kw_only=True):
    """Which events to list: those that match every given filter, of more than `limit` the newest.

    Without `all`, only live ones. `host` means events of work on the host, and events of the VMs that are on it now.
    """

    all: bool = False  # past events too
    vm: str = ""
    scope: str = ""
    host: str = ""  # events of work on the host, and events of the VMs on it
    rollout: str = ""
    limit: ResultLimit = 1000


async def list_events(context: RequestContext, call: HandlerCall, query: EventListQuery) -> EventsView:
    """List the live events, or all of them.

    Only those that the caller may see, oldest first. For a caller who does not see everything, a list without a VM or
    host searches the 20,000 newest. Raises NotFound or Refused for a name in the query.
    """
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
    is_filtered_later = vm is not None or host is not None
    scan_limit = query.limit if context.can_see_everything() else max(query.limit, _SCAN_LIMIT)
    events = context.store.events(
        scope_id=vm.scope_id if vm is not None else scope_id,
        request_id=request_id,
        statuses=statuses,
        limit=None if is_filtered_later else scan_limit,
    )
    events = [event for event in events if context.can_see_scope(event.scope_id)]
    if vm is not None:
        events = [event for event in events if event_lists_vm(event, vm.name)]
    if host is not None:
        events = events_on_host(context, host, events)
    return events[-query.limit :]


async def show_event(context: RequestContext, call: HandlerCall) -> EventView:
    """Show one event, by its id or the start of it.

    Live or over. Raises NotFound, or Refused if several ids start so.
    """
    await context.dependencies.flush_observations()
    return ViewBuilder(context).event(context.find_event(call.path_params["id"]))


async def approve_event(context: RequestContext, call: HandlerCall) -> EventView:
    """Approve an event, so that it may start before its notice ends.

    Returns the event after due work was done, so it may have started. Harmless if it was approved or started before.
    Raises NotFound, or Refused if it is over.
    """
    event = context.find_event(call.path_params["id"])
    await context.dependencies.flush_observations()
    await context.control.requests.approve(event.id, who=context.caller_name)
    await context.run_due_work()
    return ViewBuilder(context).event(context.find_event(event.id))


async def withdraw_event(context: RequestContext, call: HandlerCall, body: WithdrawEventBody) -> EventView:
    """Withdraw an event before it starts.

    Raises NotFound, or Refused if it has started or is over.
    """
    event = context.find_event(call.path_params["id"])
    await context.dependencies.flush_observations()
    await context.control.requests.withdraw(event.id, who=context.caller_name, reason=body.reason)
    await context.run_due_work()
    return ViewBuilder(context).event(context.find_event(event.id))
