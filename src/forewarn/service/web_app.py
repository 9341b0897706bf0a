"""Builds the starlette app that mounts the API, the ARM facade, the portal and /metrics.

Its middleware keeps plain HTTP to this machine, and answers a change only when VMs can see it.
"""

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

from forewarn.base.metrics_server import METRICS_CONTENT_TYPE
from forewarn.control.directory import FleetDirectory
from forewarn.core.access import Principal, Right, owner_principal
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import NotFound, Unauthenticated
from forewarn.web.api_errors import error_response, make_error_response
from forewarn.web.api_routes import ROUTES, api_routes
from forewarn.web.arm.routes import arm_routes
from forewarn.web.authentication import Authenticate
from forewarn.web.context import ContextFactory, RequestContext
from forewarn.web.dependencies import Dependencies
from forewarn.web.pipeline import run_request
from forewarn.web.portal.browser_security import SecurityHeadersMiddleware
from forewarn.web.portal.context import PORTAL_PREFIX, SessionAuthenticator
from forewarn.web.portal.routes import portal_routes
from forewarn.web.routing import API_PREFIX
from forewarn.web.server import is_loopback_address

_SAFE_METHODS = (HTTPMethod.GET, HTTPMethod.HEAD)
_PLAIN_HTTP_PATHS = ("/", "/metrics", PORTAL_PREFIX)


class ReadYourWritesMiddleware:
    """ASGI middleware that holds the response to a change back until VMs can see the change."""

    def __init__(self, app: ASGIApp, *, wait_until_published: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._wait_until_published = wait_until_published

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_when_published(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._wait_until_published()
            await send(message)

        is_change = scope["type"] == "http" and scope["method"] not in _SAFE_METHODS
        await self._app(scope, receive, send_when_published if is_change else send)


class PlainHttpMiddleware:
    """ASGI middleware that answers plain HTTP with 400, except for the portal and /metrics on loopback.

    A web site may resolve its own name to a loopback address, so the Host header must name loopback too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rejection = (
            _plain_http_rejection(Request(scope)) if scope["type"] == "http" and scope["scheme"] == "http" else None
        )
        await (rejection or self._app)(scope, receive, send)


def _plain_http_rejection(request: Request) -> Response | None:
    host = request.headers.get("host", "")
    if not _is_loopback_host_header(host):
        sentence = f"plain http is served only to this machine, not to {host[:100]!r}: call localhost, or use https"
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


def _metrics_routes(
    make_context: ContextFactory,
    authenticate_session: SessionAuthenticator | None,
    make_context_for: Callable[..., RequestContext],
) -> list[BaseRoute]:
    async def endpoint(request: Request) -> Response:
        return await run_request(
            request,
            authenticate=authenticate_request,
            handle=show_metrics,
            render_error=lambda error, _: error_response(error),
        )

    async def show_metrics(context: RequestContext) -> Response:
        context.require(Right.READ, ROOT_RESOURCE)
        if context.dependencies.render_metrics is None:
            raise NotFound("this service has no metrics: call one that was started with `forewarn serve`")
        text = await context.dependencies.render_metrics()
        return Response(text, headers={"Content-Type": METRICS_CONTENT_TYPE, "Cache-Control": "no-store"})

    async def authenticate_request(request: Request) -> RequestContext:
        if authenticate_session is None or "authorization" in request.headers:
            return await make_context(request)
        try:
            return make_context_for((await authenticate_session(request)).principal)
        except Unauthenticated:
            return await make_context(request)  # its error says what a program must send

    return [Route("/metrics", endpoint, methods=["GET"])]


def build_web_app(
    dependencies: Dependencies,
    authenticate: Authenticate | None = None,
    directory: FleetDirectory | None = None,
    authenticate_session: SessionAuthenticator | None = None,
    sign_in_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Build the ASGI app of the API, Azure's API, /metrics and, with `authenticate_session`, the portal.

    Without `authenticate`, every caller is the owner of the unix socket, who may do everything.
    """
    authenticate = authenticate or _authenticate_as_owner(dependencies)
    fleet_directory = directory or FleetDirectory(dependencies.control.store)

    async def make_context(request: Request) -> RequestContext:
        return RequestContext(dependencies, fleet_directory, await authenticate(request), lambda: authenticate(request))

    by_name = {(route.method, route.path): route for route in ROUTES}
    portal = (
        portal_routes(dependencies, fleet_directory, authenticate_session, by_name)
        if authenticate_session is not None
        else []
    )
    metrics = _metrics_routes(
        make_context, authenticate_session, partial(RequestContext, dependencies, fleet_directory)
    )
    app = Starlette(
        routes=[*api_routes(make_context), *metrics, *sign_in_routes, *portal, *arm_routes(make_context)],
        exception_handlers={HTTPException: _handle_http_exception},
    )
    app.router.redirect_slashes = False
    if authenticate_session is not None:
        app.add_middleware(SecurityHeadersMiddleware)
    if dependencies.wait_until_published is not None:
        app.add_middleware(ReadYourWritesMiddleware, wait_until_published=dependencies.wait_until_published)
    app.state.dependencies = dependencies
    return app


def _authenticate_as_owner(dependencies: Dependencies) -> Authenticate:
    principal = owner_principal(dependencies.owner_name)

    async def authenticate(request: Request) -> Principal:
        return principal

    return authenticate


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    request_text = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request_text} is not served: use {allowed}"
        return make_error_response(405, "Rejected", message, headers=dict(error.headers or {}))
    if error.status_code == 404:
        return make_error_response(
            404, "NotFound", f"{request_text} is not served here: the API is under {API_PREFIX}/"
        )
    return make_error_response(error.status_code, "Rejected", f"{request_text} cannot be served: {error.detail}")
