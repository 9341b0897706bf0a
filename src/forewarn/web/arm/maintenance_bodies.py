"""The JSON of maintenance configurations and of their assignments, in calls and in responses."""

from __future__ import annotations

import re
from typing import Any

import msgspec

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
from forewarn.errors import Rejected
from forewarn.protocol.dates import iso_date
from forewarn.web.arm.rendering import JsonObject
from forewarn.web.arm.update_body import read_tags

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
