"""Reading availability sets. A set is its VMs: it exists while it has one, and names those that the caller may read."""

from __future__ import annotations

from forewarn.console.arm.paging import PAGE_OF_SETS, paged
from forewarn.console.arm.place import GROUP, PROVIDER, SUBSCRIPTION, must_exist
from forewarn.console.arm.route import ArmAnswer, ArmCall, ArmRoute, listing
from forewarn.console.arm.scale_set import vms_in
from forewarn.console.arm.shape import Json, availability_set_json
from forewarn.console.room import Room
from forewarn.errors import NotFound

_SORT = "/availabilitySets/".casefold()


async def list_sets(room: Room, call: ArmCall) -> ArmAnswer:
    must_exist(room, call)
    sets = [one for one in room.directory.sets_within(call.resource) if _SORT in one.casefold()]
    return paged(call, sets, lambda resource: shown(room, resource), PAGE_OF_SETS)


async def show_set(room: Room, call: ArmCall) -> ArmAnswer:
    if not room.directory.whole.holds(call.resource):
        raise NotFound(
            f"availability set {call.names['set']!r} does not exist in resource group {call.names['group']!r}: "
            f"`az vm availability-set list -g {call.names['group']}` lists them"
        )
    return ArmAnswer(body=shown(room, call.resource))


def shown(room: Room, resource: str) -> Json:
    vms = vms_in(room, resource)
    return availability_set_json(vms, [vm for vm in vms if room.sees(vm)])


_SETS = f"{PROVIDER}/availabilitySets"

AVAILABILITY_SET_ROUTES: tuple[ArmRoute, ...] = (
    ArmRoute("GET", f"{SUBSCRIPTION}/{_SETS}", list_sets, over=listing, summary="availability sets of a subscription"),
    ArmRoute("GET", f"{GROUP}/{_SETS}", list_sets, over=listing, summary="availability sets of a resource group"),
    ArmRoute("GET", f"{GROUP}/{_SETS}/{{set}}", show_set, summary="an availability set"),
)
