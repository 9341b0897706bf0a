"""Recognizes a repeated call by its x-ms-client-request-id, so that it creates no second request.

Azure's libraries send a new id with each call, and the same id when they repeat it after a lost connection or a 503.
But `az` sends one id with all calls of a command, and some programs send one id for a long time. So a call is only a
repetition if method, path, query and body are the same too, and if it comes within REPEAT_WINDOW_S. Where Azure would
accept a call, the id is never a reason to refuse it. Only calls that create requests need this: the others (PUT, PATCH
and approvals) have the same effect twice as once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, PlannedEvent, RequestKey
from forewarn.core.request_key import canonical_body, make_request_key
from forewarn.web.arm.operations import operation_headers
from forewarn.web.arm.routing import ArmCall, ArmHandler, ArmResponse
from forewarn.web.context import RequestContext
from forewarn.web.request_views import request_events

CLIENT_REQUEST_ID_HEADER = "x-ms-client-request-id"
REPEAT_WINDOW_S = 3600.0  # real time; clients give up earlier

RepeatedResponse = Callable[[RequestContext, ArmCall, MaintenanceRequest], ArmResponse]


def accepted_response(context: RequestContext, call: ArmCall, request: MaintenanceRequest) -> ArmResponse:
    """Return the 202 response to a repeated call, with the operation of the first call's request."""
    return ArmResponse(status=202, headers=operation_headers(call, _any_vm(context, request), request))


def empty_response(context: RequestContext, call: ArmCall, request: MaintenanceRequest) -> ArmResponse:
    """Return the empty 204 response to a repeated call of an eviction, which has no operation to poll."""
    return ArmResponse(status=204)


def once(handler: ArmHandler, show_repeated: RepeatedResponse = accepted_response) -> ArmHandler:
    """Return a handler that calls `handler` once, and answers repeated calls with `show_repeated`.

    The handler must give its request the call's `request_key`: a call is recognized by the stored request, so a call
    that stored none, as after an error, runs the handler again.
    """

    async def handle(context: RequestContext, call: ArmCall) -> ArmResponse:
        if not call.client_request_id:
            return await handler(context, call)

        async def create(key: RequestKey) -> ArmResponse:
            return await handler(context, replace(call, request_key=key))

        async def show(request: MaintenanceRequest) -> ArmResponse:
            await context.wait_for_reconciler()
            return show_repeated(context, call, request)

        return await context.control.request_keys.run_once(_request_key(context, call), create, show)

    return handle


def _request_key(context: RequestContext, call: ArmCall) -> RequestKey:
    asked = {"method": call.method, "path": call.path.casefold(), "query": dict(call.query)}
    asked["body"] = canonical_body(call.body)
    at = context.dependencies.real_time()
    # What the call asks for is part of the key itself: another body is another request, not a mistake.
    content = make_request_key("", "", asked, at=at).digest
    name = f"{CLIENT_REQUEST_ID_HEADER}: {call.client_request_id}\n{content}"
    return make_request_key(context.principal.id, name, asked, at=at, lifetime_s=REPEAT_WINDOW_S)


def _any_vm(context: RequestContext, request: MaintenanceRequest) -> Vm | None:
    """The first VM of the request, present or removed; None if none of them is stored any more."""
    parts: list[Event | PlannedEvent] = [*request_events(context, request)]
    parts += context.store.planned(request_id=request.id)
    for part in parts:
        vms = context.store.vms(scope_id=part.scope_id, removed=True)
        if (found := next((vm for vm in vms if vm.name in part.vms), None)) is not None:
            return found
    return None
