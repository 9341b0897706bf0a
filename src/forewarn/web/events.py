"""Event handlers: list, show, approve and withdraw."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

from msgspec import Meta

from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.lifecycle import awaits_approval
from forewarn.core.limits import Name, NonEmptyText, ResultLimit
from forewarn.errors import Conflict, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.errors import classify_error, surface_of
from forewarn.web.queries import event_lists_vm, events_on_host
from forewarn.web.request_parsing import HandlerCall, StrictBody
from forewarn.web.routing import named_event
from forewarn.web.views import BaseView, EventsInScopesView, EventsView, EventView, ViewBuilder

_SCAN_LIMIT = 20_000  # events read for a caller who may not see all of them
_MAX_SELECTED = 100_000  # events that one call approves or withdraws


class WithdrawEventBody(StrictBody, frozen=True, kw_only=True):
    """Why an event is withdrawn, for people; may be empty."""

    reason: Annotated[str, Meta(max_length=1000)] = ""  # "": the history then says who withdrew it


class SelectedEventsBody(StrictBody, frozen=True, kw_only=True):
    """Events given by ids, or scheduled events that match every given name (of a VM, host or rollout).

    Give exactly one of the two: `ids`, or at least one name. The letter case of names and ids is ignored; an id may be
    a unique start of four characters or more.
    """

    ids: Annotated[tuple[NonEmptyText, ...], Meta(max_length=10_000)] = ()  # each counts once
    vm: Name = ""  # a name, `group/name` or key, present or removed; "": any, as for the two below
    host: Name = ""  # a name: events of work on the host, and scheduled events of the VMs that are on it now
    rollout: Name = ""  # an id or unique id prefix; unknown to callers who do not see everything


class WithdrawEventsBody(SelectedEventsBody, frozen=True, kw_only=True):
    """The events to withdraw, by ids or by names of a VM, host or rollout, and why.

    The fields of SelectedEventsBody select the events.
    """

    reason: Annotated[str, Meta(max_length=1000)] = ""  # "": the history then says who withdrew them


class RefusedEventView(BaseView, frozen=True, kw_only=True):
    """An event that could not be approved or withdrawn, with the error."""

    event: str  # the id or prefix that the caller gave, or the id of a selected event
    code: str  # as in an error response, such as NotFound
    message: str  # for people


class ChangedEventsView(EventsInScopesView, frozen=True, kw_only=True):
    """Events that a call approved or withdrew, with their scopes, and those that it could not change.

    `events` shows each event after the reconciler has done what is due, so an approved one may have started. `events`
    and `refused` are in the order of the ids that the caller gave, or oldest first if it gave names.
    """

    refused: tuple[RefusedEventView, ...]  # those that could not be changed, with why


class EventListQuery(StrictBody, frozen=True, kw_only=True):
    """Which events to list: those that match every given filter, at most the `limit` newest.

    Without `all`, only live events are listed: scheduled and started ones. The letter case of names and ids is ignored.
    """

    all: bool = False  # past events too
    vm: Name = ""  # a name, `group/name` or key, present or removed; "": any, as for the three below
    scope: Name = ""  # an id or name, or the name of a VM in it
    host: Name = ""  # a name: events of work on the host or from or to it, and scheduled events of the VMs on it now
    rollout: Name = ""  # an id or unique id prefix; unknown to callers who do not see everything
    limit: ResultLimit = 1000  # from 1 to 1,000,000


async def list_events(context: RequestContext, call: HandlerCall, query: EventListQuery) -> EventsView:
    """List the live events, or all of them."""
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
    """Show one event, by its id or the start of it."""
    await context.dependencies.flush_observations()
    return ViewBuilder(context).event(context.find_event(call.path_params["id"]))


async def approve_event(context: RequestContext, call: HandlerCall) -> EventView:
    """Approve an event, so that it may start before its notice ends."""
    event = context.find_event(call.path_params["id"])
    await context.dependencies.flush_observations()
    await context.control.requests.approve(event.id, who=context.caller_name)
    await context.wait_for_reconciler()
    return ViewBuilder(context).event(context.find_event(event.id))


async def approve_events(context: RequestContext, call: HandlerCall, body: SelectedEventsBody) -> ChangedEventsView:
    """Approve several events, by their ids or all of a VM, host or rollout."""
    ids = _selected_ids(context, body, awaits_approval)

    async def approve(event_id: str) -> Event:
        for resource in named_event(context, HandlerCall(path_params={"id": event_id})):
            context.require(Right.APPROVE, resource)
        event = context.find_event(event_id)
        return await context.control.requests.approve(event.id, who=context.caller_name)

    return await _change_each(context, call, ids, approve)


async def withdraw_events(context: RequestContext, call: HandlerCall, body: WithdrawEventsBody) -> ChangedEventsView:
    """Withdraw several events before they start, by their ids or all of a VM, host or rollout."""
    ids = _selected_ids(context, body, lambda event: True)

    async def withdraw(event_id: str) -> Event:
        event = context.find_event(event_id)
        return await context.control.requests.withdraw(event.id, who=context.caller_name, reason=body.reason)

    return await _change_each(context, call, ids, withdraw)


def _selected_ids(
    context: RequestContext, body: SelectedEventsBody, is_wanted: Callable[[Event], bool]
) -> tuple[str, ...]:
    """The ids as the caller gave them, each once, or those of the scheduled events that match the names."""
    if bool(body.ids) == bool(body.vm or body.host or body.rollout):
        raise Rejected("events are selected by their ids, or by a VM, a host or a rollout: give one of the two")
    if body.ids:
        return tuple(dict.fromkeys(body.ids))
    query = EventListQuery(vm=body.vm, host=body.host, rollout=body.rollout, limit=_MAX_SELECTED)
    found = _matching_events(context, query)
    return tuple(event.id for event in found if event.status is EventState.SCHEDULED and is_wanted(event))


async def _change_each(
    context: RequestContext, call: HandlerCall, ids: Iterable[str], change: Callable[[str], Awaitable[Event]]
) -> ChangedEventsView:
    """Changes each event, even if one before it was refused, and shows them after due work was done."""
    await context.dependencies.flush_observations()
    changed: list[str] = []
    refused: list[RefusedEventView] = []
    for event_id in ids:
        try:
            changed.append((await change(event_id)).id)
        except (Rejected, Conflict) as error:
            _, code, message = classify_error(error, surface_of(call.surface_header))
            refused.append(RefusedEventView(event=event_id, code=code, message=message))
    await context.wait_for_reconciler()
    events, view_builder = [context.find_event(event_id) for event_id in changed], ViewBuilder(context)
    return ChangedEventsView(
        events=view_builder.events(events), scopes=view_builder.scopes_of(events), refused=tuple(refused)
    )


async def withdraw_event(context: RequestContext, call: HandlerCall, body: WithdrawEventBody) -> EventView:
    """Withdraw an event before it starts."""
    event = context.find_event(call.path_params["id"])
    await context.dependencies.flush_observations()
    await context.control.requests.withdraw(event.id, who=context.caller_name, reason=body.reason)
    await context.wait_for_reconciler()
    return ViewBuilder(context).event(context.find_event(event.id))
