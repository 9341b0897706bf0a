"""Approves events from outside the VM: one event of a VM or set, or several at once, all or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from forewarn.arm.routing import (
    AVAILABILITY_SET_PATH,
    SCALE_SET_PATH,
    VM_PATH,
    ArmCall,
    ArmHandler,
    ArmResponse,
    ArmRoute,
)
from forewarn.arm.targets import ArmEmptyBody, all_instances, find_vm, parse_arm_body
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.errors import NotFound, Refused
from forewarn.web.context import RequestContext

_EVENTS_SEGMENT = "providers/Microsoft.Maintenance/scheduledevents"
_APPROVED_BODY = {"value": "Successfully Approved"}

ScopePredicate = Callable[[str], bool]  # whether the called resource may approve events of the scope with this id
ScopeFinder = Callable[[RequestContext, ArmCall], ScopePredicate]  # raises NotFound


class EventIdsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an approval of several events: the ids of the events, at least one."""

    value: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]  # full event ids, in any case


def _scope_of_vm(context: RequestContext, call: ArmCall) -> ScopePredicate:
    """Any VM of a scope may approve its events (spec §5.3)."""
    own = find_vm(context, call).scope_id
    return lambda scope_id: scope_id == own


def _scopes_of_scale_set(context: RequestContext, call: ArmCall) -> ScopePredicate:
    """Each of its placement groups is a scope (spec §7.1)."""
    scopes = {vm.scope_id for vm in all_instances(context, call)}
    return lambda scope_id: scope_id in scopes


def _scope_of_availability_set(context: RequestContext, call: ArmCall) -> ScopePredicate:
    names = call.path_params
    own = f"set:{names['subscription']}/{names['group']}/{names['set']}".casefold()
    if context.store.scope(own) is None:
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


def _find_event(context: RequestContext, is_own_scope: ScopePredicate, name: str) -> Event:
    event = context.store.event(name.strip().upper()) if name.isascii() else None
    if event is None or not event.listed or not is_own_scope(event.scope_id):
        raise NotFound(f"event {name!r} is not an event of this resource: its VMs read their event ids")
    if not event.is_live and event.approved_at is None:
        raise Refused(f"event {event.id} is over ({event.ending}): there is nothing to approve")
    return event  # also one that was approved before, so that a retry is harmless (spec §5.2)


def _approval_routes(path: str, find: ScopeFinder) -> tuple[ArmRoute, ArmRoute]:
    one_path, many_path = f"{path}/{_EVENTS_SEGMENT}/{{event}}/acknowledge", f"{path}/{_EVENTS_SEGMENT}"
    return (
        ArmRoute("POST", one_path, _approve_one_handler(find), right=Right.APPROVE, summary="approves an event"),
        ArmRoute(
            "POST", many_path, _approve_many_handler(find), right=Right.APPROVE, summary="approves events, all or none"
        ),
    )


ROUTES: tuple[ArmRoute, ...] = (
    *_approval_routes(VM_PATH, _scope_of_vm),
    *_approval_routes(SCALE_SET_PATH, _scopes_of_scale_set),
    *_approval_routes(AVAILABILITY_SET_PATH, _scope_of_availability_set),
)
