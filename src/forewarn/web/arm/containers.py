"""Reading tenants, subscriptions, locations and resource groups, and the pages of every list.

Only VMs are stored. A subscription or group exists as long as it has a VM.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode

from forewarn.control.directory import NaturalSortKey, natural_sort_key
from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.errors import Rejected
from forewarn.web.arm.errors import ArmError
from forewarn.web.arm.rendering import JsonObject
from forewarn.web.arm.routing import GROUP_PATH, SUBSCRIPTION_PATH, ArmCall, ArmResponse, ArmRoute, allow_listing
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


ROUTES: tuple[ArmRoute, ...] = (
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
