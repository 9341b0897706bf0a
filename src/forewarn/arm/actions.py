"""User operations (restart, redeploy, ...): each creates a request and returns an operation to poll."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.arm.operations import operation_headers
from forewarn.arm.routing import ArmAuthorizer, ArmCall, ArmHandler, ArmResponse, ArmRoute, require_on_resource
from forewarn.arm.targets import (
    ArmEmptyBody,
    InstanceIdsBody,
    ReimageBody,
    ReimageInstancesBody,
    RequiredInstanceIdsBody,
    ResourceAbsent,
    all_instances,
    authorize_instances,
    find_instance,
    find_instances,
    find_vm,
    parse_arm_body,
    selects_all_instances,
)
from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.core.planning import OPERATION_CAUSES, is_applicable
from forewarn.core.request import RequestedOperation
from forewarn.errors import Rejected
from forewarn.web.context import RequestContext

_COMPUTE_PATH = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"
VM_PATH = f"{_COMPUTE_PATH}/virtualMachines/{{vm}}"
SCALE_SET_PATH = f"{_COMPUTE_PATH}/virtualMachineScaleSets/{{set}}"
INSTANCE_PATH = f"{SCALE_SET_PATH}/virtualMachines/{{instance}}"

_COMMON_ACTIONS = {
    "restart": RequestedOperation.RESTART,
    "redeploy": RequestedOperation.REDEPLOY,
    "performMaintenance": RequestedOperation.PERFORM_MAINTENANCE,
    "start": RequestedOperation.START,
    "powerOff": RequestedOperation.POWER_OFF,
    "deallocate": RequestedOperation.DEALLOCATE,
    "reimage": RequestedOperation.REIMAGE,
}
_VM_ACTIONS = {**_COMMON_ACTIONS, "reapply": RequestedOperation.REAPPLY}
_SCALE_SET_ACTIONS = {
    **_COMMON_ACTIONS,
    "reapply": RequestedOperation.REAPPLY,
    "reimageall": RequestedOperation.REIMAGE,
}
_INSTANCE_ACTIONS = {**_COMMON_ACTIONS, "reimageall": RequestedOperation.REIMAGE}
VmFinder = Callable[[RequestContext, ArmCall], Vm]


def _request_handler(ask: RequestedOperation, find: VmFinder) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ReimageBody if ask is RequestedOperation.REIMAGE else ArmEmptyBody)
        _reject_hibernate(call)
        return await _accept_request(context, call, ask, [find(context, call)])

    return handler


def _set_request_handler(
    ask: RequestedOperation, shape: type[InstanceIdsBody] | type[ReimageInstancesBody] | type[RequiredInstanceIdsBody]
) -> ArmHandler:
    """Without ids it is meant for the instances that it suits: a start for those that do not run."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        ids = parse_arm_body(call, shape).ids
        _reject_hibernate(call)
        if ids is None or selects_all_instances(ids):
            return await _accept_request(context, call, ask, _eligible_vms(ask, all_instances(context, call)))
        return await _accept_request(context, call, ask, find_instances(context, call, ids))

    return handler


def _eligible_vms(ask: RequestedOperation, vms: list[Vm]) -> list[Vm]:
    """With none left all of them, so that the refusal says why."""
    cause = OPERATION_CAUSES.get(ask)
    fitting = [vm for vm in vms if cause is None or is_applicable(vm, cause)]
    return fitting or vms


def _delete_handler(find: Callable[[RequestContext, ArmCall], list[Vm]]) -> ArmHandler:
    """Where nothing is left to delete it is done, so that a retry after a lost answer is harmless."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ArmEmptyBody)
        try:
            vms = find(context, call)
        except ResourceAbsent:
            return ArmResponse(status=204)
        return await _accept_request(context, call, RequestedOperation.DELETE, vms)

    return handler


def _evict_handler(find: VmFinder) -> ArmHandler:
    """Answered at once: Azure gives no operation to follow."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ArmEmptyBody)
        await context.control.requests.request_for_vms(
            RequestedOperation.EVICT, [find(context, call)], who=context.caller_name
        )
        await context.run_due_work()
        return ArmResponse(status=204)

    return handler


async def _accept_request(
    context: RequestContext, call: ArmCall, ask: RequestedOperation, vms: list[Vm]
) -> ArmResponse:
    requests = context.control.requests
    if ask is RequestedOperation.PERFORM_MAINTENANCE:
        receipt = await requests.perform_maintenance(vms, who=context.caller_name)
    else:
        receipt = await requests.request_for_vms(ask, vms, who=context.caller_name)
    await context.run_due_work()
    return ArmResponse(status=202, headers=operation_headers(call, vms[0], receipt.request))


def _reject_hibernate(call: ArmCall) -> None:
    if call.query.get("hibernate", "").casefold() == "true":
        raise Rejected("hibernate=true cannot be: no memory is kept of a VM that is deallocated; leave hibernate out")


def _as_list(find: VmFinder) -> Callable[[RequestContext, ArmCall], list[Vm]]:
    return lambda context, call: [find(context, call)]


def _operate_route(
    method: str, path: str, handler: ArmHandler, summary: str, over: ArmAuthorizer = require_on_resource
) -> ArmRoute:
    return ArmRoute(method, path, handler, right=Right.OPERATE, authorize=over, summary=summary)


def _action_routes(
    path: str,
    table: dict[str, RequestedOperation],
    handler: Callable[[RequestedOperation], ArmHandler],
    over: ArmAuthorizer = require_on_resource,
) -> list[ArmRoute]:
    return [
        _operate_route("POST", f"{path}/{name}", handler(ask), f"asks for {ask}", over) for name, ask in table.items()
    ]


_DELETE_SUMMARY = "asks for delete; what has a terminate notification gets it, also with forceDeletion"

ROUTES: tuple[ArmRoute, ...] = (
    *_action_routes(VM_PATH, _VM_ACTIONS, lambda ask: _request_handler(ask, find_vm)),
    _operate_route("POST", f"{VM_PATH}/simulateEviction", _evict_handler(find_vm), "evicts a Spot VM"),
    _operate_route("DELETE", VM_PATH, _delete_handler(_as_list(find_vm)), _DELETE_SUMMARY),
    *_action_routes(
        SCALE_SET_PATH,
        _SCALE_SET_ACTIONS,
        lambda ask: _set_request_handler(
            ask, ReimageInstancesBody if ask is RequestedOperation.REIMAGE else InstanceIdsBody
        ),
        authorize_instances,
    ),
    _operate_route(
        "POST",
        f"{SCALE_SET_PATH}/delete",
        _set_request_handler(RequestedOperation.DELETE, RequiredInstanceIdsBody),
        "deletes instances",
        authorize_instances,
    ),
    _operate_route("DELETE", SCALE_SET_PATH, _delete_handler(all_instances), _DELETE_SUMMARY),
    *_action_routes(INSTANCE_PATH, _INSTANCE_ACTIONS, lambda ask: _request_handler(ask, find_instance)),
    _operate_route(
        "POST", f"{INSTANCE_PATH}/simulateEviction", _evict_handler(find_instance), "evicts a Spot instance"
    ),
    _operate_route("DELETE", INSTANCE_PATH, _delete_handler(_as_list(find_instance)), _DELETE_SUMMARY),
)
