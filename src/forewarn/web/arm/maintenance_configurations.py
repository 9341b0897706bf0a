"""Maintenance configurations, and their assignments to VMs, sets, groups and subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec

from forewarn.control.directory import natural_sort_key
from forewarn.core.access import Right
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.errors import NotFound, Rejected
from forewarn.web.arm.containers import paged_response, subscription_not_found
from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.maintenance_bodies import (
    AssignmentBody,
    ConfigurationBody,
    assignment_json,
    configuration_json,
    read_assignment,
    read_configuration,
)
from forewarn.web.arm.rendering import JsonObject
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
from forewarn.web.arm.targets import (
    ArmEmptyBody,
    all_instances,
    authorize_scale_set,
    find_instance,
    find_vm,
    parse_arm_body,
)
from forewarn.web.arm.update_body import merge_patch
from forewarn.web.context import RequestContext

_CONFIGURATIONS = f"{MAINTENANCE_PROVIDER}/maintenanceConfigurations"
_ASSIGNMENTS = f"{MAINTENANCE_PROVIDER}/configurationAssignments"
CONFIGURATION_PATH = f"{GROUP_PATH}/{_CONFIGURATIONS}/{{configuration}}"

TargetCheck = Callable[[RequestContext, ArmCall], object]  # raises NotFound if the target does not exist


async def put_configuration(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Create the maintenance configuration of the path (201), or replace it (200)."""
    _require_subscription(context, call)
    return await _write_configuration(context, call)


async def patch_configuration(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Change the members of the path's maintenance configuration that the body has; others stay."""
    shown = configuration_json(_find_configuration(context, call))
    return await _write_configuration(context, _merged_call(call, shown))


async def _write_configuration(context: RequestContext, call: ArmCall) -> ArmResponse:
    configuration = read_configuration(call.resource, parse_arm_body(call, ConfigurationBody))
    old = context.control.maintenance_configurations.find(call.resource)
    if old is None or old.azure_window.start != configuration.azure_window.start:
        _require_future_start(context, configuration)
    stored, is_new = await context.control.maintenance_configurations.put(configuration, who=context.caller_name)
    await context.wait_for_reconciler()
    return ArmResponse(status=201 if is_new else 200, body=configuration_json(stored))


def _require_future_start(context: RequestContext, configuration: MaintenanceConfiguration) -> None:
    window = configuration.window
    today = datetime.fromtimestamp(context.now(), UTC).astimezone(ZoneInfo(window.zone)).date().isoformat()
    if (window.first or window.on) < today:
        start = configuration.azure_window.start
        raise Rejected(f"startDateTime {start!r} is in the past: give {today}, the current date there, or a later one")


def _merged_call(call: ArmCall, shown: JsonObject) -> ArmCall:
    """The call with the whole resource as its body: `shown`, with the members that the body changes."""
    try:
        sent = msgspec.json.decode(call.body or b"{}")
        return replace(call, body=msgspec.json.encode(merge_patch(shown, sent)))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"the body is not JSON ({error}): send an object such as {{}}") from error
    except RecursionError as error:
        raise Rejected("the body is nested too deeply: send fewer levels") from error


async def show_configuration(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the maintenance configuration of the path: 200 with its resource."""
    return ArmResponse(body=configuration_json(_find_configuration(context, call)))


async def delete_configuration(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Delete the maintenance configuration of the path and all its assignments; 204 if there is none."""
    parse_arm_body(call, ArmEmptyBody)
    removed = await context.control.maintenance_configurations.remove(call.resource, who=context.caller_name)
    await context.wait_for_reconciler()
    return ArmResponse(body=configuration_json(removed)) if removed is not None else ArmResponse(status=204)


async def list_configurations(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the maintenance configurations in the path's subscription or group that the caller may read."""
    found = {c.id: c for c in context.store.configurations() if _is_shown(context, call, c.id)}
    return paged_response(call, sorted(found, key=natural_sort_key), lambda name: configuration_json(found[name]))


async def list_public_configurations(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the maintenance configurations that the platform offers to everybody: always `{"value": []}`."""
    return ArmResponse(body={"value": []})


async def show_public_configuration(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Raise NotFound for every name: the platform offers no public maintenance configurations."""
    name = call.path_params["configuration"]
    raise NotFound(f"public maintenance configuration {name!r} does not exist: this service offers none")


def _is_shown(context: RequestContext, call: ArmCall, resource: str) -> bool:
    """Whether the list of the called subscription or group has this resource for the caller."""
    return resource.casefold().startswith(f"{call.resource}/".casefold()) and context.principal.may(
        Right.READ, resource
    )


def _find_configuration(context: RequestContext, call: ArmCall) -> MaintenanceConfiguration:
    found = context.control.maintenance_configurations.find(call.resource)
    if found is None:
        name, group = call.path_params["configuration"], call.path_params["group"]
        raise NotFound(f"maintenance configuration {name!r} does not exist in resource group {group!r}: create it")
    return found


def _require_subscription(context: RequestContext, call: ArmCall) -> None:
    if not context.directory.unfiltered.has_vms_in(f"/subscriptions/{call.path_params['subscription']}"):
        raise subscription_not_found(call)


def _require_group(context: RequestContext, call: ArmCall) -> None:
    group = call.path_params["group"]
    if not context.directory.unfiltered.has_vms_in(_target_of(call)):
        message = f"resource group {group!r} has no VM: `az group list` lists the groups"
        raise ArmError(404, "ResourceGroupNotFound", message)


def _target_of(call: ArmCall) -> str:
    """The id of the resource that the called assignment, or list of assignments, belongs to."""
    marker = f"/{MAINTENANCE_PROVIDER}/configurationAssignments".casefold()
    at = call.resource.casefold().rfind(marker)
    return call.resource[:at] if at >= 0 else call.resource


def _put_assignment_handler(require_target: TargetCheck, *, is_filtered: bool) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        require_target(context, call)
        return await _write_assignment(context, call, is_filtered=is_filtered)

    return handler


def _patch_assignment_handler() -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        shown = assignment_json(_find_assignment(context, call))
        return await _write_assignment(context, _merged_call(call, shown), is_filtered=True)

    return handler


async def _write_assignment(context: RequestContext, call: ArmCall, *, is_filtered: bool) -> ArmResponse:
    body = parse_arm_body(call, AssignmentBody)
    assignment = read_assignment(call.resource, _target_of(call), body, is_filtered=is_filtered)
    context.require(Right.READ, assignment.configuration_id)
    stored, is_new = await context.control.maintenance_configurations.assign(assignment, who=context.caller_name)
    await context.wait_for_reconciler()
    return ArmResponse(status=201 if is_new else 200, body=assignment_json(stored))


async def show_assignment(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the path's assignment of a maintenance configuration: 200 with its resource."""
    return ArmResponse(body=assignment_json(_find_assignment(context, call)))


async def delete_assignment(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Delete the path's assignment of a maintenance configuration; 204 if there is none."""
    parse_arm_body(call, ArmEmptyBody)
    removed = await context.control.maintenance_configurations.unassign(call.resource, who=context.caller_name)
    await context.wait_for_reconciler()
    return ArmResponse(body=assignment_json(removed)) if removed is not None else ArmResponse(status=204)


def _list_assignments_handler(require_target: TargetCheck) -> ArmHandler:
    """Lists the assignments to the path's resource itself, without those to its group and subscription."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        require_target(context, call)
        target = _target_of(call).casefold()
        found = {a.id: a for a in context.store.assignments() if a.target.casefold() == target}
        return paged_response(call, sorted(found, key=natural_sort_key), lambda name: assignment_json(found[name]))

    return handler


async def list_assignments_in_subscription(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List all assignments of configurations in the path's subscription that the caller may read."""
    found = {a.id: a for a in context.store.assignments() if _is_shown(context, call, a.id)}
    return paged_response(call, sorted(found, key=natural_sort_key), lambda name: assignment_json(found[name]))


def _find_assignment(context: RequestContext, call: ArmCall) -> ConfigurationAssignment:
    found = context.control.maintenance_configurations.find_assignment(call.resource)
    if found is None:
        name = call.path_params["assignment"]
        raise NotFound(f"configuration assignment {name!r} of {_target_of(call)} does not exist: create it")
    return found


def _assignment_routes(
    path: str,
    noun: str,
    require_target: TargetCheck,
    authorize: ArmAuthorizer = require_on_resource,
    *,
    is_filtered: bool = False,
) -> tuple[ArmRoute, ...]:
    one = f"{path}/{_ASSIGNMENTS}/{{assignment}}"
    put = _put_assignment_handler(require_target, is_filtered=is_filtered)
    routes = [
        ArmRoute("GET", one, show_assignment, summary=f"shows an assignment to {noun}"),
        ArmRoute("PUT", one, put, Right.OPERATE, authorize, summary=f"assigns a configuration to {noun}"),
        ArmRoute(
            "DELETE", one, delete_assignment, Right.OPERATE, authorize, summary=f"deletes an assignment to {noun}"
        ),
    ]
    if is_filtered:
        change = _patch_assignment_handler()
        return (*routes, ArmRoute("PATCH", one, change, Right.OPERATE, summary=f"changes an assignment to {noun}"))
    list_them = _list_assignments_handler(require_target)
    return (*routes, ArmRoute("GET", f"{path}/{_ASSIGNMENTS}", list_them, summary=f"lists the assignments to {noun}"))


_CONFIGURATION_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", CONFIGURATION_PATH, show_configuration, summary="shows a maintenance configuration"),
    ArmRoute(
        "PUT", CONFIGURATION_PATH, put_configuration, Right.OPERATE, summary="creates a maintenance configuration"
    ),
    ArmRoute(
        "PATCH", CONFIGURATION_PATH, patch_configuration, Right.OPERATE, summary="changes a maintenance configuration"
    ),
    ArmRoute(
        "DELETE", CONFIGURATION_PATH, delete_configuration, Right.OPERATE, summary="deletes a maintenance configuration"
    ),
    *(
        ArmRoute(
            "GET", f"{path}/{_CONFIGURATIONS}", list_configurations, authorize=allow_listing,
            summary=f"lists maintenance configurations of a {noun}",
        )
        for path, noun in ((SUBSCRIPTION_PATH, "subscription"), (GROUP_PATH, "resource group"))
    ),
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{MAINTENANCE_PROVIDER}/publicMaintenanceConfigurations",
        list_public_configurations,
        authorize=allow_listing,
        summary="lists public configurations: none",
    ),
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{MAINTENANCE_PROVIDER}/publicMaintenanceConfigurations/{{configuration}}",
        show_public_configuration,
        authorize=allow_listing,
        summary="answers that there are no public configurations",
    ),
)  # fmt: skip

ROUTES: tuple[ArmRoute, ...] = (
    *_CONFIGURATION_ROUTES,
    *_assignment_routes(VM_PATH, "a VM", find_vm),
    *_assignment_routes(SCALE_SET_PATH, "a scale set", all_instances, authorize_scale_set),
    *_assignment_routes(INSTANCE_PATH, "an instance", find_instance),
    *_assignment_routes(GROUP_PATH, "a resource group", _require_group, is_filtered=True),
    *_assignment_routes(SUBSCRIPTION_PATH, "a subscription", _require_subscription, is_filtered=True),
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{_ASSIGNMENTS}",
        list_assignments_in_subscription,
        authorize=allow_listing,
        summary="lists assignments in a subscription",
    ),
)
