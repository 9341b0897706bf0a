"""Maintenance configurations, and their assignments to VMs, sets, groups and subscriptions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from forewarn.control.directory import natural_sort_key
from forewarn.core.access import Right
from forewarn.core.azure_windows import (
    NO_EXPIRATION,
    AzureWindow,
    MaintenanceScope,
    parse_azure_window,
    with_default_duration,
)
from forewarn.core.maintenance_configuration import (
    SCALE_SET_TYPE,
    VM_TYPE,
    AssignmentFilter,
    ConfigurationAssignment,
    MaintenanceConfiguration,
)
from forewarn.errors import NotFound, Rejected
from forewarn.protocol.dates import iso_date
from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.rendering import JsonObject
from forewarn.web.arm.resources import paged_response, subscription_not_found
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
from forewarn.web.arm.updates import merge_patch, read_tags
from forewarn.web.context import RequestContext

# The JSON of maintenance configurations and of their assignments, in calls and in responses.

CONFIGURATION_TYPE = "Microsoft.Maintenance/maintenanceConfigurations"
ASSIGNMENT_TYPE = "Microsoft.Maintenance/configurationAssignments"
_NAME = re.compile(r"[\w.()-]{1,128}", re.ASCII)
_CONFIGURATION_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Maintenance/maintenanceConfigurations/[^/]+",
    re.IGNORECASE,
)
_OTHER_SCOPES = ("Resource", "Extension", "SQLDB", "SQLManagedInstance")
_MAX_LISTED_VALUES = 100  # of one member of a filter


class _ReadOnlyMembers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members that a GET shows and a client may send back; they are not looked at."""

    id: Any = None
    name: Any = None
    type: Any = None
    system_data: Any = msgspec.field(name="systemData", default=None)


class MaintenanceWindowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The member `maintenanceWindow` of a maintenance configuration: when it opens, and for how long."""

    start_date_time: str | None = None  # local time, such as `2026-12-05 02:00`; None is rejected later
    expiration_date_time: str | None = None  # local time; None or `9999-12-31 23:59:59`: never
    duration: str | None = None  # hours and minutes, `02:00`; None: the scope's default
    time_zone: str | None = None  # in the words of Windows, such as `W. Europe Standard Time`; None is rejected later
    recur_every: str | None = None  # such as `Week Saturday`; None: opens once


class ConfigurationPropertiesBody(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The member `properties` of a maintenance configuration.

    Only configurations of the scope Host have an effect; those of the other scopes are stored and shown.
    """

    namespace: str | None = None  # stored and shown, without effect
    extension_properties: dict[str, str] | None = None  # stored and shown, without effect
    maintenance_scope: str | None = None  # Host, OSImage or InGuestPatch, ignoring letter case; None is rejected later
    maintenance_window: MaintenanceWindowBody | None = None  # None is rejected later
    visibility: str | None = None  # exactly Custom, or None; others are rejected later
    install_patches: dict[str, Any] | None = None  # stored and shown, without effect


class ConfigurationBody(_ReadOnlyMembers, frozen=True, kw_only=True):
    """The body that creates or replaces a maintenance configuration; `read_configuration` checks it."""

    location: str | None = None  # an Azure region; None is rejected later
    tags: Any = None  # name → value; checked later
    properties: ConfigurationPropertiesBody | None = None  # None: an empty one, which is rejected later


class TagSettingsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The member `tagSettings` of a filter: names of tags with allowed values."""

    tags: dict[str, tuple[str, ...]] | None = None  # name → allowed values, (): any; None: any tags
    filter_operator: str | None = None  # Any (also None) or All of the names


class FilterBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The member `filter` of an assignment: a VM must match every member that is given."""

    resource_types: tuple[str, ...] | None = None  # of VMs or scale sets; None or (): any, as in the other members
    resource_groups: tuple[str, ...] | None = None  # their names
    os_types: tuple[str, ...] | None = None  # Linux or Windows; another is rejected
    locations: tuple[str, ...] | None = None  # Azure regions
    tag_settings: TagSettingsBody | None = None  # tags that VMs must have


class AssignmentPropertiesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The member `properties` of an assignment of a maintenance configuration to a resource."""

    maintenance_configuration_id: str | None = None  # its resource id; None is rejected later
    resource_id: str | None = None  # that of the target: must be the one of the path; None: as the path says
    filter: FilterBody | None = None  # only for resource groups and subscriptions; None: all VMs of the target


class AssignmentBody(_ReadOnlyMembers, frozen=True, kw_only=True):
    """The body that creates or replaces an assignment of a maintenance configuration to a resource."""

    location: str | None = None  # stored and shown, without effect
    properties: AssignmentPropertiesBody | None = None  # None: an empty one, which is rejected later


def read_configuration(resource: str, body: ConfigurationBody) -> MaintenanceConfiguration:
    """Return the maintenance configuration with this resource id that a body describes; stores nothing.

    Who created and changed it, and when, is left for the caller to set.
    """
    require_resource_name(resource)
    properties = body.properties or ConfigurationPropertiesBody()
    if not body.location:
        raise Rejected("location is missing: give the location of the configuration, such as westeurope")
    scope = _read_scope(properties.maintenance_scope)
    if properties.visibility not in (None, "Custom"):
        raise Rejected(f"visibility {properties.visibility[:40]!r} is not possible: only Custom can be created")
    window = _read_window(properties.maintenance_window)
    try:
        parsed = parse_azure_window(window, scope)
    except ValueError as error:
        raise Rejected(str(error)) from error
    return MaintenanceConfiguration(
        id=resource,
        location=body.location,
        maintenance_scope=scope,
        azure_window=with_default_duration(window, scope),
        window=parsed,
        tags=read_tags(body.tags or {}, ("tags",)),
        namespace=properties.namespace or "",
        extension_properties=properties.extension_properties or {},
        install_patches=properties.install_patches or {},
    )


def require_resource_name(resource: str) -> None:
    """Raise Rejected unless the last part of this resource id can be the name of a new resource."""
    name = resource.rpartition("/")[2]
    if _NAME.fullmatch(name) is None:
        raise Rejected(f"the name {name[:60]!r} is not possible: give 1 to 128 letters, digits, or any of -_.()")


def _read_scope(text: str | None) -> MaintenanceScope:
    allowed = {scope.casefold(): scope for scope in MaintenanceScope}
    if (found := allowed.get((text or "").casefold())) is not None:
        return found
    names = ", ".join(MaintenanceScope)
    if text is None:
        raise Rejected(f"properties.maintenanceScope is missing: give one of {names}")
    if text.casefold() in map(str.casefold, _OTHER_SCOPES):
        raise Rejected(f"maintenanceScope {text!r} has no meaning for the VMs of this service: give one of {names}")
    raise Rejected(f"maintenanceScope {text[:40]!r} is not known: give one of {names}")


def _read_window(body: MaintenanceWindowBody | None) -> AzureWindow:
    if body is None or not body.start_date_time or not body.time_zone:
        raise Rejected(
            "properties.maintenanceWindow needs startDateTime and timeZone: "
            "give them like '2026-12-05 02:00' and 'W. Europe Standard Time'"
        )
    expires = body.expiration_date_time or ""
    return AzureWindow(
        start=body.start_date_time,
        time_zone=body.time_zone,
        duration=body.duration or "",
        recur_every=body.recur_every or "",
        expires="" if expires == NO_EXPIRATION else expires,
    )


def configuration_json(configuration: MaintenanceConfiguration) -> JsonObject:
    """Return the Azure resource of a maintenance configuration, as a GET shows it."""
    window = configuration.azure_window
    properties: JsonObject = {
        "namespace": configuration.namespace,
        "extensionProperties": configuration.extension_properties,
        "maintenanceScope": configuration.maintenance_scope,
        "visibility": "Custom",
        "maintenanceWindow": {
            "startDateTime": window.start,
            "expirationDateTime": window.expires or NO_EXPIRATION,
            "duration": window.duration,
            "timeZone": window.time_zone,
            **({"recurEvery": window.recur_every} if window.recur_every else {}),
        },
    }
    if configuration.install_patches:
        properties["installPatches"] = configuration.install_patches
    return {
        "id": configuration.id,
        "name": configuration.name,
        "type": CONFIGURATION_TYPE,
        "location": configuration.location,
        "tags": configuration.tags,
        "properties": properties,
        "systemData": _system_data(configuration),
    }


def read_assignment(resource: str, target: str, body: AssignmentBody, *, is_filtered: bool) -> ConfigurationAssignment:
    """Return the assignment of a configuration to a target that a body describes; stores nothing.

    Does not check whether the configuration exists.
    """
    require_resource_name(resource)
    properties = body.properties or AssignmentPropertiesBody()
    configuration = (properties.maintenance_configuration_id or "").rstrip("/")
    if _CONFIGURATION_ID.fullmatch(configuration) is None:
        raise Rejected(
            f"properties.maintenanceConfigurationId {configuration[:120]!r} is not the id of a configuration: "
            "give the id that `az maintenance configuration show` prints"
        )
    given = (properties.resource_id or target).rstrip("/")
    if given.casefold() != target.casefold():
        raise Rejected(f"properties.resourceId is another resource than the path's, {target}: leave it out")
    if properties.filter is not None and not is_filtered:
        raise Rejected("properties.filter is for resource groups and subscriptions: leave it out for a single resource")
    return ConfigurationAssignment(
        id=resource,
        target=target,
        configuration_id=configuration,
        location=body.location or "",
        filter=_read_filter(properties.filter) if properties.filter is not None else None,
    )


def _read_filter(body: FilterBody) -> AssignmentFilter:
    tag_settings = body.tag_settings or TagSettingsBody()
    operator = (tag_settings.filter_operator or "Any").casefold()
    if operator not in ("any", "all"):
        raise Rejected(f"filterOperator {tag_settings.filter_operator!r} is not known: give Any or All")
    types = body.resource_types or ()
    for name in types:
        if name.casefold() not in (VM_TYPE, SCALE_SET_TYPE):
            raise Rejected(
                f"resourceTypes names {name[:80]!r}, of which there is none here: "
                "give Microsoft.Compute/virtualMachines or Microsoft.Compute/virtualMachineScaleSets"
            )
    for name in body.os_types or ():
        if name.casefold() not in ("linux", "windows"):
            raise Rejected(f"osTypes names {name[:40]!r}: give Linux or Windows")
    lists = (types, body.resource_groups or (), body.os_types or (), body.locations or (), tag_settings.tags or {})
    if any(len(values) > _MAX_LISTED_VALUES for values in lists):
        raise Rejected(f"a member of the filter has more than {_MAX_LISTED_VALUES} values: make several assignments")
    return AssignmentFilter(
        resource_types=types,
        resource_groups=body.resource_groups or (),
        os_types=body.os_types or (),
        locations=body.locations or (),
        tags=tag_settings.tags or {},
        needs_all_tags=operator == "all",
    )


def assignment_json(assignment: ConfigurationAssignment) -> JsonObject:
    """Return the Azure resource of an assignment of a maintenance configuration, as a GET shows it."""
    properties: JsonObject = {
        "maintenanceConfigurationId": assignment.configuration_id,
        "resourceId": assignment.target,
    }
    if assignment.filter is not None:
        properties["filter"] = _filter_json(assignment.filter)
    return {
        "id": assignment.id,
        "name": assignment.name,
        "type": ASSIGNMENT_TYPE,
        "location": assignment.location,
        "properties": properties,
        "systemData": _system_data(assignment),
    }


def _filter_json(condition: AssignmentFilter) -> JsonObject:
    return {
        "resourceTypes": condition.resource_types,
        "resourceGroups": condition.resource_groups,
        "osTypes": condition.os_types,
        "locations": condition.locations,
        "tagSettings": {"tags": condition.tags, "filterOperator": "All" if condition.needs_all_tags else "Any"},
    }


def _system_data(value: MaintenanceConfiguration | ConfigurationAssignment) -> JsonObject:
    return {
        "createdBy": value.created_by,
        "createdByType": _identity_type(value.created_by),
        "createdAt": iso_date(value.created_at),
        "lastModifiedBy": value.changed_by,
        "lastModifiedByType": _identity_type(value.changed_by),
        "lastModifiedAt": iso_date(value.changed_at),
    }


def _identity_type(name: str) -> str:
    return "Application" if name.startswith("client ") else "User"


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
