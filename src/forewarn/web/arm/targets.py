"""Finds the VMs that an ARM call is about: a VM, or one, some or all instances of a scale set."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from forewarn.core.access import Right
from forewarn.core.fleet import Vm, vm_key
from forewarn.core.resource_ids import group_resource_id, scale_set_instance_id, vm_resource_id
from forewarn.errors import Forbidden, NotFound, Rejected
from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.routing import ArmCall
from forewarn.web.context import RequestContext
from forewarn.web.request_parsing import HandlerCall

ALL_INSTANCES = "*"  # in a list of instance ids: all instances
T = TypeVar("T", bound=msgspec.Struct)


class ResourceAbsent(NotFound):
    """The called VM, instance or set does not exist, or the caller may not know of it.

    A DELETE answers it with 204, since there is nothing to delete; other calls with 404.
    """


class ArmEmptyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call without parameters: empty, or an empty object; any member is an error."""


class ReimageBody(ArmEmptyBody, frozen=True, kw_only=True):
    """The body of a reimage of a VM; its members are accepted without effect, since there are no images.

    Other members are an error.
    """

    temp_disk: bool | None = msgspec.field(name="tempDisk", default=None)  # without effect, like the other members
    exact_version: str | None = msgspec.field(name="exactVersion", default=None)
    os_profile: dict[str, Any] | None = msgspec.field(name="osProfile", default=None)
    ephemeral: bool | None = msgspec.field(name="forceUpdateOSDiskForEphemeral", default=None)


class InstanceIdsBody(ArmEmptyBody, frozen=True, kw_only=True):
    """The body of a call for some instances of a scale set, or for all without ids or with `["*"]`."""

    ids: tuple[str, ...] | None = msgspec.field(name="instanceIds", default=None)  # of instances; None: left out


class ReimageInstancesBody(ReimageBody, frozen=True, kw_only=True):
    """The body of a reimage of some instances of a scale set, or of all without ids or with `["*"]`.

    Also has the members of ReimageBody, which have no effect.
    """

    ids: tuple[str, ...] | None = msgspec.field(name="instanceIds", default=None)  # of instances; None: left out


class RequiredInstanceIdsBody(ArmEmptyBody, frozen=True, kw_only=True):
    """The body of a call, such as delete, that must name instances of a scale set; `["*"]` means all."""

    ids: tuple[str, ...] = msgspec.field(name="instanceIds")  # as the client sent them


def parse_arm_body(call: ArmCall, body_type: type[T]) -> T:
    """Return the JSON body of a call as this struct; an empty body counts as {}."""
    try:
        return HandlerCall(body=call.body).parse_body(body_type)
    except RecursionError as error:
        raise Rejected("the body is nested too deeply: send fewer levels") from error


def find_vm(context: RequestContext, call: ArmCall) -> Vm:
    """Return the present VM that the path names by subscription, group and name, ignoring letter case."""
    name, group = call.path_params["vm"], call.path_params["group"]
    vm = context.store.vm(vm_key(call.path_params["subscription"], group, name))
    if (
        vm is None
        or vm.removed_at is not None
        or vm.cloud_service
        or (vm.is_uniform_instance and not context.can_see(vm))
    ):
        raise ResourceAbsent(
            f"VM {name!r} does not exist in resource group {group!r}: `az vm list -g {group}` lists the VMs"
        )
    if vm.is_uniform_instance:
        raise NotFound(f"VM {name!r} is an instance of scale set {vm.scale_set!r}: call {vm_resource_id(vm)}")
    return vm


def find_instance(context: RequestContext, call: ArmCall) -> Vm:
    """Return the present instance of a uniform scale set that the path names.

    Never returns a VM of a flexible set: the path is below the set, and a right over the set is not a right over the
    VM.
    """
    require_uniform(context, call)
    wanted = call.path_params["instance"]
    vm = _find_instance_by_id(context, call, wanted)
    if not vm.is_uniform_instance:
        raise _instance_absent(call, wanted)
    return vm


def selects_all_instances(ids: tuple[str, ...] | None) -> bool:
    """Return whether the instance ids of a body mean all instances: they are None or only `*`."""
    return ids is None or ids == (ALL_INSTANCES,)


def find_instances(context: RequestContext, call: ArmCall, ids: tuple[str, ...]) -> list[Vm]:
    """Return the present instances of the path's scale set with these ids, each once, in their order.

    Call `selects_all_instances` first: `*` is refused here. Rights are not checked.
    """
    if not ids:
        raise Rejected(
            f"instanceIds is empty: name instances by their ids, or give [{ALL_INSTANCES!r}] for all of them"
        )
    if ALL_INSTANCES in ids:
        raise Rejected(f"instanceIds has {ALL_INSTANCES!r} beside other ids: give it alone")
    return list({vm.key: vm for vm in (_find_instance_by_id(context, call, wanted) for wanted in ids)}.values())


def all_instances(context: RequestContext, call: ArmCall) -> list[Vm]:
    """Return the present instances of the path's scale set that the caller may read, in natural order."""
    stored = (context.store.vm(indexed.key) for indexed in context.directory.vms_within(_scale_set_id(call)))
    vms = [vm for vm in stored if vm is not None]
    if not vms:
        names = call.path_params
        raise ResourceAbsent(
            f"scale set {names['set']!r} does not exist in resource group {names['group']!r}: "
            f"`az vmss list -g {names['group']}` lists the scale sets"
        )
    return vms


def _scale_set_id(call: ArmCall) -> str:
    """The resource id of the scale set that the path names, in the client's spelling."""
    group = group_resource_id(call.path_params["subscription"], call.path_params["group"])
    return f"{group}/providers/Microsoft.Compute/virtualMachineScaleSets/{call.path_params['set']}"


def _find_instance_by_id(context: RequestContext, call: ArmCall, wanted: str) -> Vm:
    names = call.path_params
    for name in (f"{names['set']}_{wanted}", wanted):
        vm = context.store.vm(vm_key(names["subscription"], names["group"], name))
        if vm is not None and vm.removed_at is None and _is_instance(vm, names["set"], wanted):
            return vm
    raise _instance_absent(call, wanted)


def _instance_absent(call: ArmCall, wanted: str) -> ResourceAbsent:
    names = call.path_params
    return ResourceAbsent(
        f"scale set {names['set']!r} has no instance {wanted!r}: "
        f"`az vmss list-instances -g {names['group']} -n {names['set']}` lists them"
    )


def _is_instance(vm: Vm, scale_set: str, wanted: str) -> bool:
    return vm.scale_set.casefold() == scale_set.casefold() and scale_set_instance_id(vm).casefold() == wanted.casefold()


def require_uniform(context: RequestContext, call: ArmCall) -> None:
    """Raise ArmError 400, as Azure does, if the path's scale set is flexible: clients must call its VMs."""
    set_id = _scale_set_id(call)
    resources = _flexible_vm_resources(context, call)
    if not resources or not (context.directory.can_read(set_id) or context.directory.vms_within(set_id)):
        return
    below = call.path.split("/")[9:]  # after /subscriptions/…/virtualMachineScaleSets/NAME
    if len(below) > 1 and below[0].casefold() == "virtualmachines":
        del below[1]  # the id of the instance
    operation = ".".join(["VirtualMachineScaleSets", *below, call.method])
    group = resources[0].rpartition("/providers/")[0]
    raise ArmError(
        400,
        "BadRequest",
        f"Operation '{operation}' is not allowed on Virtual Machine Scale Set '{call.path_params['set']}', which has "
        f"flexible orchestration: call its VMs, {group}/providers/Microsoft.Compute/virtualMachines/NAME",
    )


def _flexible_vm_resources(context: RequestContext, call: ArmCall) -> list[str]:
    """The resource ids of all VMs of the path's flexible set, readable or not; empty for any other set."""
    vms = context.directory.unfiltered.vms_within(_scale_set_id(call))
    return [vm.resource for vm in vms] if vms and vms[0].is_standalone else []


def authorize_scale_set(context: RequestContext, call: ArmCall, right: Right) -> None:
    """Raise Forbidden unless the caller has the right over the called resource and a flexible set's VMs.

    The ids of a flexible set's VMs are not below its own, so the right over the set does not include them.
    """
    context.require(right, call.resource)
    if not context.principal.may_all(right, _flexible_vm_resources(context, call)):
        raise Forbidden(
            f"{context.caller_name} does not have the right to {right} over every VM of {_scale_set_id(call)}"
        )


def authorize_instances(context: RequestContext, call: ArmCall, right: Right) -> None:
    """Raise Forbidden unless the caller has the right over the scale set or each instance in the body.

    A body that is invalid, or names no instances or `*`, needs the right over the scale set; the handler reports what
    is wrong in it. In a flexible set, the right over each named VM is needed.
    """
    ids = _instance_ids_in_body(call)
    if _flexible_vm_resources(context, call):
        if not ids or ALL_INSTANCES in ids:
            authorize_scale_set(context, call, right)
            return
        group = call.resource.rpartition("/virtualMachineScaleSets/")[0]
        for name in ids:
            context.require(right, f"{group}/virtualMachines/{name}")
        return
    if context.principal.may(right, call.resource):
        return
    if not ids or ALL_INSTANCES in ids:
        context.require(right, call.resource)
    for instance_id in ids:
        context.require(right, f"{call.resource}/virtualMachines/{instance_id}")


def _instance_ids_in_body(call: ArmCall) -> tuple[str, ...]:
    try:
        return parse_arm_body(call, ReimageInstancesBody).ids or ()
    except Rejected:
        return ()  # only a caller with the right learns that the body is invalid, from the handler
