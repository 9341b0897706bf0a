"""PUT and PATCH of VMs and sets: tags, scheduled events profile and policy.

Both change the settings at once, and answer with what a GET shows then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import asdict

from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.core.resource_ids import vm_resource_id
from forewarn.core.vm_settings import VmSettingsChange, current_settings
from forewarn.errors import Forbidden, Rejected
from forewarn.web.arm.api_versions import require_member_supported
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
from forewarn.web.arm.update_body import (
    MISSING,
    MemberPath,
    member_at,
    merge_patch,
    read_policy,
    read_profile,
    read_tags,
    require_unchanged,
)
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import split_validation_error

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
