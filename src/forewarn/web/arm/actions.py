"""User operations (restart, redeploy, …): each creates a request and returns an operation to poll."""

from __future__ import annotations

from collections.abc import Callable

from forewarn.core.access import Right
from forewarn.core.fleet import Vm
from forewarn.core.planning import OPERATION_CAUSES, is_applicable
from forewarn.core.request import RequestedOperation
from forewarn.errors import Rejected
from forewarn.web.arm.operations import empty_response, once, operation_headers
from forewarn.web.arm.routing import (
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
from forewarn.web.arm.targets import (
    ArmEmptyBody,
    InstanceIdsBody,
    ReimageBody,
    ReimageInstancesBody,
    RequiredInstanceIdsBody,
    ResourceAbsent,
    all_instances,
    authorize_instances,
    authorize_scale_set,
    find_instance,
    find_instances,
    find_vm,
    parse_arm_body,
    require_uniform,
    selects_all_instances,
)
from forewarn.web.context import RequestContext

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
VmFinder = Callable[[RequestContext, ArmCall], Vm]  # raises ResourceAbsent


def _request_handler(operation: RequestedOperation, find: VmFinder) -> ArmHandler:
    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ReimageBody if operation is RequestedOperation.REIMAGE else ArmEmptyBody)
        _reject_hibernate(call)
        return await _accept_request(context, call, operation, [find(context, call)])

    return once(handler)


def _set_request_handler(
    operation: RequestedOperation,
    body_type: type[InstanceIdsBody] | type[ReimageInstancesBody] | type[RequiredInstanceIdsBody],
) -> ArmHandler:
    # A flexible set knows only the deletion of some of its VMs, as on Azure.

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        if operation is not RequestedOperation.DELETE:
            require_uniform(context, call)
        ids = parse_arm_body(call, body_type).ids
        _reject_hibernate(call)
        if ids is None or selects_all_instances(ids):
            vms = _eligible_vms(operation, all_instances(context, call))
            return await _accept_request(context, call, operation, vms)
        return await _accept_request(context, call, operation, find_instances(context, call, ids))

    return once(handler)


def _eligible_vms(operation: RequestedOperation, vms: list[Vm]) -> list[Vm]:
    """The VMs that the operation applies to; if there are none, all of them, so that the error says why."""
    cause = OPERATION_CAUSES.get(operation)
    return [vm for vm in vms if cause is None or is_applicable(vm, cause)] or vms


def _delete_handler(find: Callable[[RequestContext, ArmCall], list[Vm]]) -> ArmHandler:
    """Deleting what does not exist succeeds, so that a retry after a lost response is harmless."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ArmEmptyBody)
        try:
            vms = find(context, call)
        except ResourceAbsent:
            return ArmResponse(status=204)
        return await _accept_request(context, call, RequestedOperation.DELETE, vms)

    return once(handler)


def _evict_handler(find: VmFinder) -> ArmHandler:
    """Returns 204 at once: Azure has no operation to poll for an eviction."""

    async def handler(context: RequestContext, call: ArmCall) -> ArmResponse:
        parse_arm_body(call, ArmEmptyBody)
        await context.control.requests.request_for_vms(
            RequestedOperation.EVICT, [find(context, call)], who=context.caller_name, key=call.request_key
        )
        await context.wait_for_reconciler()
        return ArmResponse(status=204)

    return once(handler, empty_response)


async def _accept_request(
    context: RequestContext, call: ArmCall, operation: RequestedOperation, vms: list[Vm]
) -> ArmResponse:
    requests = context.control.requests
    if operation is RequestedOperation.PERFORM_MAINTENANCE:
        receipt = await requests.perform_maintenance(vms, who=context.caller_name, key=call.request_key)
    else:
        receipt = await requests.request_for_vms(operation, vms, who=context.caller_name, key=call.request_key)
    await context.wait_for_reconciler()
    return ArmResponse(status=202, headers=operation_headers(call, vms[0], receipt.request))


def _reject_hibernate(call: ArmCall) -> None:
    if call.query.get("hibernate", "").casefold() == "true":
        raise Rejected("hibernate=true is not supported, since a deallocated VM keeps no memory: leave hibernate out")


def _as_list(find: VmFinder) -> Callable[[RequestContext, ArmCall], list[Vm]]:
    return lambda context, call: [find(context, call)]


def _operate_route(
    method: str, path: str, handler: ArmHandler, summary: str, authorize: ArmAuthorizer = require_on_resource
) -> ArmRoute:
    return ArmRoute(method, path, handler, right=Right.OPERATE, authorize=authorize, summary=summary)


def _action_routes(
    path: str,
    actions: dict[str, RequestedOperation],
    make_handler: Callable[[RequestedOperation], ArmHandler],
    authorize: ArmAuthorizer = require_on_resource,
) -> list[ArmRoute]:
    return [
        _operate_route("POST", f"{path}/{name}", make_handler(operation), f"requests {operation}", authorize)
        for name, operation in actions.items()
    ]


_DELETE_SUMMARY = "requests delete; VMs with a terminate notification get it, also with forceDeletion"

ROUTES: tuple[ArmRoute, ...] = (
    *_action_routes(VM_PATH, _VM_ACTIONS, lambda operation: _request_handler(operation, find_vm)),
    _operate_route("POST", f"{VM_PATH}/simulateEviction", _evict_handler(find_vm), "evicts a Spot VM"),
    _operate_route("DELETE", VM_PATH, _delete_handler(_as_list(find_vm)), _DELETE_SUMMARY),
    *_action_routes(
        SCALE_SET_PATH,
        _SCALE_SET_ACTIONS,
        lambda operation: _set_request_handler(
            operation, ReimageInstancesBody if operation is RequestedOperation.REIMAGE else InstanceIdsBody
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
    _operate_route("DELETE", SCALE_SET_PATH, _delete_handler(all_instances), _DELETE_SUMMARY, authorize_scale_set),
    *_action_routes(INSTANCE_PATH, _INSTANCE_ACTIONS, lambda operation: _request_handler(operation, find_instance)),
    _operate_route(
        "POST", f"{INSTANCE_PATH}/simulateEviction", _evict_handler(find_instance), "evicts a Spot instance"
    ),
    _operate_route("DELETE", INSTANCE_PATH, _delete_handler(_as_list(find_instance)), _DELETE_SUMMARY),
)
