"""The API's route table, and how a request is answered by its route."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from forewarn import __version__
from forewarn.base.times import encode_time, time_text
from forewarn.control.dry_run import DryRunTooLarge
from forewarn.core.access import Right
from forewarn.core.explain.preview import Preview, preview_to_confirm
from forewarn.web import (
    access,
    budgets,
    events,
    explain,
    faults,
    fleet,
    history,
    hosts,
    nodes,
    replays,
    requests,
    rollouts,
    service,
    standing_order,
    webhooks,
)
from forewarn.web.api_errors import CONFIRM_HEADER, confirmation_required, error_response
from forewarn.web.context import ContextFactory, RequestContext
from forewarn.web.errors import SURFACE_HEADER, surface_of
from forewarn.web.openapi import openapi_document
from forewarn.web.pipeline import read_body, run_request, run_route
from forewarn.web.replays import current_replay_view
from forewarn.web.request_keys import IDEMPOTENCY_KEY_HEADER, read_idempotency_key
from forewarn.web.request_parsing import HandlerCall, unique_query_params
from forewarn.web.requests import receipt_view, vms_asked_for
from forewarn.web.rollouts import current_rollout_view
from forewarn.web.routing import API_PREFIX, ApiRoute, handler_signature, listing, named_event, named_vm, signed_in

NOW_HEADER = "forewarn-now"  # of every response but errors: the service's time
READ, OPERATE, APPROVE, PLATFORM = Right.READ, Right.OPERATE, Right.APPROVE, Right.PLATFORM
ADMINISTER = Right.ADMINISTER


async def show_openapi(context: RequestContext, call: HandlerCall) -> dict[str, Any]:
    """Describe this API in OpenAPI 3.1."""
    return _cached_openapi()


async def list_routes(context: RequestContext, call: HandlerCall) -> dict[str, Any]:
    """List what this API has: each route with its method, path and summary."""
    routes = [
        {"method": route.method, "path": f"{API_PREFIX}{route.path}", "summary": _summary(route)} for route in ROUTES
    ]
    return {"version": __version__, "openapi": f"{API_PREFIX}/openapi.json", "routes": routes}


def _summary(route: ApiRoute) -> str:
    return (route.handler.__doc__ or "").partition("\n")[0]


@cache
def _cached_openapi() -> dict[str, Any]:
    return openapi_document(ROUTES)


# A VM's name may contain a slash (group/name), so it is a `:path`. Of two matching paths the first wins.
ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/", list_routes, READ, resources=signed_in),
    ApiRoute("GET", "/openapi.json", show_openapi, READ, resources=signed_in),
    ApiRoute("GET", "/service", service.show_service, READ, resources=listing),
    ApiRoute("GET", "/nodes", nodes.list_nodes, READ),
    ApiRoute("POST", "/nodes/resign", nodes.resign, PLATFORM),
    ApiRoute("GET", "/nodes/{name}", nodes.show_node, READ),
    ApiRoute("GET", "/fleet", fleet.show_fleet, READ, resources=listing),
    ApiRoute("POST", "/fleet/check", fleet.check_fleet, READ),
    ApiRoute("POST", "/fleet/apply", fleet.apply_fleet, PLATFORM),
    ApiRoute("POST", "/fleet/apply/preview", fleet.preview_apply_fleet, PLATFORM),
    ApiRoute("POST", "/fleet/vms", fleet.add_vm, PLATFORM),
    ApiRoute("POST", "/fleet/vms/{name:path}/preview", fleet.preview_remove_vm, PLATFORM),
    ApiRoute("DELETE", "/fleet/vms/{name:path}", fleet.remove_vm, PLATFORM),
    ApiRoute("POST", "/fleet/hosts", hosts.add_host, PLATFORM),
    ApiRoute("POST", "/fleet/hosts/{name}/preview", hosts.preview_remove_host, PLATFORM),
    ApiRoute("DELETE", "/fleet/hosts/{name}", hosts.remove_host, PLATFORM),
    ApiRoute(
        "POST",
        "/vms/{name:path}/perform-maintenance",
        requests.perform_maintenance,
        OPERATE,
        resources=named_vm,
        show_repeated=receipt_view,
    ),
    ApiRoute("GET", "/vms/{name:path}", fleet.show_vm, READ, resources=named_vm),
    ApiRoute("GET", "/vm-supervisors", fleet.list_vm_supervisors, READ, resources=listing),
    ApiRoute(
        "POST",
        "/requests",
        requests.create_request,
        OPERATE,
        202,
        resources=vms_asked_for,
        show_repeated=receipt_view,
    ),
    ApiRoute("POST", "/requests/preview", requests.preview_request, OPERATE, resources=vms_asked_for),
    ApiRoute("GET", "/requests/{id}", requests.show_request, READ, resources=listing),
    ApiRoute("POST", "/hosts/{name}/degrade", hosts.degrade_host, PLATFORM, 202, show_repeated=receipt_view),
    ApiRoute("POST", "/hosts/{name}/degrade/preview", hosts.preview_degrade_host, PLATFORM),
    ApiRoute("POST", "/hosts/{name}/fail/preview", hosts.preview_fail_host, PLATFORM),
    ApiRoute("POST", "/hosts/{name}/fail", hosts.fail_host, PLATFORM, 202, show_repeated=receipt_view),
    ApiRoute("POST", "/hosts/{name}/repair", hosts.repair_host, PLATFORM),
    ApiRoute("POST", "/hosts/{name}/confirm-down", hosts.confirm_host_down, PLATFORM),
    ApiRoute("POST", "/hosts/{name}/confirm-down/preview", hosts.preview_confirm_host_down, PLATFORM),
    ApiRoute("GET", "/rollouts", rollouts.list_rollouts, READ),
    ApiRoute("POST", "/rollouts", rollouts.start_rollout, PLATFORM, 202, show_repeated=current_rollout_view),
    ApiRoute("POST", "/rollouts/preview", rollouts.preview_rollout, PLATFORM),
    ApiRoute("POST", "/rollouts/plan", rollouts.plan_new_rollout, PLATFORM),
    ApiRoute("POST", "/rollouts/check", rollouts.try_rollout_checks, PLATFORM),
    ApiRoute("GET", "/rollouts/hold", rollouts.show_hold, READ, resources=listing),
    ApiRoute("POST", "/rollouts/hold", rollouts.hold_rollouts, PLATFORM),
    ApiRoute("POST", "/rollouts/hold/lift", rollouts.lift_hold, PLATFORM),
    ApiRoute("GET", "/rollouts/standing-order", standing_order.show_standing_order, READ),
    ApiRoute("POST", "/rollouts/standing-order", standing_order.set_standing_order, PLATFORM),
    ApiRoute("DELETE", "/rollouts/standing-order", standing_order.remove_standing_order, PLATFORM),
    ApiRoute("GET", "/rollouts/{id}", rollouts.show_rollout, READ),
    ApiRoute("GET", "/rollouts/{id}/checks", rollouts.show_rollout_checks, READ),
    ApiRoute("POST", "/rollouts/{id}/pause", rollouts.pause_rollout, PLATFORM),
    ApiRoute("POST", "/rollouts/{id}/resume", rollouts.resume_rollout, PLATFORM),
    ApiRoute("POST", "/rollouts/{id}/abort", rollouts.abort_rollout, PLATFORM),
    ApiRoute("POST", "/rollouts/{id}/abort/preview", rollouts.preview_abort_rollout, PLATFORM),
    ApiRoute("GET", "/budgets", budgets.list_budgets, READ),
    ApiRoute("POST", "/budgets", budgets.set_budget, PLATFORM),
    ApiRoute("DELETE", "/budgets/{name}", budgets.remove_budget, PLATFORM),
    ApiRoute("GET", "/events", events.list_events, READ, resources=listing),
    ApiRoute("POST", "/events/approve", events.approve_events, APPROVE, resources=listing),
    ApiRoute("POST", "/events/withdraw", events.withdraw_events, PLATFORM),
    ApiRoute("GET", "/events/{id}", events.show_event, READ, resources=listing),
    ApiRoute("POST", "/events/{id}/approve", events.approve_event, APPROVE, resources=named_event),
    ApiRoute("POST", "/events/{id}/withdraw", events.withdraw_event, PLATFORM),
    ApiRoute("GET", "/history", history.list_history, READ, resources=listing),
    ApiRoute("POST", "/history/prune", history.prune_history, PLATFORM),
    ApiRoute("GET", "/explain/{thing:path}", explain.explain, READ, resources=listing),
    ApiRoute("GET", "/replays", replays.list_replays, READ),
    ApiRoute("POST", "/replays", replays.start_replay, PLATFORM, 202, show_repeated=current_replay_view),
    ApiRoute("GET", "/replays/{id}", replays.show_replay, READ),
    ApiRoute("DELETE", "/replays/{id}", replays.stop_replay, PLATFORM),
    ApiRoute("GET", "/faults", faults.list_faults, READ),
    ApiRoute("POST", "/faults", faults.set_fault, PLATFORM),
    ApiRoute("POST", "/faults/clear", faults.clear_faults, PLATFORM),
    ApiRoute("POST", "/faults/storm", faults.start_fault_storm, PLATFORM),
    ApiRoute("DELETE", "/faults/{id}", faults.clear_fault, PLATFORM),
    ApiRoute("GET", "/clock", service.show_clock, READ, resources=listing),
    ApiRoute("POST", "/clock/advance", service.advance_clock, PLATFORM),
    ApiRoute("POST", "/clock/speed", service.set_clock_speed, PLATFORM),
    ApiRoute("POST", "/backup", service.create_backup, ADMINISTER),
    ApiRoute("GET", "/doctor", service.run_health_checks, READ),
    ApiRoute("GET", "/access", access.show_access, ADMINISTER),
    ApiRoute("GET", "/access/me", access.show_caller, READ, resources=signed_in),
    ApiRoute("POST", "/access/clients", access.add_client, ADMINISTER),
    ApiRoute("POST", "/access/clients/{id}/secret", access.renew_client_secret, ADMINISTER),
    ApiRoute("DELETE", "/access/clients/{id}", access.remove_client, ADMINISTER),
    ApiRoute("POST", "/access/grants", access.grant_role, ADMINISTER),
    ApiRoute("DELETE", "/access/grants/{id}", access.revoke_role, ADMINISTER),
    ApiRoute("POST", "/access/links", access.create_sign_in_link, ADMINISTER),
    ApiRoute("GET", "/webhooks", webhooks.list_webhooks, ADMINISTER),
    ApiRoute("POST", "/webhooks", webhooks.add_webhook, ADMINISTER),
    ApiRoute("DELETE", "/webhooks/{id}", webhooks.remove_webhook, ADMINISTER),
    ApiRoute("POST", "/webhooks/{id}/test", webhooks.test_webhook, ADMINISTER),
)


# A change whose path has a `/preview` can be previewed, and may have to be confirmed.
PREVIEW_ROUTES = {route.path.removesuffix("/preview"): route for route in ROUTES if route.path.endswith("/preview")}


def api_routes(make_context: ContextFactory) -> list[BaseRoute]:
    """Return the starlette routes of everything under `/forewarn/v1`."""
    by_path: dict[str, list[ApiRoute]] = defaultdict(list)
    for route in ROUTES:
        by_path[route.path].append(route)
    by_noun: dict[str, list[BaseRoute]] = defaultdict(list)
    for path, same_path in by_path.items():
        by_noun[_noun_of(path)].append(_starlette_route(make_context, path, same_path))
    return [Mount(API_PREFIX, app=_NounRouter(by_noun))]


def _noun_of(path: str) -> str:
    """The first part of a path below the API's prefix, such as `events` of `/events/1/withdraw`."""
    return path.split("/", 2)[1]


class _NounRouter:
    """An ASGI app that calls the route of a request, of the routes with the same noun."""

    # A starlette router compares paths one after the other, which takes long with the whole table.

    def __init__(self, routes_by_noun: Mapping[str, Sequence[BaseRoute]]) -> None:
        self._routers = {noun: Router(routes, redirect_slashes=False) for noun, routes in routes_by_noun.items()}
        self._unknown_noun = Router(redirect_slashes=False)  # answers 404

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        noun = _noun_of(scope["path"].removeprefix(API_PREFIX) or "/")
        await self._routers.get(noun, self._unknown_noun)(scope, receive, send)


def _starlette_route(make_context: ContextFactory, path: str, routes: Iterable[ApiRoute]) -> Route:
    by_method = {route.method: route for route in routes}
    for route in by_method.values():
        handler_signature(route.handler)  # a wrong signature is an error at start, not at the first request

    async def endpoint(request: Request) -> Response:
        route = by_method["GET" if request.method == "HEAD" else request.method]

        def render_error(error: Exception, _: RequestContext | None) -> Response:
            return error_response(error, surface_of(request.headers.get(SURFACE_HEADER)))

        return await run_request(
            request,
            authenticate=make_context,
            handle=lambda context: _answer(route, context, request),
            render_error=render_error,
        )

    return Route(path, endpoint, methods=list(by_method))


async def _preview_to_confirm(route: ApiRoute, context: RequestContext, call: HandlerCall) -> Preview | None:
    """The preview of a change that a person has to confirm; None if nobody has to, as in a lab."""
    preview_route = PREVIEW_ROUTES.get(route.path) if route.method != "GET" else None
    _, _, is_lab = context.control.lab_clock.status()
    if preview_route is None or is_lab:
        return None
    try:
        preview: Preview = await run_route(context, preview_route, call)
    except DryRunTooLarge as error:
        return preview_to_confirm(context.now(), f"There is no preview: {error}.")
    return preview if preview.confirm else None


async def _answer(route: ApiRoute, context: RequestContext, request: Request) -> Response:
    body = await read_body(request)
    surface = request.headers.get(SURFACE_HEADER)
    query = unique_query_params(request)
    call = HandlerCall(path_params=request.path_params, query=query, body=body, surface_header=surface)
    if request.headers.get(CONFIRM_HEADER) == "ask":
        preview = await _preview_to_confirm(route, context, call)
        if preview is not None:
            return confirmation_required(preview)
    key = read_idempotency_key(request.headers) if IDEMPOTENCY_KEY_HEADER in request.headers else ""
    answer = msgspec.json.encode(await run_route(context, route, call, key), enc_hook=encode_time)
    # The time of the service: clients show times relative to it, and a lab's differs from theirs.
    headers = {NOW_HEADER: time_text(context.now())}
    return Response(answer, status_code=route.status, media_type="application/json", headers=headers)
