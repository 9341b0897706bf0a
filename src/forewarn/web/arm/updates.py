"""PUT and PATCH of VMs and sets: tags, scheduled events profile and policy.

Both change the settings at once, and answer with what a GET shows then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import asdict

from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import vm_resource_id
from forewarn.core.vm_settings import (
    MAX_TERMINATE_NOTICE_MIN,
    MIN_TERMINATE_NOTICE_MIN,
    OS_IMAGE_NOTICE_MIN,
    VmSettingsChange,
    current_settings,
)
from forewarn.errors import Forbidden, Rejected
from forewarn.protocol.versions import VERSIONS
from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.rendering import JsonObject, availability_set_json, instance_json, scale_set_json, vm_json
from forewarn.web.arm.resources import all_vms_in
from forewarn.web.arm.routing import (
    AVAILABILITY_SET_PATH,
    INSTANCE_PATH,
    SCALE_SET_PATH,
    VM_PATH,
    ArmAuthorizer,
    ArmCall,
    ArmHandler,
    ArmResponse,
    ArmRoute,
    require_on_resource,
)
from forewarn.web.arm.targets import ResourceAbsent, authorize_scale_set, find_instance, find_vm
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import split_validation_error

T = TypeVar("T", bound="_SettingsPart")


# Parses the body of an update: profile, policy and tags; all other members must be unchanged.
#
# Clients send whole resources back, so members equal to what a GET shows, or without content, are accepted.

MemberPath = tuple[str, ...]  # the names from the root of a JSON body to a member
_MAX_QUOTED_LENGTH = 80
# Only the service writes these: a client that sends back an old value does not mean to change them.
_READ_ONLY_MEMBERS = frozenset({"properties.instanceView", "properties.provisioningState", "etag", "systemData"})


class _MissingMember:
    """The type of MISSING: the member was not sent, which differs from null."""


MISSING: Final = _MissingMember()
_ISO_DURATION = re.compile(
    r"P(?:(?P<d>[0-9]{1,9})D)?(?:T(?:(?P<h>[0-9]{1,9})H)?(?:(?P<m>[0-9]{1,9})M)?(?:(?P<s>[0-9]{1,9})S)?)?"
)
_SECONDS_PER_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_MAX_TAG_NAME, _MAX_TAG_VALUE, _MAX_TAGS = 512, 256, 50  # Azure's limits


def member_at(sent: JsonObject, path: MemberPath) -> Any:
    """Return the value at this path of a JSON body, None for null; MISSING if there is no such member."""
    value: Any = sent
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return MISSING
        value = value[name]
    return value


def merge_patch(old: Any, sent: Any) -> Any:
    """Return `old` merged with `sent` as a JSON merge patch (RFC 7396); neither is changed."""
    if not isinstance(sent, dict):
        return sent
    base = old if isinstance(old, dict) else {}
    merged = {name: merge_patch(base.get(name), value) for name, value in sent.items() if value is not None}
    return {name: value for name, value in base.items() if name not in sent} | merged


def is_empty_value(value: Any) -> bool:
    """Return whether a JSON value is null, an empty list, or an object without any other values."""
    if isinstance(value, dict):
        return all(map(is_empty_value, value.values()))
    return value is None or value == []


def require_unchanged(
    sent: JsonObject, shown: JsonObject, changeable: frozenset[MemberPath], above: MemberPath = ()
) -> None:
    """Raise ArmError if `sent` differs from `shown`, what a GET shows, except at the changeable paths.

    Members that are left out or null, read-only ones, and empty ones that a GET does not show are accepted.
    """
    for name, value in sent.items():
        path = (*above, name)
        if path in changeable or value is None or ".".join(path) in _READ_ONLY_MEMBERS:
            continue
        if name not in shown and is_empty_value(value):
            continue
        if name not in shown:
            raise _invalid_member(path, "cannot be set here: leave it out")
        old = shown[name]
        if isinstance(old, dict):
            require_unchanged(_require_object(value, path), old, changeable, path)
        elif not _equivalent(value, old, name):
            raise _change_not_allowed(path, value, old)


def _require_object(value: Any, path: MemberPath) -> JsonObject:
    """Returns the value, if it is a JSON object. Raises ArmError 400, naming `path`, if it is not."""
    if isinstance(value, dict):
        return value
    raise _invalid_member(path, f"is {_json_text(value)}: send an object")


def _invalid_member(path: MemberPath, what: str) -> ArmError:
    """Returns an ArmError 400 to raise about a member; `what` continues the sentence after its path."""
    where = _path_text(path)
    return ArmError(400, "InvalidParameter", f"{where} {what}", target=where)


def _path_text(path: MemberPath) -> str:
    """The names of the path joined with dots, for a message; cut after 80 characters."""
    return _truncate_text(".".join(path))


def _json_text(value: Any) -> str:
    """The value as JSON, for a message; cut after 80 characters."""
    return _truncate_text(msgspec.json.encode(value).decode())


def _equivalent(sent: Any, shown: Any, name: str) -> bool:
    """Return whether Azure treats both values as equal: texts ignoring case, locations also spaces."""
    if isinstance(sent, list) and isinstance(shown, list):
        return len(sent) == len(shown) and all(_equivalent(*pair, name) for pair in zip(sent, shown, strict=True))
    if isinstance(sent, dict) and isinstance(shown, dict):
        return all(
            key in shown and _equivalent(value, shown[key], key) for key, value in sent.items() if value is not None
        )
    if isinstance(sent, str) and isinstance(shown, str):
        return _normalize_text(sent, name) == _normalize_text(shown, name)
    return isinstance(sent, bool) == isinstance(shown, bool) and bool(sent == shown)


def _normalize_text(text: str, name: str) -> str:
    return (text.replace(" ", "") if name == "location" else text).casefold()


def _change_not_allowed(path: MemberPath, sent: Any, shown: Any) -> ArmError:
    where = _path_text(path)
    message = f"{where} is {_json_text(shown)} and cannot become {_json_text(sent)}: {_remedy_text(path, sent, shown)}"
    return ArmError(409, "PropertyChangeNotAllowed", message, target=where)


def _remedy_text(path: MemberPath, sent: Any, shown: Any) -> str:
    if path != ("sku", "capacity") or not isinstance(sent, int | float):
        return "leave it as it is, or change it in the fleet file (`forewarn fleet apply`)"
    if sent > shown:
        return "add instances to the fleet file, or with `forewarn fleet add`"
    return "delete instances (`az vmss delete-instances`, `forewarn delete --scale-in`)"


def _truncate_text(text: str) -> str:
    """The text; if it is longer than 80 characters, its first 80 and an ellipsis."""
    return text if len(text) <= _MAX_QUOTED_LENGTH else f"{text[:_MAX_QUOTED_LENGTH]}…"


class _SettingsPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class _NotificationProfile(_SettingsPart, frozen=True, kw_only=True):
    enable: bool | None = None
    not_before_timeout: str | None = None


class _ScheduledEventsProfile(_SettingsPart, frozen=True, kw_only=True):
    terminate_notification_profile: _NotificationProfile = _NotificationProfile()
    os_image_notification_profile: _NotificationProfile = _NotificationProfile()


class _AutomaticApproval(_SettingsPart, frozen=True, kw_only=True):
    automatically_approve: bool = False


class _AllInstancesDown(_SettingsPart, frozen=True, kw_only=True):
    automatically_approve: bool = True  # Azure's default


class _PublishingTarget(_SettingsPart, frozen=True, kw_only=True):
    enable: bool = False
    scheduled_events_api_version: str = ""  # "": the newest


class _PublishingTargets(_SettingsPart, frozen=True, kw_only=True):
    event_grid_and_resource_graph: _PublishingTarget = _PublishingTarget()


class _ScheduledEventsPolicy(_SettingsPart, frozen=True, kw_only=True):
    user_initiated_reboot: _AutomaticApproval = _AutomaticApproval()
    user_initiated_redeploy: _AutomaticApproval = _AutomaticApproval()
    all_instances_down: _AllInstancesDown = _AllInstancesDown()
    scheduled_events_additional_publishing_targets: _PublishingTargets = _PublishingTargets()


def read_profile(value: Any, path: MemberPath) -> VmSettingsChange:
    """Return the change of a VM's two notices that the value of a `scheduledEventsProfile` asks for.

    A notice is on if `enable` is true or, without `enable`, if it has a timeout. PT5M to PT15M, in whole minutes, are
    allowed for terminate, and PT15M for the OS image.
    """
    profile = _convert(value, _ScheduledEventsProfile, path)
    terminate = (*path, "terminateNotificationProfile", "notBeforeTimeout")
    os_image = (*path, "osImageNotificationProfile", "notBeforeTimeout")
    return VmSettingsChange(
        terminate_notice_min=_notice_minutes(
            profile.terminate_notification_profile, terminate, MIN_TERMINATE_NOTICE_MIN, MAX_TERMINATE_NOTICE_MIN
        ),
        os_image_notice_min=_notice_minutes(
            profile.os_image_notification_profile, os_image, OS_IMAGE_NOTICE_MIN, OS_IMAGE_NOTICE_MIN
        ),
    )


def read_policy(value: Any, path: MemberPath) -> VmSettingsChange:
    """Return the change of a VM's policy that the value of a `scheduledEventsPolicy` asks for.

    A member that is left out is off, except that `allInstancesDown` is on, and the api-version is the newest.
    """
    policy = _convert(value, _ScheduledEventsPolicy, path)
    targets = policy.scheduled_events_additional_publishing_targets
    version = targets.event_grid_and_resource_graph.scheduled_events_api_version
    if version and version not in VERSIONS:
        member = (
            "scheduledEventsAdditionalPublishingTargets",
            "eventGridAndResourceGraph",
            "scheduledEventsApiVersion",
        )
        raise _invalid_member((*path, *member), f"is {_json_text(version)}: give one of {', '.join(VERSIONS)}")
    return VmSettingsChange(
        approve_restart=policy.user_initiated_reboot.automatically_approve,
        approve_redeploy=policy.user_initiated_redeploy.automatically_approve,
        approve_all_down=policy.all_instances_down.automatically_approve,
        publish_outside=targets.event_grid_and_resource_graph.enable,
        publish_version=version,
    )


def read_tags(value: Any, path: MemberPath) -> dict[str, str]:
    """Return the tags of a body, value by name; {} for null."""
    try:
        tags = msgspec.convert(_drop_empty(value), dict[str, str])
    except msgspec.ValidationError as error:
        raise _invalid_value(error, path) from error
    if len(tags) > _MAX_TAGS:
        raise _invalid_member(path, f"has {len(tags)} tags: give {_MAX_TAGS} or fewer")
    for name, text in tags.items():
        if not name.strip() or len(name) > _MAX_TAG_NAME or len(text) > _MAX_TAG_VALUE:
            limits = f"a name of 1 to {_MAX_TAG_NAME} characters and a value of up to {_MAX_TAG_VALUE}"
            raise _invalid_member((*path, name), f"is not a valid tag: give {limits}")
    if len({name.casefold() for name in tags}) < len(tags):
        raise _invalid_member(path, "has two names that differ only in case: tag names ignore case, give one of them")
    return tags


def _notice_minutes(notice: _NotificationProfile, path: MemberPath, shortest: int, longest: int) -> int:
    """The notice in minutes, 0 if it is off. A timeout without `enable` is on, since `az` sends that."""
    timeout = notice.not_before_timeout
    minutes = shortest if timeout is None else _whole_minutes(timeout)
    if minutes is None or not shortest <= minutes <= longest:
        allowed = f"PT{shortest}M" if shortest == longest else f"PT{shortest}M to PT{longest}M, in whole minutes"
        raise _invalid_member(path, f"is {_json_text(timeout)}: give {allowed}")
    enable = timeout is not None if notice.enable is None else notice.enable
    return minutes if enable else 0


def _whole_minutes(text: str) -> int | None:
    """The minutes of an ISO 8601 duration such as `PT5M` or `PT300S`; None if it is not in whole minutes."""
    match = _ISO_DURATION.fullmatch(text)
    parts = {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    seconds = sum(_SECONDS_PER_UNIT[unit] * number for unit, number in parts.items())
    return seconds // 60 if parts and seconds % 60 == 0 else None


def _convert(value: Any, part_type: type[T], path: MemberPath) -> T:
    try:
        return msgspec.convert(_drop_empty(value), part_type)
    except msgspec.ValidationError as error:
        raise _invalid_value(error, path) from error


def _invalid_value(error: msgspec.ValidationError, path: MemberPath) -> Exception:
    where, what = split_validation_error(error)
    return _invalid_member((*path, where) if where else path, f"is not valid: {_truncate_text(what)}")


def _drop_empty(value: Any) -> Any:
    """The value without empty members."""
    if not isinstance(value, dict):
        return {} if value is None else value
    return {name: _drop_empty(text) for name, text in value.items() if not is_empty_value(text) or text == []}


# The api-versions that Azure has published per provider, checked only with `strict_api_versions`.
#
# Otherwise every version is accepted. In strict mode a member is rejected in versions that are older than it.

# Newest first: versions that Azure published since 2015 and clients of 2019 and later send.
_COMPUTE_VERSIONS = (
    "2026-04-01", "2026-03-01", "2025-11-01", "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2023-09-01",
    "2023-07-01", "2023-03-01", "2022-11-01", "2022-08-01", "2022-03-01", "2021-11-01", "2021-07-01", "2021-04-01",
    "2021-03-01", "2020-12-01", "2020-06-01", "2019-12-01", "2019-07-01", "2019-03-01", "2018-10-01", "2018-06-01",
    "2018-04-01", "2017-12-01", "2017-03-30", "2016-03-30", "2015-06-15",
)  # fmt: skip
_MAINTENANCE_VERSIONS = (
    "2025-11-01", "2025-10-01-preview", "2023-10-01-preview", "2023-09-01-preview", "2023-04-01", "2022-11-01-preview",
    "2022-07-01-preview", "2021-09-01-preview", "2021-05-01", "2021-04-01-preview", "2020-07-01-preview", "2020-04-01",
    "2018-06-01-preview",
)  # fmt: skip
_RESOURCES_VERSIONS = (
    "2025-04-01", "2024-11-01", "2024-07-01", "2024-03-01", "2023-07-01", "2022-12-01", "2022-09-01", "2021-04-01",
    "2021-01-01", "2020-10-01", "2020-06-01", "2020-01-01", "2019-11-01", "2019-10-01", "2019-06-01", "2018-05-01",
    "2018-02-01", "2016-06-01", "2015-11-01", "2015-01-01",
)  # fmt: skip
_VERSIONS_BY_PROVIDER = {"microsoft.compute": _COMPUTE_VERSIONS, "microsoft.maintenance": _MAINTENANCE_VERSIONS}
_LISTED_IN_ERRORS = 5
_MEMBER_SINCE = {
    "scheduledEventsProfile": ("2019-03-01", "VirtualMachineProfile"),
    "scheduledEventsPolicy": ("2024-03-01", "VirtualMachineProperties"),
}


def require_known_version(version: str, path: str) -> None:
    """Raise ArmError 400 unless Azure published this api-version for the provider of a request's path.

    Call it only if the service has `strict_api_versions` on; otherwise every version is accepted.
    """
    provider = path.casefold().rpartition("/providers/")[2].partition("/")[0]
    known = _VERSIONS_BY_PROVIDER.get(provider, _RESOURCES_VERSIONS)
    examples = (
        f"{', '.join(known[:_LISTED_IN_ERRORS])} or one of {len(known) - _LISTED_IN_ERRORS} before"
        if len(known) > _LISTED_IN_ERRORS
        else ", ".join(known)
    )
    if not version:
        message = f"the query has no api-version, and this service requires one: give {examples}"
        raise ArmError(400, "MissingApiVersionParameter", message)
    if version.casefold() not in known:
        message = f"api-version {version[:40]!r} is not known for {path[:200]!r}: give {examples}"
        raise ArmError(400, "InvalidApiVersionParameter", message)


def require_member_supported(version: str, path: MemberPath, sent: Any) -> None:
    """Raise ArmError 400, as Azure does, for a member of a body that is newer than the call's api-version."""
    since, owner = _MEMBER_SINCE[path[-1]]
    if sent is MISSING or is_empty_value(sent) or version >= since:
        return
    message = f"Could not find member '{path[-1]}' on object of type '{owner}': it exists since api-version {since}"
    raise ArmError(400, "BadRequest", message, target=".".join(path))


_TAGS_PATH: MemberPath = ("tags",)
_PROFILE_PATH: MemberPath = ("properties", "scheduledEventsProfile")
_SET_PROFILE_PATH: MemberPath = ("properties", "virtualMachineProfile", "scheduledEventsProfile")
_POLICY_PATH: MemberPath = ("properties", "scheduledEventsPolicy")


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpdateTarget:
    """The resource of an update: all its VMs, and what a GET shows of it without instance view."""

    vms: Sequence[Vm]  # at least one; of a set all, also those that the caller may not read
    rendered: JsonObject  # before the update
    display_name: str  # for the history


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpdatableKind:
    """A kind of resource that PUT and PATCH change: VM, instance, scale set or availability set."""

    find: Callable[[RequestContext, ArmCall], _UpdateTarget]  # the called resource; raises ResourceAbsent
    profile: MemberPath | None = None  # where its scheduledEventsProfile is in the body; None: it has none
    policy: MemberPath | None = None  # where its scheduledEventsPolicy is in the body; None: it has none

    @property
    def changeable_paths(self) -> frozenset[MemberPath]:
        """The paths of the members that an update may change: the tags, and profile and policy if it has them."""
        return frozenset(path for path in (_TAGS_PATH, self.profile, self.policy) if path is not None)


def _vm_target(context: RequestContext, call: ArmCall) -> _UpdateTarget:
    vm = find_vm(context, call)
    return _UpdateTarget(vms=[vm], rendered=vm_json(vm), display_name=vm.name)


def _instance_target(context: RequestContext, call: ArmCall) -> _UpdateTarget:
    vm = find_instance(context, call)
    return _UpdateTarget(vms=[vm], rendered=instance_json(vm), display_name=vm.name)


def _scale_set_target(context: RequestContext, call: ArmCall) -> _UpdateTarget:
    vms = all_vms_in(context, call.resource)
    if not vms:
        raise _set_not_found(call, "scale set")
    return _UpdateTarget(vms=vms, rendered=scale_set_json(vms), display_name=vms[0].scale_set)


def _availability_set_target(context: RequestContext, call: ArmCall) -> _UpdateTarget:
    vms = all_vms_in(context, call.resource)
    if not vms:
        raise _set_not_found(call, "availability set")
    rendered = availability_set_json(vms, [vm for vm in vms if context.can_see(vm)])
    return _UpdateTarget(vms=vms, rendered=rendered, display_name=vms[0].availability_set)


def _set_not_found(call: ArmCall, kind: str) -> ResourceAbsent:
    group = call.path_params["group"]
    remedy = f"`az {'vmss' if kind == 'scale set' else 'vm availability-set'} list -g {group}` lists them"
    return ResourceAbsent(f"{kind} {call.path_params['set']!r} does not exist in resource group {group!r}: {remedy}")


def _find_target(kind: _UpdatableKind, context: RequestContext, call: ArmCall) -> _UpdateTarget:
    try:
        return kind.find(context, call)
    except ResourceAbsent as error:
        if call.method != "PUT":
            raise
        remedy = "add it with a fleet file (`forewarn fleet apply`) or with `forewarn fleet add`"
        raise ResourceAbsent(f"{error}, and a PUT does not create it: {remedy}") from error


_VM_KIND = _UpdatableKind(find=_vm_target, profile=_PROFILE_PATH, policy=_POLICY_PATH)
_INSTANCE_KIND = _UpdatableKind(find=_instance_target)
_SCALE_SET_KIND = _UpdatableKind(find=_scale_set_target, profile=_SET_PROFILE_PATH, policy=_POLICY_PATH)
_AVAILABILITY_SET_KIND = _UpdatableKind(find=_availability_set_target, policy=_POLICY_PATH)


def _update_handler(kind: _UpdatableKind) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        target = _find_target(kind, context, call)
        try:
            change = _read_change(kind, target, call, context.dependencies.strict_api_versions)
        except RecursionError as error:
            raise Rejected("the body is nested too deeply: send fewer levels") from error
        await context.control.fleet.update_settings(
            target.vms, change, label=target.display_name, who=context.caller_name
        )
        return ArmResponse(body=kind.find(context, call).rendered)

    return handler


def _read_change(kind: _UpdatableKind, target: _UpdateTarget, call: ArmCall, strict: bool) -> VmSettingsChange:
    """The change that the body describes."""
    sent, is_whole = _read_object(call), call.method == "PUT"
    if is_whole and not sent.get("location"):
        raise ArmError(400, "LocationRequired", "location is missing: send the whole resource, or PATCH it", "location")
    require_unchanged(sent, target.rendered, kind.changeable_paths)

    fields: dict[str, Any] = _tag_changes(sent, target.rendered["tags"], is_whole)
    for path, read in ((kind.profile, read_profile), (kind.policy, read_policy)):
        if path is not None and (is_whole or member_at(sent, path) is not MISSING):
            if strict:
                require_member_supported(call.api_version, path, member_at(sent, path))
            new = read(_target_value(sent, target.rendered, path, is_whole), path)
            fields |= _changed_fields(new, target.vms[:1] if is_whole else target.vms)
    return VmSettingsChange(**fields)


def _read_object(call: ArmCall) -> JsonObject:
    try:
        return msgspec.json.decode(call.body or b"{}", type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise Rejected(f"the body is not valid: {split_validation_error(error)[1]}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"the body is not JSON ({error}): send an object such as {{}}") from error


def _target_value(sent: JsonObject, rendered: JsonObject, path: MemberPath, is_whole: bool) -> Any:
    """The new value of a member: a PUT removes what it leaves out, a PATCH keeps it."""
    new, old = member_at(sent, path), member_at(rendered, path)
    if is_whole:
        return None if new is MISSING else new
    return merge_patch(None if old is MISSING else old, new)


def _changed_fields(new: VmSettingsChange, vms: Sequence[Vm]) -> dict[str, Any]:
    # For a PUT the caller passes only the first VM: sending back what a GET showed must change nothing, even in a set
    # whose VMs differ.
    settings = [current_settings(vm) for vm in vms]
    return {
        name: value
        for name, value in asdict(new).items()
        if value not in (None, ()) and any(getattr(current, name) != value for current in settings)
    }


def _tag_changes(sent: JsonObject, old: dict[str, str], is_whole: bool) -> dict[str, Any]:
    """The change of tags; a PATCH replaces all of them too."""
    new = member_at(sent, _TAGS_PATH)
    if new == old or (new is MISSING and not is_whole):
        return {}
    tags = read_tags(None if new is MISSING else new, _TAGS_PATH)
    return {} if tags == old else {"tags": tags, "untagged": tuple(old)}


def authorize_set_and_vms(context: RequestContext, call: ArmCall, right: Right) -> None:
    """Raise Forbidden unless the caller has the right over the called resource and each VM of its set.

    The ids of the set's VMs are not below its own, so the right over the set does not include them.
    """
    require_on_resource(context, call, right)
    set_id = AVAILABILITY_SET_PATH.format_map(call.path_params)
    if not context.principal.may_all(right, map(vm_resource_id, all_vms_in(context, set_id))):
        raise Forbidden(f"{context.caller_name} does not have the right to {right} over every VM of {set_id}")


def _update_routes(
    path: str,
    kind: _UpdatableKind,
    noun: str,
    authorize: ArmAuthorizer = require_on_resource,
    methods: Sequence[str] = ("PUT", "PATCH"),
) -> tuple[ArmRoute, ...]:
    summary = f"changes the settings of {noun}"
    return tuple(ArmRoute(method, path, _update_handler(kind), Right.OPERATE, authorize, summary) for method in methods)


ROUTES: tuple[ArmRoute, ...] = (
    *_update_routes(VM_PATH, _VM_KIND, "a VM"),
    *_update_routes(SCALE_SET_PATH, _SCALE_SET_KIND, "a scale set", authorize_scale_set),
    *_update_routes(INSTANCE_PATH, _INSTANCE_KIND, "an instance", methods=("PUT",)),
    *_update_routes(AVAILABILITY_SET_PATH, _AVAILABILITY_SET_KIND, "an availability set", authorize_set_and_vms),
)
