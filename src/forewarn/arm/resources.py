"""What VMs are in: tenant, subscriptions, resource groups, locations. None has a record: each is there with its VMs."""

from __future__ import annotations

from forewarn.console.arm.paging import paged
from forewarn.console.arm.refusal import Coded
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, listing
from forewarn.console.arm.shape import Json
from forewarn.console.room import Room
from forewarn.core.access import Right
from forewarn.core.fleet import Vm

SUBSCRIPTION = "/subscriptions/{subscription}"
GROUP = f"{SUBSCRIPTION}/resourceGroups/{{group}}"
PROVIDER = "providers/Microsoft.Compute"


def must_exist(room: Room, call: ArmCall) -> None:
    """What a list is of; for those who may know. Others are shown an empty list, whether it exists or not."""
    if room.directory.whole.holds(call.resource) or not room.principal.may(Right.READ, call.resource):
        return
    if "group" in call.names:
        group = call.names["group"]
        raise Coded(
            404, "ResourceGroupNotFound", f"resource group {group!r} has no VM: `az group list` lists the groups"
        )
    raise _no_subscription(call)


def known(room: Room, key: str) -> Vm:
    """A VM that the register lists, so that it is stored."""
    vm = room.store.vm(key)
    assert vm is not None
    return vm


async def list_tenants(room: Room, call: ArmCall) -> ArmAnswer:
    tenant = _tenant_id(room)
    shown = {"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "forewarn", "tenantCategory": "Home"}
    return ArmAnswer(body={"value": [shown] if tenant else []})


async def list_subscriptions(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body={"value": [_subscription(room, one) for one in _seen_subscriptions(room)]})


async def show_subscription(room: Room, call: ArmCall) -> ArmAnswer:
    return ArmAnswer(body=_subscription(room, _seen(room, call)))


async def list_locations(room: Room, call: ArmCall) -> ArmAnswer:
    resource = f"/subscriptions/{_seen(room, call)}"
    names = sorted({host.location for host in room.store.hosts()})
    return ArmAnswer(body={"value": [_location(resource, name) for name in names]})


async def list_groups(room: Room, call: ArmCall) -> ArmAnswer:
    above = f"{call.resource}/".casefold()
    groups = [group for group in room.directory.groups() if group.casefold().startswith(above)]
    if not groups:
        must_exist(room, call)
    return paged(call, groups, lambda group: _group(room, group))


async def show_group(room: Room, call: ArmCall) -> ArmAnswer:
    must_exist(room, call)
    spelled = {group.casefold(): group for group in room.directory.groups()}
    return ArmAnswer(body=_group(room, spelled[call.resource.casefold()]))


def _seen_subscriptions(room: Room) -> list[str]:
    """Those that hold anything that the caller may read."""
    every = dict.fromkeys(group.split("/")[2] for group in room.directory.groups())
    return list({one.casefold(): one for one in every}.values())


def _seen(room: Room, call: ArmCall) -> str:
    wanted = call.names["subscription"].casefold()
    for one in _seen_subscriptions(room):
        if one.casefold() == wanted:
            return one
    raise _no_subscription(call)


def _no_subscription(call: ArmCall) -> Coded:
    name = call.names["subscription"]
    return Coded(404, "SubscriptionNotFound", f"subscription {name!r} does not exist: `az account list` lists them")


def _subscription(room: Room, subscription: str) -> Json:
    tenant = _tenant_id(room)
    return {
        "id": f"/subscriptions/{subscription}",
        "subscriptionId": subscription,
        "displayName": subscription,
        "state": "Enabled",
        "authorizationSource": "RoleBased",
        **({"tenantId": tenant} if tenant else {}),
    }


def _tenant_id(room: Room) -> str:
    return room.house.sign_in.tenant_id if room.house.sign_in is not None else ""


def _location(subscription: str, name: str) -> Json:
    return {"id": f"{subscription}/locations/{name}", "name": name, "displayName": name, "type": "Region"}


def _group(room: Room, resource: str) -> Json:
    """A group has no location of its own: the first of its VMs tells one."""
    vm = known(room, room.directory.whole.within(resource)[0].key)
    return {
        "id": resource,
        "name": resource.rpartition("/")[2],
        "type": "Microsoft.Resources/resourceGroups",
        "location": vm.location,
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }


PLACE_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", "/tenants", list_tenants, over=listing, summary="the tenant"),
    ArmRoute("GET", "/subscriptions", list_subscriptions, over=listing, summary="subscriptions"),
    ArmRoute("GET", SUBSCRIPTION, show_subscription, over=listing, summary="a subscription"),
    ArmRoute("GET", f"{SUBSCRIPTION}/locations", list_locations, over=listing, summary="where hosts are"),
    ArmRoute("GET", f"{SUBSCRIPTION}/resourceGroups", list_groups, over=listing, summary="resource groups"),
    ArmRoute("GET", GROUP, show_group, summary="a resource group"),
)
