"""The request pipeline that api, arm and portal share.

Its steps: authenticate, read the body, authorize, handle, render errors. Each surface passes its own parts to
`run_request`: how it authenticates, how it answers and how it renders an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from forewarn.core.access import Right
from forewarn.core.request import MaintenanceRequest, RequestKey
from forewarn.web.context import RequestContext
from forewarn.web.request_keys import request_key
from forewarn.web.request_parsing import MAX_BODY_BYTES, BodyTooLarge, HandlerCall, read_limited_body
from forewarn.web.routing import ApiRoute, HandlerSignature, ResourceSelector

Caller = TypeVar("Caller")  # the result of authentication: a request context, with the session in the portal


class GuardedRoute(Protocol):
    """A route, and what a caller needs for it: `right` over each resource id that `resources` returns."""

    @property
    def right(self) -> Right:
        """The right that a caller of this route needs over each resource that `resources` returns."""

    @property
    def resources(self) -> ResourceSelector:
        """The function that returns the resource ids of a call; the caller needs `right` over each of them."""

    @property
    def signature(self) -> HandlerSignature:
        """What the route's handler declares: the structs of its body and query, its response type and summary."""


async def run_request(
    request: Request,
    *,
    authenticate: Callable[[Request], Awaitable[Caller]],
    handle: Callable[[Caller], Awaitable[Response]],
    render_error: Callable[[Exception, Caller | None], Response],
) -> Response:
    """Authenticate the caller of a request, then return the response of `handle(caller)`.

    Every error of both becomes the response of `render_error`. Authentication comes before everything else: an unknown
    caller learns nothing, not even that a body is too long.
    """
    caller: Caller | None = None
    try:
        caller = await authenticate(request)
        return await handle(caller)
    except ClientDisconnect:
        return Response(status_code=400)  # the client is gone and does not read it
    except Exception as error:
        return render_error(error, caller)


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    body = await read_limited_body(request, max_bytes)
    if body is None:
        raise BodyTooLarge(max_bytes)
    return body


def authorize_and_parse(route: GuardedRoute, context: RequestContext, call: HandlerCall) -> dict[str, msgspec.Struct]:
    """Check the caller's right over the resources of a call; return its handler's keyword arguments."""
    for resource in route.resources(context, call):
        context.require(route.right, resource)
    return route.signature.parse(call)


async def run_route(context: RequestContext, route: ApiRoute, call: HandlerCall, key: str = "") -> Any:
    """Check the caller's right, parse the call, run the route's handler, and return what that returns.

    A repeated call of the same caller with the same `key` does not run the handler: it returns what the route's
    `show_repeated` returns for the request of the first call, as it is now. For routes that create no request the key
    is ignored.
    """
    show_repeated = route.show_repeated
    if not key or show_repeated is None:
        return await _handle(context, route, call)

    async def create(request_key: RequestKey) -> Any:
        return await _handle(context, route, replace(call, request_key=request_key))

    async def show(request: MaintenanceRequest) -> Any:
        # The caller's rights may have changed since the first call.
        return await show_repeated(context, context.find_request(request.id))

    return await context.control.request_keys.run_once(request_key(context, route, call, key), create, show)


async def _handle(context: RequestContext, route: ApiRoute, call: HandlerCall) -> Any:
    arguments = authorize_and_parse(route, context, call)
    return await route.handler(context, call, **arguments)
