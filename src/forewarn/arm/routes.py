"""The route table of the ARM facade, and the dispatch of a request to its route."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn.arm import actions, approvals, discovery, operations, resources, token_endpoint, updates
from forewarn.arm.api_versions import require_known_version
from forewarn.arm.errors import arm_error_response, make_arm_error
from forewarn.arm.routing import AnonymousArmHandler, ArmCall, ArmHandler, ArmResponse, ArmRoute
from forewarn.web.context import ContextFactory
from forewarn.web.request_parsing import MAX_BODY_BYTES, MAX_FORM_BYTES, read_limited_body, unique_query_params

ROUTES: tuple[ArmRoute, ...] = (
    *discovery.ROUTES,
    *token_endpoint.ROUTES,
    *resources.ROUTES,
    *actions.ROUTES,
    *updates.ROUTES,
    *operations.ROUTES,
    *approvals.ROUTES,
)

_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_FORM_TYPE = "application/x-www-form-urlencoded"


def arm_routes(make_context: ContextFactory) -> list[Route]:
    async def endpoint(request: Request) -> Response:
        answer = await _dispatch(make_context, request)
        body = b"" if answer.body is None else msgspec.json.encode(answer.body)
        media = None if answer.body is None else "application/json"
        return Response(body, status_code=answer.status, media_type=media, headers=dict(answer.headers))

    return [Route("/{path:path}", endpoint, methods=_ALL_METHODS)]


async def _dispatch(make_context: ContextFactory, request: Request) -> ArmResponse:
    path = _normalize_path(request.scope["path"])  # not from its URL, where some signs are quoted again
    fitting = [(route, names) for route in ROUTES if (names := route.match_path(path)) is not None]
    method = "GET" if request.method == "HEAD" else request.method
    found = next(((route, names) for route, names in fitting if route.method == method), None)
    if found is None:
        return _route_not_found(request.method, path, [route.method for route, _ in fitting])
    try:
        return await _invoke(make_context, request, path, *found)
    except ClientDisconnect:
        return ArmResponse(status=400)  # nobody is left to read it
    except Exception as error:
        return arm_error_response(error)


async def _invoke(
    make_context: ContextFactory, request: Request, path: str, route: ArmRoute, names: dict[str, str]
) -> ArmResponse:
    # Who asks is settled first: a stranger learns nothing, not even that the body is too long.
    context = await make_context(request) if route.right is not None else None
    longest = MAX_BODY_BYTES if context is not None else MAX_FORM_BYTES
    body = await read_limited_body(request, longest)
    if body is None:
        return make_arm_error(413, "RequestEntityTooLarge", f"the body is longer than {longest} bytes: send less")
    call = ArmCall(
        method=route.method,
        path=path,
        path_params=names,
        query=unique_query_params(request),
        body=body,
        base_url=f"{request.url.scheme}://{request.url.netloc}",
        resource=route.resource_id(names),
        form_fields=_parse_form(request, body),
        authorization=request.headers.get("authorization", ""),
    )
    if context is None or route.right is None:
        return await cast(AnonymousArmHandler, route.handler)(request.app.state.dependencies, call)
    if context.dependencies.strict_api_versions:
        require_known_version(call.api_version, path)
    route.authorize(context, call, route.right)
    return await cast(ArmHandler, route.handler)(context, call)


def _normalize_path(path: str) -> str:
    """As clients mean it: some double a slash, some end with one."""
    single = re.sub(r"/{2,}", "/", path)
    return single if single == "/" else single.rstrip("/")


def _parse_form(request: Request, body: bytes) -> dict[str, str]:
    if not request.headers.get("content-type", "").startswith(_FORM_TYPE):
        return {}
    return dict(parse_qsl(body.decode("utf-8", errors="replace"), keep_blank_values=True))


def _route_not_found(method: str, path: str, allowed: list[str]) -> ArmResponse:
    if allowed:
        message = f"{method} {path} is not served: use {', '.join(sorted(set(allowed)))}"
        answer = make_arm_error(405, "MethodNotAllowed", message)
        return ArmResponse(status=405, body=answer.body, headers={"Allow": ", ".join(sorted(set(allowed)))})
    message = (
        f"{method} {path} is not served here: our own API lives under /forewarn/v1/, Azure's under /subscriptions/"
    )
    return make_arm_error(404, "ResourceNotFound", message)
