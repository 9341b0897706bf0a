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
from forewarn.arm.routing import (
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
from forewarn.arm.targets import find_instance, find_vm
from forewarn.core.access import Right
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.errors import NotFound, Rejected
from forewarn.web.context import RequestContext
from forewarn.web.directory import NaturalSortKey, natural_sort_key

PAGE_SIZE = 100  # items in a page of a list
SET_PAGE_SIZE = 10  # smaller, since all VMs of a set are read to render it
_SKIP_TOKEN = "$skiptoken"
_VMS_SEGMENT = f"{COMPUTE_PROVIDER}/virtualMachines"
_SCALE_SETS_SEGMENT = f"{COMPUTE_PROVIDER}/virtualMachineScaleSets"
_AVAILABILITY_SETS_SEGMENT = f"{COMPUTE_PROVIDER}/availabilitySets"
_INSTANCES_PATH = f"{SCALE_SET_PATH}/virtualMachines"


def paged_response(
    call: ArmCall, names: Sequence[str], render: Callable[[str], JsonObject], page_size: int = PAGE_SIZE
) -> ArmResponse:
    """One page of a list as `{"value": [...]}`, with a `nextLink` to the next page if there is one.

    `names` are the keys or ids of all items, in natural order; `render` makes the JSON of an item, for those of the
    page. The page begins after the call's `$skiptoken`, or with the first item. Raises Rejected for an invalid token.
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
        raise Rejected(f"{_SKIP_TOKEN} {token[:100]!r} is not from one of our nextLinks: start without it") from None


def _next_link(call: ArmCall, last: str) -> str:
    token = base64.urlsafe_b64encode(last.encode()).decode()
    return f"{call.base_url}{quote(call.path)}?{urlencode({**call.query, _SKIP_TOKEN: token})}"


def _require_container(context: RequestContext, call: ArmCall) -> None:
    """Raises ArmError 404 if the called subscription or group has no VM and the caller may read it.

    For other callers it returns, and they get an empty list, so that they do not learn whether it exists.
    """
    if context.directory.unfiltered.has_vms_in(call.resource) or not context.principal.may(Right.READ, call.resource):
        return
    if "group" in call.path_params:
        group = call.path_params["group"]
        raise ArmError(
            404, "ResourceGroupNotFound", f"resource group {group!r} has no VM: `az group list` lists the groups"
        )
    raise subscription_not_found(call)


def _stored_vm(context: RequestContext, key: str) -> Vm:
    """The stored VM with this key, from the directory of present VMs; AssertionError if it is not stored.

    Does not check rights.
    """
    vm = context.store.vm(key)
    assert vm is not None
    return vm


async def list_tenants(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Lists our one tenant, as `{"value": [...]}`; the list is empty if this service has no sign-in."""
    tenant = _tenant_id(context)
    document = {"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "forewarn", "tenantCategory": "Home"}
    return ArmResponse(body={"value": [document] if tenant else []})


async def list_subscriptions(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Lists the subscriptions that contain anything the caller may read, all in one page.

    The body is `{"value": [...]}`, in natural order; the list may be empty.
    """
    subscriptions = _visible_subscriptions(context)
    return ArmResponse(body={"value": [_subscription_json(context, name) for name in subscriptions]})


async def show_subscription(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the subscription of the path. Raises ArmError 404 if the caller may read nothing in it."""
    return ArmResponse(body=_subscription_json(context, _visible_subscription(context, call)))


async def list_locations(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Lists the locations of all hosts as `{"value": [...]}`, sorted by name, all in one page.

    Each subscription has the same locations; their ids contain the subscription. Raises ArmError 404 if the caller may
    read nothing in it.
    """
    resource = f"/subscriptions/{_visible_subscription(context, call)}"
    names = sorted({host.location for host in context.store.hosts()})
    return ArmResponse(body={"value": [_location_json(resource, name) for name in names]})


async def list_groups(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Lists the subscription's groups that contain anything the caller may read, in pages of 100.

    In natural order; a page is `{"value": [...]}`, with a `nextLink` if there is another one. If there are none: raises
    ArmError 404 if the subscription has no VM and the caller may read it, else the list is empty. Raises Rejected for
    an invalid `$skiptoken`.
    """
    prefix = f"{call.resource}/".casefold()
    groups = [group for group in context.directory.groups() if group.casefold().startswith(prefix)]
    if not groups:
        _require_container(context, call)
    return paged_response(call, groups, lambda group: _group_json(context, group))


async def show_group(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the resource group of the path, as the fleet file spells it, with its first VM's location.

    Raises ArmError 404 if it has no VM. The route has checked that the caller may read it.
    """
    _require_container(context, call)
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
    """The error of a call that names a subscription without a VM: 404 with Azure's code."""
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
    vm = _stored_vm(context, context.directory.unfiltered.vms_within(resource)[0].key)
    return {
        "id": resource,
        "name": resource.rpartition("/")[2],
        "type": "Microsoft.Resources/resourceGroups",
        "location": vm.location,
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }


_CONTAINER_ROUTES: tuple[ArmRoute, ...] = (
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


class _VmRenderer:
    """Renders stored VMs as Azure's JSON; make one for each call, since it caches the events of scopes.

    `vm` and `instance` add the instance view (power state, domains, maintenance) only if the call's query has
    `$expand=instanceView` or `statusOnly=true`.
    """

    def __init__(self, context: RequestContext, call: ArmCall) -> None:
        self._store = context.store
        self._events: dict[str, list[Event]] = {}
        expanded = call.query.get("$expand", "").casefold().split(",")
        self._with_view = "instanceview" in expanded or call.query.get("statusOnly", "").casefold() == "true"

    def vm(self, vm: Vm) -> JsonObject:
        """The resource of a VM that is not an instance of a scale set, with its view if the query asks for it."""
        return vm_json(vm, self._view_if_requested(vm))

    def instance(self, vm: Vm) -> JsonObject:
        """The resource of an instance of a scale set, with its instance view if the query asks for it."""
        return instance_json(vm, self._view_if_requested(vm))

    def instance_view(self, vm: Vm) -> JsonObject:
        """The instance view alone, of a VM or of an instance of a scale set, whatever the query says."""
        return instance_view(vm, self._live_events(vm.scope_id))

    def _view_if_requested(self, vm: Vm) -> JsonObject | None:
        return self.instance_view(vm) if self._with_view else None

    def _live_events(self, scope_id: str) -> list[Event]:
        if scope_id not in self._events:
            live = self._store.events(scope_id=scope_id, statuses=[EventState.SCHEDULED, EventState.STARTED])
            self._events[scope_id] = live
        return self._events[scope_id]


async def list_vms(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Lists the VMs of the path's subscription or group that the caller may read, in pages of 100.

    In natural order of group and name, without instances of scale sets and cloud services. The body of a page is
    `{"value": [...]}`, with a `nextLink` if there is another one. Raises ArmError 404 if the subscription or group has
    no VM and the caller may read it (other callers get an empty list), and Rejected for an invalid `$skiptoken`.
    """
    _require_container(context, call)
    keys = [vm.key for vm in context.directory.vms_within(call.resource) if vm.is_standalone]
    renderer = _VmRenderer(context, call)
    return paged_response(call, keys, lambda key: renderer.vm(_stored_vm(context, key)))


async def show_vm(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the VM that the path names. Raises NotFound, also for an instance of a scale set.

    It has its instance view only if the query has `$expand=instanceView` or `statusOnly=true`.
    """
    return ArmResponse(body=_VmRenderer(context, call).vm(find_vm(context, call)))


async def show_vm_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the instance view of the VM that the path names.

    Raises NotFound, also for an instance of a scale set.
    """
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
    """Lists the scale sets of the path's subscription or group that the caller may read, in pages of ten.

    In natural order; a page is `{"value": [...]}`, with a `nextLink` if there is another one. Raises ArmError 404 if
    the subscription or group has no VM and the caller may read it (other callers get an empty list), and Rejected for
    an invalid `$skiptoken`.
    """
    _require_container(context, call)
    sets = _sets_of_kind(context, call, _SCALE_SETS_SEGMENT)
    return paged_response(call, sets, lambda resource: scale_set_json(all_vms_in(context, resource)), SET_PAGE_SIZE)


async def show_scale_set(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the scale set that the path names, made from all its instances, whether readable or not.

    Raises NotFound if it has no instance.
    """
    return ArmResponse(body=scale_set_json(_scale_set_vms(context, call)))


async def show_scale_set_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the instance view of a scale set: how many of all its instances have each status.

    Raises NotFound if it has no instance.
    """
    return ArmResponse(body=scale_set_instance_view(_scale_set_vms(context, call)))


async def list_instances(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Lists the instances of the called scale set that the caller may read, in pages of 100.

    In natural order; a page is `{"value": [...]}`, with a `nextLink` if there is another one. Raises NotFound if the
    set has no instance and the caller may read it (other callers get an empty list), and Rejected for an invalid
    `$skiptoken`.
    """
    instances = context.directory.vms_within(call.resource)
    if not instances and context.principal.may(Right.READ, call.resource):
        raise _scale_set_not_found(call)
    renderer = _VmRenderer(context, call)
    return paged_response(call, [vm.key for vm in instances], lambda key: renderer.instance(_stored_vm(context, key)))


async def show_instance(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the instance of a scale set that the path names. Raises ResourceAbsent if there is none.

    It has its instance view only if the query has `$expand=instanceView` or `statusOnly=true`.
    """
    return ArmResponse(body=_VmRenderer(context, call).instance(find_instance(context, call)))


async def show_instance_view(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the instance view of the path's instance. Raises ResourceAbsent if there is none."""
    return ArmResponse(body=_VmRenderer(context, call).instance_view(find_instance(context, call)))


def all_vms_in(context: RequestContext, resource: str) -> list[Vm]:
    """Returns all present VMs of the set with this resource id (in any case), in natural order.

    Empty for an unknown set. Includes VMs that the caller may not read: a set that the caller may read is shown as a
    whole.
    """
    return [_stored_vm(context, vm.key) for vm in context.directory.unfiltered.vms_within(resource)]


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
    """Lists the readable availability sets of the path's subscription or group, in pages of ten.

    Each lists those of its VMs that the caller may read. In natural order; a page is `{"value": [...]}`, with a
    `nextLink` if there is another one. Raises ArmError 404 if the subscription or group has no VM and the caller may
    read it (other callers get an empty list), and Rejected for an invalid `$skiptoken`.
    """
    _require_container(context, call)
    sets = _sets_of_kind(context, call, _AVAILABILITY_SETS_SEGMENT)
    return paged_response(call, sets, lambda resource: _visible_availability_set_json(context, resource), SET_PAGE_SIZE)


async def show_availability_set(context: RequestContext, call: ArmCall) -> ArmResponse:
    """Shows the availability set that the path names, with those of its VMs that the caller may read.

    The list of VMs is empty if the caller may read none of them. Raises NotFound if the set has no present VM at all,
    since a set exists only through its VMs.
    """
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

ROUTES: tuple[ArmRoute, ...] = (*_CONTAINER_ROUTES, *_VM_ROUTES, *_SCALE_SET_ROUTES, *_AVAILABILITY_SET_ROUTES)
