"""The route table of the ARM facade, and the dispatch of a request to its route."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.web.arm import (
    actions,
    apply_updates,
    approvals,
    discovery,
    maintenance_configurations,
    operations,
    resources,
    token_endpoint,
    updates,
)
from forewarn.web.arm.errors import arm_error_response, make_arm_error
from forewarn.web.arm.operations import CLIENT_REQUEST_ID_HEADER
from forewarn.web.arm.routing import AnonymousArmHandler, ArmCall, ArmHandler, ArmResponse, ArmRoute
from forewarn.web.arm.updates import require_known_version
from forewarn.web.context import ContextFactory, RequestContext
from forewarn.web.pipeline import read_body, run_request
from forewarn.web.request_parsing import MAX_BODY_BYTES, MAX_FORM_BYTES, unique_query_params

ROUTES: tuple[ArmRoute, ...] = (
    *discovery.ROUTES,
    *token_endpoint.ROUTES,
    *resources.ROUTES,
    *actions.ROUTES,
    *updates.ROUTES,
    *operations.ROUTES,
    *approvals.ROUTES,
    *maintenance_configurations.ROUTES,
    *apply_updates.ROUTES,
)

_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_FORM_TYPE = "application/x-www-form-urlencoded"


def arm_routes(make_context: ContextFactory) -> list[Route]:
    """Return one starlette route that answers every path as Azure Resource Manager does.

    Mount it last, because it matches every path. `make_context` authenticates callers, except for routes without a
    right.
    """

    async def endpoint(request: Request) -> Response:
        path = _normalize_path(request.scope["path"])  # not request.url.path, which quotes some characters again
        matching = [(route, params) for route in ROUTES if (params := route.match_path(path)) is not None]
        method = "GET" if request.method == "HEAD" else request.method
        found = next(((route, params) for route, params in matching if route.method == method), None)
        if found is None:
            return _starlette_response(_route_not_found(request.method, path, [route.method for route, _ in matching]))
        route, params = found
        return await run_request(
            request,
            authenticate=make_context if route.right is not None else _anonymous,
            handle=lambda context: _answer(context, request, path, route, params),
            render_error=lambda error, _: _starlette_response(arm_error_response(error)),
        )

    return [Route("/{path:path}", endpoint, methods=_ALL_METHODS)]


async def _anonymous(request: Request) -> None:
    """Skips authentication: discovery and sign-in need no token."""


async def _answer(
    context: RequestContext | None, request: Request, path: str, route: ArmRoute, params: dict[str, str]
) -> Response:
    body = await read_body(request, MAX_BODY_BYTES if context is not None else MAX_FORM_BYTES)
    call = ArmCall(
        method=route.method,
        path=path,
        path_params=params,
        query=unique_query_params(request),
        body=body,
        base_url=f"{request.url.scheme}://{request.url.netloc}",
        resource=route.resource_id(params),
        form_fields=_parse_form(request, body),
        authorization=request.headers.get("authorization", ""),
        client_request_id=request.headers.get(CLIENT_REQUEST_ID_HEADER, ""),
    )
    if context is None or route.right is None:
        handle_anonymous = cast(AnonymousArmHandler, route.handler)
        return _starlette_response(await handle_anonymous(request.app.state.dependencies, call))
    if context.dependencies.strict_api_versions:
        require_known_version(call.api_version, path)
    route.authorize(context, call, route.right)
    return _starlette_response(await cast(ArmHandler, route.handler)(context, call))


def _starlette_response(response: ArmResponse) -> Response:
    body = b"" if response.body is None else msgspec.json.encode(response.body)
    media_type = None if response.body is None else "application/json"
    return Response(body, status_code=response.status, media_type=media_type, headers=dict(response.headers))


def _normalize_path(path: str) -> str:
    """The path without doubled slashes and without a slash at its end, which some clients send."""
    single = re.sub(r"/{2,}", "/", path)
    return single if single == "/" else single.rstrip("/")


def _parse_form(request: Request, body: bytes) -> dict[str, str]:
    if not request.headers.get("content-type", "").startswith(_FORM_TYPE):
        return {}
    return dict(parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True))


def _route_not_found(method: str, path: str, allowed: list[str]) -> ArmResponse:
    if allowed:
        message = f"{method} {path} is not served: use {', '.join(sorted(set(allowed)))}"
        response = make_arm_error(405, "MethodNotAllowed", message)
        return ArmResponse(status=405, body=response.body, headers={"Allow": ", ".join(sorted(set(allowed)))})
    message = f"{method} {path} is not served here: our own API is under /forewarn/v1/, Azure's under /subscriptions/"
    return make_arm_error(404, "ResourceNotFound", message)
