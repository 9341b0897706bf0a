"""Reading VMs, sets, resource groups, subscriptions, locations and tenants, in pages.

Only VMs are stored. A set, a group or a subscription exists as long as it has a VM.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode

from forewarn.control.directory import NaturalSortKey, natural_sort_key
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.errors import NotFound, Rejected
from forewarn.web.arm.errors import ArmError
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

PAGE_SIZE = 100  # items in a page of a list
_SKIP_TOKEN = "$skiptoken"


def paged_response(
    call: ArmCall, names: Sequence[str], render: Callable[[str], JsonObject], page_size: int = PAGE_SIZE
) -> ArmResponse:
    """Return one page of a list as `{"value": [...]}`, with a `nextLink` to the next page if there is one.

    `names` are the keys or ids of all items, sorted in natural order; `render` is called only for the items of the
    page.
    """
    start = bisect_right(names, _page_start_key(call), key=natural_sort_key)
    page = names[start : start + page_size]
    body: JsonObject = {"value": [render(name) for name in page]}
    if start + page_size < len(names):
        body["nextLink"] = _next_link(call, page[-1])
    return ArmResponse(body=body)


def _page_start_key(call: ArmCall) -> NaturalSortKey:
    token = call.query.get(_SKIP_TOKEN, "")
    try:
        return natural_sort_key(base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode())
    except (binascii.Error, ValueError):
        raise Rejected(f"{_SKIP_TOKEN} {token[:100]!r} did not come from a nextLink: leave it out") from None


def _next_link(call: ArmCall, last: str) -> str:
    token = base64.urlsafe_b64encode(last.encode()).decode()
    return f"{call.base_url}{quote(call.path)}?{urlencode({**call.query, _SKIP_TOKEN: token})}"


def require_container(context: RequestContext, call: ArmCall) -> None:
    """Raise ArmError 404 if the called subscription or group has no VM and the caller may read it.

    Others get an empty list, so that they do not learn whether it exists.
    """
    if context.directory.unfiltered.has_vms_in(call.resource) or not context.principal.may(Right.READ, call.resource):
        return
    if "group" in call.path_params:
        group = call.path_params["group"]
        raise ArmError(
            404, "ResourceGroupNotFound", f"resource group {group!r} has no VM: `az group list` lists the groups"
        )
    raise subscription_not_found(call)


def stored_vm(context: RequestContext, key: str) -> Vm:
    """Return the stored VM with this key of the directory. Checks no rights."""
    vm = context.store.vm(key)
    assert vm is not None
    return vm


async def list_tenants(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the one tenant of this service, as `{"value": [...]}`; empty if the service has no sign-in."""
    tenant = _tenant_id(context)
    document = {"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "forewarn", "tenantCategory": "Home"}
    return ArmResponse(body={"value": [document] if tenant else []})


async def list_subscriptions(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the subscriptions that contain anything the caller may read, all in one page."""
    subscriptions = _visible_subscriptions(context)
    return ArmResponse(body={"value": [_subscription_json(context, name) for name in subscriptions]})


async def show_subscription(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the subscription of the path: 200 with its id, name, state and tenant."""
    return ArmResponse(body=_subscription_json(context, _visible_subscription(context, call)))


async def list_locations(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the locations of all hosts as `{"value": [...]}`, sorted by name, all in one page."""
    resource = f"/subscriptions/{_visible_subscription(context, call)}"
    names = sorted({host.location for host in context.store.hosts()})
    return ArmResponse(body={"value": [_location_json(resource, name) for name in names]})


async def list_groups(context: RequestContext, call: ArmCall) -> ArmResponse:
    """List the resource groups of the path's subscription that contain anything the caller may read."""
    prefix = f"{call.resource}/".casefold()
    groups = [group for group in context.directory.groups() if group.casefold().startswith(prefix)]
    if not groups:
        require_container(context, call)
    return paged_response(call, groups, lambda group: _group_json(context, group))


async def show_group(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Show the resource group of the path, as the fleet file spells it, with its first VM's location."""
    require_container(context, call)
    by_key = {group.casefold(): group for group in context.directory.groups()}
    return ArmResponse(body=_group_json(context, by_key[call.resource.casefold()]))


def _visible_subscriptions(context: RequestContext) -> list[str]:
    """The subscriptions that contain anything the caller may read."""
    names = dict.fromkeys(group.split("/")[2] for group in context.directory.groups())
    return list({name.casefold(): name for name in names}.values())


def _visible_subscription(context: RequestContext, call: ArmCall) -> str:
    wanted = call.path_params["subscription"].casefold()
    for name in _visible_subscriptions(context):
        if name.casefold() == wanted:
            return name
    raise subscription_not_found(call)


def subscription_not_found(call: ArmCall) -> ArmError:
    """Return, without raising it, the error for a subscription that has no VM: 404 with Azure's code."""
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
    """A group has no location of its own: it shows that of its first VM."""
    vm = stored_vm(context, context.directory.unfiltered.vms_within(resource)[0].key)
    return {
        "id": resource,
        "name": resource.rpartition("/")[2],
        "type": "Microsoft.Resources/resourceGroups",
        "location": vm.location,
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }


CONTAINER_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", "/tenants", list_tenants, authorize=allow_listing, summary="lists the tenant"),
    ArmRoute("GET", "/subscriptions", list_subscriptions, authorize=allow_listing, summary="lists subscriptions"),
    ArmRoute("GET", SUBSCRIPTION_PATH, show_subscription, authorize=allow_listing, summary="shows a subscription"),
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/locations",
        list_locations,
        authorize=allow_listing,
        summary="lists locations of hosts",
    ),
    ArmRoute(
        "GET",
        f"{SUBSCRIPTION_PATH}/resourceGroups",
        list_groups,
        authorize=allow_listing,
        summary="lists resource groups",
    ),
    ArmRoute("GET", GROUP_PATH, show_group, summary="shows a resource group"),
)


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
