"""Reading VMs, scale sets and availability sets, in pages.

Only VMs are stored. A set exists as long as it has a VM.
"""

from __future__ import annotations

import re

from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.errors import NotFound, Rejected
from forewarn.web.arm.containers import ROUTES as CONTAINER_ROUTES
from forewarn.web.arm.containers import paged_response, require_container, stored_vm
from forewarn.web.arm.rendering import (
    JsonObject,
    availability_set_json,
    flexible_instance_json,
    instance_json,
    instance_view,
    scale_set_instance_view,
    scale_set_json,
    vm_json,
)
from forewarn.web.arm.routing import (
    AVAILABILITY_SET_PATH,
    COMPUTE_PROVIDER,
    GROUP_PATH,
    INSTANCE_PATH,
    SCALE_SET_PATH,
    SUBSCRIPTION_PATH,
    VM_PATH,
    ArmCall,
    ArmResponse,
    ArmRoute,
    allow_listing,
)
from forewarn.web.arm.targets import find_instance, find_vm, require_uniform
from forewarn.web.context import RequestContext

SET_PAGE_SIZE = 10  # smaller, since all VMs of a set are read to render it
_SCALE_SET_FILTER = re.compile(r"'?virtualMachineScaleSet/id'?\s+eq\s+'?(?P<id>/[^'\s]+)'?", re.IGNORECASE)
_VMS_SEGMENT = f"{COMPUTE_PROVIDER}/virtualMachines"
_SCALE_SETS_SEGMENT = f"{COMPUTE_PROVIDER}/virtualMachineScaleSets"
_AVAILABILITY_SETS_SEGMENT = f"{COMPUTE_PROVIDER}/availabilitySets"
_INSTANCES_PATH = f"{SCALE_SET_PATH}/virtualMachines"


class _VmRenderer:
    """Renders stored VMs as Azure's JSON; make one for each call, since it caches the events of scopes."""

    def __init__(self, context: RequestContext, call: ArmCall) -> None:
        self._store = context.store
        self._events: dict[str, list[Event]] = {}
        expanded = call.query.get("$expand", "").casefold().split(",")
        self.with_view = "instanceview" in expanded or call.query.get("statusOnly", "").casefold() == "true"

    def vm(self, vm: Vm) -> JsonObject:
        """The resource of a VM that is no instance of a uniform set, with its view if the query asks for it."""
        return vm_json(vm, self._view_if_requested(vm))

    def instance(self, vm: Vm) -> JsonObject:
        """The resource of an instance of a scale set, with its instance view if the query asks for it."""
        return flexible_instance_json(vm) if vm.is_flexible else instance_json(vm, self._view_if_requested(vm))

    def instance_view(self, vm: Vm) -> JsonObject:
        """The instance view alone, of a VM or of an instance of a scale set, whatever the query says."""
        return instance_view(vm, self._live_events(vm.scope_id))

    def _view_if_requested(self, vm: Vm) -> JsonObject | None:
        return self.instance_view(vm) if self.with_view else None

    def _live_events(self, scope_id: str) -> list[Event]:
        if scope_id not in self._events:
            live = self._store.events(scope_id=scope_id, statuses=[EventState.SCHEDULED, EventState.STARTED])
            self._events[scope_id] = live
        return self._events[scope_id]


async def list_vms(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the VMs of the path's subscription or group that the caller may read, in pages of 100."""
    require_container(context, call)
    keys = [vm.key for vm in context.directory.vms_within(call.resource) if vm.is_standalone]
    if (scale_set := _filtered_scale_set(call)) is not None:
        members = {vm.key for vm in context.directory.vms_within(scale_set)}
        keys = [key for key in keys if key in members]
    renderer = _VmRenderer(context, call)
    return paged_response(call, keys, lambda key: renderer.vm(stored_vm(context, key)))


def _filtered_scale_set(call: ArmCall) -> str | None:
    text = call.query.get("$filter", "")
    if "virtualmachinescaleset" not in text.casefold():
        return None
    match = _SCALE_SET_FILTER.fullmatch(text.strip())
    if match is None:
        raise Rejected(
            f"$filter {text[:100]!r} is not supported: give \"'virtualMachineScaleSet/id' eq 'ID'\" with the id of a "
            "scale set, or leave it out"
        )
    return match["id"]


async def show_vm(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the VM that the path names: 200 with its Azure resource."""
    return ArmResponse(body=_VmRenderer(context, call).vm(find_vm(context, call)))


async def show_vm_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the instance view of the VM that the path names: power state, domains, pending maintenance."""
    return ArmResponse(body=_VmRenderer(context, call).instance_view(find_vm(context, call)))


_VM_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{_VMS_SEGMENT}",
        list_vms,
        authorize=allow_listing,
        summary="lists VMs of a subscription",
    ),
    ArmRoute(
        "GET",
        f"{GROUP_PATH}/{_VMS_SEGMENT}",
        list_vms,
        authorize=allow_listing,
        summary="lists VMs of a resource group",
    ),
    ArmRoute("GET", VM_PATH, show_vm, summary="shows a VM"),
    ArmRoute("GET", f"{VM_PATH}/instanceView", show_vm_view, summary="shows the current state of a VM"),
)


def _sets_of_kind(context: RequestContext, call: ArmCall, segment: str) -> list[str]:
    wanted = f"/{segment}/".casefold()
    return [set_id for set_id in context.directory.sets_within(call.resource) if wanted in set_id.casefold()]


async def list_scale_sets(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the scale sets of the path's subscription or group that the caller may read, in pages of ten."""
    require_container(context, call)
    sets = _sets_of_kind(context, call, _SCALE_SETS_SEGMENT)
    return paged_response(call, sets, lambda resource: scale_set_json(all_vms_in(context, resource)), SET_PAGE_SIZE)


async def show_scale_set(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the scale set that the path names: 200 with its Azure resource."""
    return ArmResponse(body=scale_set_json(_scale_set_vms(context, call)))


async def show_scale_set_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the instance view of a scale set: how many of all its instances have each status."""
    require_uniform(context, call)
    return ArmResponse(body=scale_set_instance_view(_scale_set_vms(context, call)))


async def list_instances(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the instances of the path's scale set that the caller may read, in pages of 100."""
    renderer = _VmRenderer(context, call)
    if renderer.with_view:
        require_uniform(context, call)
    instances = context.directory.vms_within(call.resource)
    if not context.directory.unfiltered.has_vms_in(call.resource) and context.principal.may(Right.READ, call.resource):
        raise _scale_set_not_found(call)
    return paged_response(call, [vm.key for vm in instances], lambda key: renderer.instance(stored_vm(context, key)))


async def show_instance(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the instance of a uniform scale set that the path names: 200 with its Azure resource."""
    return ArmResponse(body=_VmRenderer(context, call).instance(find_instance(context, call)))


async def show_instance_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the instance view of the path's scale set instance: power state, domains, pending maintenance."""
    return ArmResponse(body=_VmRenderer(context, call).instance_view(find_instance(context, call)))


def all_vms_in(context: RequestContext, resource: str) -> list[Vm]:
    """Return all present VMs of the set with this resource id, in natural order.

    It includes VMs that the caller may not read: a set that the caller may read is shown as a whole.
    """
    return [stored_vm(context, vm.key) for vm in context.directory.unfiltered.vms_within(resource)]


def _scale_set_vms(context: RequestContext, call: ArmCall) -> list[Vm]:
    if vms := all_vms_in(context, call.resource):
        return vms
    raise _scale_set_not_found(call)


def _scale_set_not_found(call: ArmCall) -> NotFound:
    name, group = call.path_params["set"], call.path_params["group"]
    return NotFound(
        f"scale set {name!r} does not exist in resource group {group!r}: `az vmss list -g {group}` lists the scale sets"
    )


_SCALE_SET_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{_SCALE_SETS_SEGMENT}",
        list_scale_sets,
        authorize=allow_listing,
        summary="lists scale sets of a subscription",
    ),
    ArmRoute(
        "GET",
        f"{GROUP_PATH}/{_SCALE_SETS_SEGMENT}",
        list_scale_sets,
        authorize=allow_listing,
        summary="lists scale sets of a resource group",
    ),
    ArmRoute("GET", SCALE_SET_PATH, show_scale_set, summary="shows a scale set"),
    ArmRoute(
        "GET",
        f"{SCALE_SET_PATH}/instanceView",
        show_scale_set_view,
        summary="shows the current state of a scale set",
    ),
    ArmRoute("GET", _INSTANCES_PATH, list_instances, authorize=allow_listing, summary="lists instances of a scale set"),
    ArmRoute("GET", INSTANCE_PATH, show_instance, summary="shows an instance"),
    ArmRoute(
        "GET", f"{INSTANCE_PATH}/instanceView", show_instance_view, summary="shows the current state of an instance"
    ),
)


async def list_availability_sets(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the availability sets of the path's subscription or group that the caller may read."""
    require_container(context, call)
    sets = _sets_of_kind(context, call, _AVAILABILITY_SETS_SEGMENT)
    return paged_response(call, sets, lambda resource: _visible_availability_set_json(context, resource), SET_PAGE_SIZE)


async def show_availability_set(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the availability set that the path names, with the VMs in it that the caller may read."""
    if not context.directory.unfiltered.has_vms_in(call.resource):
        raise NotFound(
            f"availability set {call.path_params['set']!r} does not exist in resource group "
            f"{call.path_params['group']!r}: "
            f"`az vm availability-set list -g {call.path_params['group']}` lists them"
        )
    return ArmResponse(body=_visible_availability_set_json(context, call.resource))


def _visible_availability_set_json(context: RequestContext, resource: str) -> JsonObject:
    vms = all_vms_in(context, resource)
    return availability_set_json(vms, [vm for vm in vms if context.can_see(vm)])


_AVAILABILITY_SET_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{_AVAILABILITY_SETS_SEGMENT}",
        list_availability_sets,
        authorize=allow_listing,
        summary="lists availability sets of a subscription",
    ),
    ArmRoute(
        "GET",
        f"{GROUP_PATH}/{_AVAILABILITY_SETS_SEGMENT}",
        list_availability_sets,
        authorize=allow_listing,
        summary="lists availability sets of a resource group",
    ),
    ArmRoute("GET", AVAILABILITY_SET_PATH, show_availability_set, summary="shows an availability set"),
)

ROUTES: tuple[ArmRoute, ...] = (*CONTAINER_ROUTES, *_VM_ROUTES, *_SCALE_SET_ROUTES, *_AVAILABILITY_SET_ROUTES)
