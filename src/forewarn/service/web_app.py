"""Builds the starlette app that mounts the API, the ARM facade, the portal and /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPMethod

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.api.errors import error_response, make_error_response
from forewarn.api.routes import ROUTES, api_routes
from forewarn.arm.routes import arm_routes
from forewarn.core.access import Principal, Right, owner_principal
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import NotFound, Unauthenticated
from forewarn.portal.browser_security import SecurityHeadersMiddleware
from forewarn.portal.context import PORTAL_PREFIX, SessionAuthenticator
from forewarn.portal.routes import portal_routes
from forewarn.web.authentication import Authenticate
from forewarn.web.context import ContextFactory, RequestContext
from forewarn.web.dependencies import Dependencies
from forewarn.web.directory import FleetDirectory
from forewarn.web.routing import API_PREFIX
from forewarn.web.server import is_loopback_address

_SAFE_METHODS = (HTTPMethod.GET, HTTPMethod.HEAD)


class ReadYourWritesMiddleware:
    def __init__(self, app: ASGIApp, *, shown: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._wait_until_published = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_when_shown(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._wait_until_published()
            await send(message)

        is_change = scope["type"] == "http" and scope["method"] not in _SAFE_METHODS
        await self._app(scope, receive, send_when_shown if is_change else send)


_PLAIN_HTTP_PATHS = ("/", "/metrics", PORTAL_PREFIX)


class PlainHttpMiddleware:
    """Only loopback gets this far. A web site may give that address a name of its own, so the name counts too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = (
            _plain_http_rejection(Request(scope)) if scope["type"] == "http" and scope["scheme"] == "http" else None
        )
        await (refused or self._app)(scope, receive, send)


def _plain_http_rejection(request: Request) -> Response | None:
    host = request.headers.get("host", "")
    if not _is_loopback_host_header(host):
        sentence = f"plain http is served to this machine alone, not to {host[:100]!r}: call localhost, or use https"
        return make_error_response(400, "Rejected", sentence)
    path = request.scope["path"]
    if path in _PLAIN_HTTP_PATHS or path.startswith(f"{PORTAL_PREFIX}/"):
        return None
    return make_error_response(
        400, "Rejected", f"{request.method} {path} is served over https only: call https://{host}{path}"
    )


def _is_loopback_host_header(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    if not (port.isascii() and port.isdecimal()):
        return False
    return name.lower() == "localhost" or is_loopback_address(name.removeprefix("[").removesuffix("]"))


METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_routes(
    make_context: ContextFactory, welcome: SessionAuthenticator | None, see: Callable[..., RequestContext]
) -> list[BaseRoute]:
    async def endpoint(request: Request) -> Response:
        try:
            context = await _let_in(request)
            context.require(Right.READ, ROOT_RESOURCE)
            if context.dependencies.render_metrics is None:
                raise NotFound("this service counts nothing for Prometheus: ask one that `forewarn serve` has started")
            shown = await context.dependencies.render_metrics()
        except Exception as error:
            return error_response(error)
        return Response(shown, headers={"Content-Type": METRICS_CONTENT_TYPE, "Cache-Control": "no-store"})

    async def _let_in(request: Request) -> RequestContext:
        if welcome is None or "authorization" in request.headers:
            return await make_context(request)
        try:
            return see((await welcome(request)).principal)
        except Unauthenticated:
            return await make_context(request)  # who says what a program has to send

    return [Route("/metrics", endpoint, methods=["GET"])]


def build_web_app(
    dependencies: Dependencies,
    authenticate: Authenticate | None = None,
    directory: FleetDirectory | None = None,
    welcome: SessionAuthenticator | None = None,
    doors: Sequence[BaseRoute] = (),
) -> Starlette:
    """The app for those whom `admit` lets in; without it, for the owner of the socket, who may do everything.

    With `welcome`, which tells who is signed in there, it has the portal too; `doors` are where people sign in.
    """
    authenticate = authenticate or _authenticate_as_owner(dependencies)
    names = directory or FleetDirectory(dependencies.control.store)

    async def make_context(request: Request) -> RequestContext:
        return RequestContext(dependencies, names, await authenticate(request), lambda: authenticate(request))

    by_name = {(route.method, route.path): route for route in ROUTES}
    portal = portal_routes(dependencies, names, welcome, by_name) if welcome is not None else []
    scraped = metrics_routes(make_context, welcome, partial(RequestContext, dependencies, names))
    app = Starlette(
        routes=[*api_routes(make_context), *scraped, *doors, *portal, *arm_routes(make_context)],
        exception_handlers={HTTPException: _handle_http_exception},
    )
    app.router.redirect_slashes = False
    if welcome is not None:
        app.add_middleware(SecurityHeadersMiddleware)
    if dependencies.wait_until_published is not None:
        app.add_middleware(ReadYourWritesMiddleware, shown=dependencies.wait_until_published)
    app.state.dependencies = dependencies
    return app


def _authenticate_as_owner(dependencies: Dependencies) -> Authenticate:
    principal = owner_principal(dependencies.owner_name)

    async def authenticate(request: Request) -> Principal:
        return principal

    return authenticate


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{what} is not served: use {allowed}"
        return make_error_response(405, "Rejected", message, headers=dict(error.headers or {}))
    if error.status_code == 404:
        return make_error_response(404, "NotFound", f"{what} is not served here: the API lives under {API_PREFIX}/")
    return make_error_response(error.status_code, "Rejected", f"{what} cannot be served: {error.detail}")
