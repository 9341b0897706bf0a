"""Lists and approves events from outside the VM: one event of a VM or set, or several, all or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.explain.notification import EventNotification, notification_message
from forewarn.core.resource_ids import scope_resource_id
from forewarn.core.webhook import EventGridStatus
from forewarn.errors import NotFound, Refused
from forewarn.web.arm.rendering import JsonObject
from forewarn.web.arm.routing import (
    AVAILABILITY_SET_PATH,
    SCALE_SET_PATH,
    VM_PATH,
    ArmAuthorizer,
    ArmCall,
    ArmHandler,
    ArmResponse,
    ArmRoute,
    require_on_resource,
)
from forewarn.web.arm.targets import ArmEmptyBody, all_instances, authorize_scale_set, find_vm, parse_arm_body
from forewarn.web.arm.updates import authorize_set_and_vms
from forewarn.web.context import RequestContext
from forewarn.web.queries import event_lists_vm

_EVENTS_SEGMENT = "providers/Microsoft.Maintenance/scheduledevents"
_APPROVED_BODY = {"value": "Successfully Approved"}

ScopePredicate = Callable[[str], bool]  # whether the called resource may approve events of the scope with this id
ScopeFinder = Callable[[RequestContext, ArmCall], ScopePredicate]  # raises NotFound


class EventIdsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an approval of several events: the ids of the events, at least one."""

    value: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # full event ids, whose letter case does not matter


def _scope_of_vm(context: RequestContext, call: ArmCall) -> ScopePredicate:
    """Any VM of a scope may approve its events (spec §5.3)."""
    own = find_vm(context, call).scope_id
    return lambda scope_id: scope_id == own


def _scopes_of_scale_set(context: RequestContext, call: ArmCall) -> ScopePredicate:
    """Each of its placement groups is a scope (spec §7.1)."""
    scopes = {vm.scope_id for vm in all_instances(context, call)}
    return lambda scope_id: scope_id in scopes


def _scope_of_availability_set(context: RequestContext, call: ArmCall) -> ScopePredicate:
    """A set exists only through its present VMs: an empty set is not found, even while it has events."""
    names = call.path_params
    own = f"set:{names['subscription']}/{names['group']}/{names['set']}".casefold()
    scope = context.store.scope(own)
    if scope is None or not scope.vms:
        raise NotFound(
            f"availability set {names['set']!r} does not exist in resource group {names['group']!r}: "
            f"`az vm availability-set list -g {names['group']}` lists them"
        )
    return lambda scope_id: scope_id == own


def _approve_one_handler(find: ScopeFinder) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ArmEmptyBody)
        return await _approve(context, find(context, call), (call.path_params["event"],))

    return handler


def _approve_many_handler(find: ScopeFinder) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        return await _approve(context, find(context, call), parse_arm_body(call, EventIdsBody).value)

    return handler


async def _approve(context: RequestContext, is_own_scope: ScopePredicate, ids: tuple[str, ...]) -> ArmResponse:
    """Approves all of these events or none; those that were approved before count as approved."""
    await context.dependencies.flush_observations()
    events = {event.id: event for event in (_find_event(context, is_own_scope, event_id) for event_id in ids)}
    pending = [event for event in events.values() if event.status is EventState.SCHEDULED and event.approved_at is None]
    if pending:
        await context.control.requests.approve_all(pending, who=context.caller_name)
    await context.wait_for_reconciler()
    return ArmResponse(body=_APPROVED_BODY)


def _list_handler(find: ScopeFinder) -> ArmHandler:
    """Lists the events that VMs of the called resource see now, in the form of Azure's notifications."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        is_own_scope = find(context, call)
        live = context.store.events(statuses=(EventState.SCHEDULED, EventState.STARTED))
        listed = [event for event in live if event.listed and is_own_scope(event.scope_id)]
        if "vm" in call.path_params and (vm := find_vm(context, call)).narrow_delivery:
            listed = [event for event in listed if event_lists_vm(event, vm.name)]  # spec §14.6
        return ArmResponse(body={"value": [_event_resource(context, event) for event in listed]})

    return handler


def _event_resource(context: RequestContext, event: Event) -> JsonObject:
    """A live event as a resource below its scope's resource: id, name, type, location and properties."""
    scope = context.store.scope(event.scope_id)
    assert scope is not None, f"event {event.id} has no scope"
    vm = scope.vms[0]
    has_started = event.status is EventState.STARTED
    notification = EventNotification(
        status=EventGridStatus.STARTED if has_started else EventGridStatus.SCHEDULED,
        at=event.published_at,
        event=event,
        resource=scope_resource_id(vm),
        subscription_id=vm.subscription_id,
        location=vm.location,
    )
    resource: JsonObject = notification_message(notification).data["resourceInfo"]
    return resource


def _find_event(context: RequestContext, is_own_scope: ScopePredicate, name: str) -> Event:
    event = context.store.event(name.strip().upper()) if name.isascii() else None
    if event is None or not event.listed or not is_own_scope(event.scope_id):
        raise NotFound(f"event {name!r} is not an event of this resource: its VMs read their event ids")
    if not event.is_live and event.approved_at is None:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    return event  # also one that was approved before, so that a retry is harmless (spec §5.2)


def _event_routes(path: str, find: ScopeFinder, authorize: ArmAuthorizer = require_on_resource) -> tuple[ArmRoute, ...]:
    one_path, many_path = f"{path}/{_EVENTS_SEGMENT}/{{event}}/acknowledge", f"{path}/{_EVENTS_SEGMENT}"
    return (
        ArmRoute("GET", many_path, _list_handler(find), right=Right.READ, summary="lists the events that its VMs see"),
        ArmRoute("POST", one_path, _approve_one_handler(find), Right.APPROVE, authorize, "approves an event"),
        ArmRoute(
            "POST", many_path, _approve_many_handler(find), Right.APPROVE, authorize, "approves events, all or none"
        ),
    )


ROUTES: tuple[ArmRoute, ...] = (
    *_event_routes(VM_PATH, _scope_of_vm),
    *_event_routes(SCALE_SET_PATH, _scopes_of_scale_set, authorize_scale_set),
    *_event_routes(AVAILABILITY_SET_PATH, _scope_of_availability_set, authorize_set_and_vms),
)
