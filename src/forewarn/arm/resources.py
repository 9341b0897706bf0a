"""Reading resources: tenant, subscriptions, groups, VMs, scale sets and availability sets, in pages.

Only VMs are stored. A group or set exists as long as it has a VM.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode

from forewarn.arm.errors import ArmError
from forewarn.arm.rendering import (
    JsonObject,
    availability_set_json,
    instance_json,
    instance_view,
    scale_set_instance_view,
    scale_set_json,
    vm_json,
)
from forewarn.arm.routing import ArmCall, ArmResponse, ArmRoute, allow_listing
from forewarn.arm.targets import find_instance, find_vm
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.errors import NotFound, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.directory import NaturalSortKey, natural_sort_key

PAGE_SIZE = 100
SET_PAGE_SIZE = 10  # to show one, all its VMs are read
_SKIP_TOKEN = "$skiptoken"


def paged_response(
    call: ArmCall, names: Sequence[str], show: Callable[[str], JsonObject], most: int = PAGE_SIZE
) -> ArmResponse:
    """One piece of what is called so, in the order of lists."""
    start = bisect_right(names, _page_start_key(call), key=natural_sort_key)
    piece = names[start : start + most]
    body: JsonObject = {"value": [show(name) for name in piece]}
    if start + most < len(names):
        body["nextLink"] = _next_link(call, piece[-1])
    return ArmResponse(body=body)


def _page_start_key(call: ArmCall) -> NaturalSortKey:
    token = call.query.get(_SKIP_TOKEN, "")
    try:
        return natural_sort_key(base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode())
    except (binascii.Error, ValueError):
        raise Rejected(f"{_SKIP_TOKEN} {token[:100]!r} is not from a nextLink of ours: begin without it") from None


def _next_link(call: ArmCall, last: str) -> str:
    token = base64.urlsafe_b64encode(last.encode()).decode()
    return f"{call.base_url}{quote(call.path)}?{urlencode({**call.query, _SKIP_TOKEN: token})}"


SUBSCRIPTION_PATH = "/subscriptions/{subscription}"
GROUP_PATH = f"{SUBSCRIPTION_PATH}/resourceGroups/{{group}}"
COMPUTE_PROVIDER = "providers/Microsoft.Compute"


def require_container(context: RequestContext, call: ArmCall) -> None:
    """What a list is of; for those who may know. Others are shown an empty list, whether it exists or not."""
    if context.directory.unfiltered.has_vms_in(call.resource) or not context.principal.may(Right.READ, call.resource):
        return
    if "group" in call.path_params:
        group = call.path_params["group"]
        raise ArmError(
            404, "ResourceGroupNotFound", f"resource group {group!r} has no VM: `az group list` lists the groups"
        )
    raise _subscription_not_found(call)


def stored_vm(context: RequestContext, key: str) -> Vm:
    """A VM that the register lists, so that it is stored."""
    vm = context.store.vm(key)
    assert vm is not None
    return vm


async def list_tenants(context: RequestContext, call: ArmCall) -> ArmResponse:
    tenant = _tenant_id(context)
    shown = {"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "forewarn", "tenantCategory": "Home"}
    return ArmResponse(body={"value": [shown] if tenant else []})


async def list_subscriptions(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body={"value": [_subscription_json(context, one) for one in _visible_subscriptions(context)]})


async def show_subscription(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=_subscription_json(context, _visible_subscription(context, call)))


async def list_locations(context: RequestContext, call: ArmCall) -> ArmResponse:
    resource = f"/subscriptions/{_visible_subscription(context, call)}"
    names = sorted({host.location for host in context.store.hosts()})
    return ArmResponse(body={"value": [_location_json(resource, name) for name in names]})


async def list_groups(context: RequestContext, call: ArmCall) -> ArmResponse:
    above = f"{call.resource}/".casefold()
    groups = [group for group in context.directory.groups() if group.casefold().startswith(above)]
    if not groups:
        require_container(context, call)
    return paged_response(call, groups, lambda group: _group_json(context, group))


async def show_group(context: RequestContext, call: ArmCall) -> ArmResponse:
    require_container(context, call)
    spelled = {group.casefold(): group for group in context.directory.groups()}
    return ArmResponse(body=_group_json(context, spelled[call.resource.casefold()]))


def _visible_subscriptions(context: RequestContext) -> list[str]:
    """Those that hold anything that the caller may read."""
    every = dict.fromkeys(group.split("/")[2] for group in context.directory.groups())
    return list({one.casefold(): one for one in every}.values())


def _visible_subscription(context: RequestContext, call: ArmCall) -> str:
    wanted = call.path_params["subscription"].casefold()
    for one in _visible_subscriptions(context):
        if one.casefold() == wanted:
            return one
    raise _subscription_not_found(call)


def _subscription_not_found(call: ArmCall) -> ArmError:
    name = call.path_params["subscription"]
    return ArmError(404, "SubscriptionNotFound", f"subscription {name!r} does not exist: `az account list` lists them")


def _subscription_json(context: RequestContext, subscription: str) -> JsonObject:
    tenant = _tenant_id(context)
    return {
        "id": f"/subscriptions/{subscription}",
        "subscriptionId": subscription,
        "displayName": subscription,
        "state": "Enabled",
        "authorizationSource": "RoleBased",
        **({"tenantId": tenant} if tenant else {}),
    }


def _tenant_id(context: RequestContext) -> str:
    return context.dependencies.sign_in.tenant_id if context.dependencies.sign_in is not None else ""


def _location_json(subscription: str, name: str) -> JsonObject:
    return {"id": f"{subscription}/locations/{name}", "name": name, "displayName": name, "type": "Region"}


def _group_json(context: RequestContext, resource: str) -> JsonObject:
    """A group has no location of its own: the first of its VMs tells one."""
    vm = stored_vm(context, context.directory.unfiltered.vms_within(resource)[0].key)
    return {
        "id": resource,
        "name": resource.rpartition("/")[2],
        "type": "Microsoft.Resources/resourceGroups",
        "location": vm.location,
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }


_CONTAINER_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", "/tenants", list_tenants, authorize=allow_listing, summary="the tenant"),
    ArmRoute("GET", "/subscriptions", list_subscriptions, authorize=allow_listing, summary="subscriptions"),
    ArmRoute("GET", SUBSCRIPTION_PATH, show_subscription, authorize=allow_listing, summary="a subscription"),
    ArmRoute(
        "GET", f"{SUBSCRIPTION_PATH}/locations", list_locations, authorize=allow_listing, summary="where hosts are"
    ),
    ArmRoute(
        "GET", f"{SUBSCRIPTION_PATH}/resourceGroups", list_groups, authorize=allow_listing, summary="resource groups"
    ),
    ArmRoute("GET", GROUP_PATH, show_group, summary="a resource group"),
)


class VmRenderer:
    """Shows VMs to one caller. The events of a scope are read once, and only where instance views are asked for."""

    def __init__(self, context: RequestContext, call: ArmCall) -> None:
        self._store = context.store
        self._events: dict[str, list[Event]] = {}
        expanded = call.query.get("$expand", "").casefold().split(",")
        self._with_view = "instanceview" in expanded or call.query.get("statusOnly", "").casefold() == "true"

    def vm(self, vm: Vm) -> JsonObject:
        return vm_json(vm, self._view_if_requested(vm))

    def instance(self, vm: Vm) -> JsonObject:
        return instance_json(vm, self._view_if_requested(vm))

    def instance_view(self, vm: Vm) -> JsonObject:
        return instance_view(vm, self._live_events(vm.scope_id))

    def _view_if_requested(self, vm: Vm) -> JsonObject | None:
        return self.instance_view(vm) if self._with_view else None

    def _live_events(self, scope_id: str) -> list[Event]:
        if scope_id not in self._events:
            live = self._store.events(scope_id=scope_id, statuses=[EventState.SCHEDULED, EventState.STARTED])
            self._events[scope_id] = live
        return self._events[scope_id]


async def list_vms(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Instances of scale sets are listed with their set."""
    require_container(context, call)
    alone = [one.key for one in context.directory.vms_within(call.resource) if one.is_standalone]
    renderer = VmRenderer(context, call)
    return paged_response(call, alone, lambda key: renderer.vm(stored_vm(context, key)))


async def show_vm(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=VmRenderer(context, call).vm(find_vm(context, call)))


async def show_vm_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=VmRenderer(context, call).instance_view(find_vm(context, call)))


_VMS_PATH = f"{COMPUTE_PROVIDER}/virtualMachines"
_VM_PATH = f"{GROUP_PATH}/{_VMS_PATH}/{{vm}}"

_VM_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET", f"{SUBSCRIPTION_PATH}/{_VMS_PATH}", list_vms, authorize=allow_listing, summary="VMs of a subscription"
    ),
    ArmRoute("GET", f"{GROUP_PATH}/{_VMS_PATH}", list_vms, authorize=allow_listing, summary="VMs of a resource group"),
    ArmRoute("GET", _VM_PATH, show_vm, summary="a VM"),
    ArmRoute("GET", f"{_VM_PATH}/instanceView", show_vm_view, summary="how a VM is just now"),
)

_SCALE_SET_SEGMENT = "/virtualMachineScaleSets/".casefold()


async def list_scale_sets(context: RequestContext, call: ArmCall) -> ArmResponse:
    require_container(context, call)
    sets = [one for one in context.directory.sets_within(call.resource) if _SCALE_SET_SEGMENT in one.casefold()]
    return paged_response(call, sets, lambda resource: scale_set_json(all_vms_in(context, resource)), SET_PAGE_SIZE)


async def show_scale_set(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=scale_set_json(_scale_set_vms(context, call)))


async def show_scale_set_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=scale_set_instance_view(_scale_set_vms(context, call)))


async def list_instances(context: RequestContext, call: ArmCall) -> ArmResponse:
    instances = context.directory.vms_within(call.resource)
    if not instances and context.principal.may(Right.READ, call.resource):
        raise _scale_set_not_found(call)
    renderer = VmRenderer(context, call)
    return paged_response(call, [one.key for one in instances], lambda key: renderer.instance(stored_vm(context, key)))


async def show_instance(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=VmRenderer(context, call).instance(find_instance(context, call)))


async def show_instance_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    return ArmResponse(body=VmRenderer(context, call).instance_view(find_instance(context, call)))


def all_vms_in(context: RequestContext, resource: str) -> list[Vm]:
    """All VMs of a set, also those that the caller may not read: a set that is shown is shown as it is."""
    return [stored_vm(context, one.key) for one in context.directory.unfiltered.vms_within(resource)]


def _scale_set_vms(context: RequestContext, call: ArmCall) -> list[Vm]:
    if vms := all_vms_in(context, call.resource):
        return vms
    raise _scale_set_not_found(call)


def _scale_set_not_found(call: ArmCall) -> NotFound:
    name, group = call.path_params["set"], call.path_params["group"]
    return NotFound(
        f"scale set {name!r} does not exist in resource group {group!r}: `az vmss list -g {group}` lists the scale sets"
    )


_SCALE_SETS_PATH = f"{COMPUTE_PROVIDER}/virtualMachineScaleSets"
_SCALE_SET_PATH = f"{GROUP_PATH}/{_SCALE_SETS_PATH}/{{set}}"
_INSTANCES_PATH = f"{_SCALE_SET_PATH}/virtualMachines"
_INSTANCE_PATH = f"{_INSTANCES_PATH}/{{instance}}"

_SCALE_SET_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{_SCALE_SETS_PATH}",
        list_scale_sets,
        authorize=allow_listing,
        summary="scale sets of a subscription",
    ),
    ArmRoute(
        "GET",
        f"{GROUP_PATH}/{_SCALE_SETS_PATH}",
        list_scale_sets,
        authorize=allow_listing,
        summary="scale sets of a resource group",
    ),
    ArmRoute("GET", _SCALE_SET_PATH, show_scale_set, summary="a scale set"),
    ArmRoute("GET", f"{_SCALE_SET_PATH}/instanceView", show_scale_set_view, summary="how a scale set is just now"),
    ArmRoute("GET", _INSTANCES_PATH, list_instances, authorize=allow_listing, summary="instances of a scale set"),
    ArmRoute("GET", _INSTANCE_PATH, show_instance, summary="an instance"),
    ArmRoute("GET", f"{_INSTANCE_PATH}/instanceView", show_instance_view, summary="how an instance is just now"),
)

_AVAILABILITY_SET_SEGMENT = "/availabilitySets/".casefold()


async def list_availability_sets(context: RequestContext, call: ArmCall) -> ArmResponse:
    require_container(context, call)
    sets = [one for one in context.directory.sets_within(call.resource) if _AVAILABILITY_SET_SEGMENT in one.casefold()]
    return paged_response(call, sets, lambda resource: _visible_availability_set_json(context, resource), SET_PAGE_SIZE)


async def show_availability_set(context: RequestContext, call: ArmCall) -> ArmResponse:
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


_AVAILABILITY_SETS_PATH = f"{COMPUTE_PROVIDER}/availabilitySets"

_AVAILABILITY_SET_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/{_AVAILABILITY_SETS_PATH}",
        list_availability_sets,
        authorize=allow_listing,
        summary="availability sets of a subscription",
    ),
    ArmRoute(
        "GET",
        f"{GROUP_PATH}/{_AVAILABILITY_SETS_PATH}",
        list_availability_sets,
        authorize=allow_listing,
        summary="availability sets of a resource group",
    ),
    ArmRoute(
        "GET", f"{GROUP_PATH}/{_AVAILABILITY_SETS_PATH}/{{set}}", show_availability_set, summary="an availability set"
    ),
)

ROUTES: tuple[ArmRoute, ...] = (*_CONTAINER_ROUTES, *_VM_ROUTES, *_SCALE_SET_ROUTES, *_AVAILABILITY_SET_ROUTES)
