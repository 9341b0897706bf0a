"""Pending updates of VMs and sets, starting them now, and canceling runs of configurations.

A pending update is a published event of planned platform maintenance that is not over. Applying updates approves these
events, as `performMaintenance` does; the apply update is the request that did it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from forewarn.control.directory import natural_sort_key
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.maintenance_configuration import MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest
from forewarn.core.request_state import RequestState
from forewarn.core.resource_ids import vm_resource_id
from forewarn.core.windows import opening_at, openings
from forewarn.errors import NotFound, Refused, Rejected
from forewarn.protocol.dates import iso_date
from forewarn.protocol.document import Kind
from forewarn.web.arm.maintenance_configurations import CONFIGURATION_PATH
from forewarn.web.arm.operations import once
from forewarn.web.arm.rendering import JsonObject
from forewarn.web.arm.resources import paged_response
from forewarn.web.arm.routing import (
    GROUP_PATH,
    INSTANCE_PATH,
    MAINTENANCE_PROVIDER,
    SCALE_SET_PATH,
    SUBSCRIPTION_PATH,
    VM_PATH,
    ArmAuthorizer,
    ArmCall,
    ArmHandler,
    ArmResponse,
    ArmRoute,
    allow_listing,
    require_on_resource,
)
from forewarn.web.arm.targets import all_instances, authorize_scale_set, find_instance, find_vm, parse_arm_body
from forewarn.web.context import RequestContext
from forewarn.web.requests import read_request_status

_UPDATES = f"{MAINTENANCE_PROVIDER}/updates"
_APPLY_UPDATES = f"{MAINTENANCE_PROVIDER}/applyUpdates"
_APPLY_UPDATE_TYPE = "Microsoft.Maintenance/applyUpdates"
_DEFAULT_NAME = "default"  # Azure's clients apply updates under this name; the service gives the result another one
_IMPACT_TYPES = {Kind.FREEZE: "Freeze", Kind.REBOOT: "Restart", Kind.REDEPLOY: "Redeploy"}
_STATUS_BY_STATE = {
    RequestState.SUCCEEDED: "Completed",
    RequestState.FAILED: "RetryLater",
    RequestState.CANCELED: "Cancelled",
}
_RUN_NAME = "%Y%m%d%H%M%S"
_LATEST_RUN = datetime(9000, 1, 1, tzinfo=UTC).timestamp()  # windows do not open later
_MAX_REQUESTS = 10_000  # newest requests among which apply updates are found

VmsFinder = Callable[[RequestContext, ArmCall], Sequence[Vm]]  # raises NotFound


class ApplyUpdatePropertiesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The member `properties` of an apply update; only `status` `Cancel` has a meaning in a call."""

    status: str | None = None  # "Cancel", ignoring letter case; another text counts as None
    resource_id: Any = None  # accepted, without effect
    last_update_time: Any = None  # accepted, without effect


class ApplyUpdateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a call that applies updates of a VM or set, or that cancels a run of a configuration."""

    id: Any = None  # this and the next three are accepted, without effect
    name: Any = None
    type: Any = None
    system_data: Any = None
    properties: ApplyUpdatePropertiesBody | None = None  # of which only `status` matters

    @property
    def is_cancel(self) -> bool:
        """Whether the call asks for a cancellation: `properties.status` is Cancel, ignoring letter case."""
        return self.properties is not None and (self.properties.status or "").casefold() == "cancel"


def _list_updates_handler(find: VmsFinder) -> ArmHandler:
    """Lists the pending updates of the VMs of the path's resource, in order of publication."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        found = [_update_json(event, vm) for vm in find(context, call) for event in _pending_events(context, vm)]
        return ArmResponse(body={"value": found})

    return handler


def _pending_events(context: RequestContext, vm: Vm) -> list[Event]:
    scope = context.store.scope(vm.scope_id)
    live = scope.live_events() if scope is not None else ()
    return [event for event in live if event.rules.planned and event.listed and vm.name in event.vms]


def _update_json(event: Event, vm: Vm) -> JsonObject:
    kind = event.rules.kind
    return {
        "maintenanceScope": "Host",
        "impactType": _IMPACT_TYPES.get(kind, "None") if kind is not None else "None",
        "status": "Pending" if event.status is EventState.SCHEDULED else "InProgress",
        "impactDurationInSec": event.rules.duration_s,
        "notBefore": iso_date(event.not_before),
        "properties": {"resourceId": vm_resource_id(vm)},
    }


def _apply_handler(find: VmsFinder) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        if parse_arm_body(call, ApplyUpdateBody).is_cancel:
            raise Refused("only runs of a maintenance configuration can be canceled: withdraw the event instead")
        if call.path_params["update"].casefold() != _DEFAULT_NAME:
            raise Rejected(
                f"the name of new apply updates is {_DEFAULT_NAME}: the response has the name to get them by"
            )
        vms = [vm for vm in find(context, call) if _pending_events(context, vm)]
        resource = _resource_of(call)
        scheduled = [vm for vm in vms if any(e.status is EventState.SCHEDULED for e in _pending_events(context, vm))]
        if not scheduled:
            return ArmResponse(body=_nothing_pending(resource, context.now()))
        receipt = await context.control.requests.perform_maintenance(
            scheduled, who=context.caller_name, key=call.request_key, resource=resource
        )
        await context.wait_for_reconciler()
        return ArmResponse(status=201, body=_apply_update_json(context, receipt.request))

    return once(handler, _repeated_response)


def _repeated_response(context: RequestContext, call: ArmCall, request: MaintenanceRequest) -> ArmResponse:
    return ArmResponse(status=201, body=_apply_update_json(context, request))


def _resource_of(call: ArmCall) -> str:
    """The id of the resource whose apply update the path names."""
    return call.resource[: call.resource.casefold().rindex(f"/{_APPLY_UPDATES}/".casefold())]


def _nothing_pending(resource: str, now: float) -> JsonObject:
    return _document(resource, _DEFAULT_NAME, "NoUpdatesPending", now)


def _document(resource: str, name: str, status: str, at: float) -> JsonObject:
    return {
        "id": f"{resource}/{_APPLY_UPDATES}/{name}",
        "name": name,
        "type": _APPLY_UPDATE_TYPE,
        "properties": {"status": status, "resourceId": resource, "lastUpdateTime": iso_date(at)},
    }


def _apply_update_json(context: RequestContext, request: MaintenanceRequest) -> JsonObject:
    status = read_request_status(context, request)
    has_started = any(event.started_at is not None for event in status.events)
    text = _STATUS_BY_STATE.get(status.state, "InProgress" if has_started else "Pending")
    times = [at for event in status.events for at in (event.over_at, event.started_at) if at is not None]
    return _document(request.resource, request.id, text, max(times, default=request.requested_at))


def _requests_for(context: RequestContext, is_wanted: Callable[[str], bool]) -> list[MaintenanceRequest]:
    """The requests that apply updates of resources that are wanted (by id), oldest first."""
    newest = context.store.requests(limit=_MAX_REQUESTS)
    return [request for request in newest if request.resource and is_wanted(request.resource)]


def _show_handler(find: VmsFinder) -> ArmHandler:
    """Shows an apply update of the path's resource; by the name `default`, the newest one."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        find(context, call)
        resource, name = _resource_of(call), call.path_params["update"]
        wanted = resource.casefold()
        found = _requests_for(context, lambda other: other.casefold() == wanted)
        if name.casefold() != _DEFAULT_NAME:
            found = [request for request in found if request.id == name.casefold()]
            if not found:
                raise NotFound(f"apply update {name!r} of {resource} does not exist: create one")
        elif not found:
            return ArmResponse(body=_nothing_pending(resource, context.now()))
        return ArmResponse(body=_apply_update_json(context, found[-1]))

    return handler


async def list_apply_updates(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the apply updates of resources in the path's subscription or group that the caller may read."""
    prefix = f"{call.resource}/".casefold()
    found = _requests_for(
        context, lambda other: other.casefold().startswith(prefix) and context.principal.may(Right.READ, other)
    )
    by_name = {f"{request.resource}/{request.id}": request for request in found}
    names = sorted(by_name, key=natural_sort_key)
    return paged_response(call, names, lambda name: _apply_update_json(context, by_name[name]))


async def cancel_run(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Cancel a run of a maintenance configuration: one opening of its window, named by its start.

    A run that has begun can also be canceled. Events that have not started wait for the next window.
    """
    if not parse_arm_body(call, ApplyUpdateBody).is_cancel:
        raise Rejected("a run of a maintenance configuration can only be canceled: send properties.status Cancel")
    configuration, (begin, end) = _find_run(context, call)
    if end <= context.now() and begin not in configuration.window.skipped:
        raise Refused(f"run {call.path_params['update']} is over: cancel a later one")
    await context.control.maintenance_configurations.skip(configuration.id, begin, who=context.caller_name)
    await context.wait_for_reconciler()
    return ArmResponse(body=_run_json(context, call))


async def show_run(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show a run of a maintenance configuration: Pending, InProgress, Completed or Cancelled."""
    return ArmResponse(body=_run_json(context, call))


def _run_json(context: RequestContext, call: ArmCall) -> JsonObject:
    configuration, (begin, end) = _find_run(context, call)
    now = context.now()
    if begin in configuration.window.skipped:
        status, at = "Cancelled", configuration.changed_at
    elif now < begin:
        status, at = "Pending", configuration.changed_at
    else:
        status, at = ("InProgress", begin) if now < end else ("Completed", end)
    return _document(configuration.id, call.path_params["update"], status, at)


def _find_run(context: RequestContext, call: ArmCall) -> tuple[MaintenanceConfiguration, tuple[float, float]]:
    configuration = context.control.maintenance_configurations.find(_resource_of(call))
    name = call.path_params["update"]
    if configuration is None:
        raise NotFound(f"maintenance configuration {call.path_params['configuration']!r} does not exist: create it")
    try:
        begin = datetime.strptime(name, _RUN_NAME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        begin = -1.0
    found = opening_at(configuration.window, begin) if 0 <= begin < _LATEST_RUN else None
    if found is None:
        following = next(openings(configuration.window, context.now()), None)
        remedy = (
            f"the next one is {datetime.fromtimestamp(following[0], UTC):{_RUN_NAME}}" if following else "none follows"
        )
        raise NotFound(f"configuration {configuration.name!r} has no run {name[:40]!r}: {remedy}")
    return configuration, found


_OPERATIONS = (
    ("maintenanceConfigurations", ("read", "write", "delete")),
    ("configurationAssignments", ("read", "write", "delete")),
    ("applyUpdates", ("read", "write")),
    ("updates", ("read",)),
    ("scheduledevents", ("acknowledge/action",)),
)


async def list_provider_operations(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the operations of Microsoft.Maintenance that this service has, by their names on Azure."""
    names = [(resource, verb) for resource, verbs in _OPERATIONS for verb in verbs]
    return ArmResponse(body={"value": [_operation_json(resource, verb) for resource, verb in names]})


def _operation_json(resource: str, verb: str) -> JsonObject:
    display = {"provider": "Microsoft.Maintenance", "resource": resource, "operation": verb, "description": ""}
    return {"name": f"Microsoft.Maintenance/{resource}/{verb}", "display": display, "isDataAction": False}


def _one(find: Callable[[RequestContext, ArmCall], Vm]) -> VmsFinder:
    return lambda context, call: [find(context, call)]


def _routes_of(
    path: str, noun: str, find: VmsFinder, authorize: ArmAuthorizer = require_on_resource
) -> tuple[ArmRoute, ...]:
    one = f"{path}/{_APPLY_UPDATES}/{{update}}"
    return (
        ArmRoute("GET", f"{path}/{_UPDATES}", _list_updates_handler(find), summary=f"lists pending updates of {noun}"),
        ArmRoute(
            "PUT", one, _apply_handler(find), Right.OPERATE, authorize, summary=f"starts pending updates of {noun} now"
        ),
        ArmRoute("GET", one, _show_handler(find), summary=f"shows how updates of {noun} are applied"),
    )


_RUN_PATH = f"{CONFIGURATION_PATH}/{_APPLY_UPDATES}/{{update}}"

ROUTES: tuple[ArmRoute, ...] = (
    *_routes_of(VM_PATH, "a VM", _one(find_vm)),
    *_routes_of(SCALE_SET_PATH, "a scale set", all_instances, authorize_scale_set),
    *_routes_of(INSTANCE_PATH, "an instance", _one(find_instance)),
    ArmRoute("PUT", _RUN_PATH, cancel_run, Right.OPERATE, summary="cancels a run of a maintenance configuration"),
    ArmRoute("GET", _RUN_PATH, show_run, summary="shows a run of a maintenance configuration"),
    *(
        ArmRoute(
            "GET",
            f"{path}/{_APPLY_UPDATES}",
            list_apply_updates,
            authorize=allow_listing,
            summary=f"lists apply updates of a {noun}",
        )
        for path, noun in ((SUBSCRIPTION_PATH, "subscription"), (GROUP_PATH, "resource group"))
    ),
    ArmRoute(
        "GET",
        f"/{MAINTENANCE_PROVIDER}/operations",
        list_provider_operations,
        authorize=allow_listing,
        summary="lists the operations of Microsoft.Maintenance",
    ),
)
