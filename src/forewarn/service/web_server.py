"""The operators' surfaces on the HTTPS port: tokens, sessions, sign-in and the app that serves them.

The history uses lab time; tokens use real time (spec §12).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPMethod
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.auth.client_secrets import read_secret
from forewarn.auth.code_flow import AuthorizationCodeFlow
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.sessions import SessionIssuer, SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import SigningKey, TokenIssuer
from forewarn.base.clock import read_real_time
from forewarn.base.http_server import METRICS_CONTENT_TYPE
from forewarn.cluster.forwarding import forwarded_owner
from forewarn.control.directory import FleetDirectory
from forewarn.core.access import ADMIN_CLIENT_ID, Principal, Right, owner_principal
from forewarn.core.resource_ids import ROOT_RESOURCE
from forewarn.errors import NotFound, Unauthenticated
from forewarn.service.api_port import ApiPort, bind_api_port
from forewarn.service.data_directory import DataDirectory, SecretFiles
from forewarn.service.first_start import ensure_admin_client, load_or_create_tenant_id
from forewarn.service.settings import Settings
from forewarn.store.interface import Store
from forewarn.web.api_errors import error_response, make_error_response
from forewarn.web.api_routes import ROUTES, api_routes
from forewarn.web.arm.routes import arm_routes
from forewarn.web.authentication import Authenticate, BearerAuthenticator
from forewarn.web.connection_slots import claim_connection
from forewarn.web.context import ContextFactory, RequestContext
from forewarn.web.dependencies import Dependencies
from forewarn.web.pipeline import run_request
from forewarn.web.portal.browser_security import PORTAL_HOME, SecurityHeadersMiddleware
from forewarn.web.portal.context import PORTAL_PREFIX, CurrentSession, SessionAuthenticator
from forewarn.web.portal.routes import portal_routes
from forewarn.web.portal.sign_in import ONE_TIME_LINK_PATH, SessionManager, sign_in_routes
from forewarn.web.routing import API_PREFIX
from forewarn.web.server import is_loopback_address

# Builds the starlette app that mounts the API, the ARM facade, the portal and /metrics.
#
# Its middleware keeps plain HTTP to this machine, and answers a change only when VMs can see it.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorServer:
    """The operators' surfaces on the HTTPS port; it accepts calls only within `serve`."""

    port: ApiPort  # bound, and served by `serve`
    url: str  # the setting `api_url`, else that of the port; the issuer of tokens is `/adfs` there
    sign_in: TokenService  # issues and verifies the tokens of operators
    admin_secret_path: Path  # the file with the administrator client's secret; it may not exist
    portal_url: str  # at `api_url`, if set; else over plain http, if a browser of this machine can reach it so
    sessions: SessionIssuer  # of the portal
    links: SignInLinks  # one-time links that sign in to the portal
    code_flow: AuthorizationCodeFlow | None  # None: no sign-in to the portal at an external issuer

    @asynccontextmanager
    async def serve(self, dependencies: Dependencies, directory: FleetDirectory) -> AsyncIterator[None]:
        """Serve the API, Azure's API, /metrics and the portal on the port until the block is left."""
        async with self.port.serve(self.build_app(dependencies, directory)):
            yield

    def build_app(self, dependencies: Dependencies, directory: FleetDirectory) -> Starlette:
        """Return the ASGI app with the API, Azure's API, /metrics and the portal."""
        sessions = SessionManager(dependencies=dependencies, sign_in=self.sign_in, sessions=self.sessions)
        bearer = BearerAuthenticator(sign_in=self.sign_in, store=dependencies.control.store)

        async def authenticate(request: Request) -> Principal:
            principal = forwarded_owner(request) or await bearer.authenticate(request)
            claim_connection(request, principal)
            return principal

        async def authenticate_session(request: Request) -> CurrentSession:
            session = await sessions.authenticate(request)
            claim_connection(request, session.principal)
            return session

        app = build_web_app(
            dependencies,
            authenticate,
            directory,
            authenticate_session=authenticate_session,
            sign_in_routes=sign_in_routes(sessions, self.links, self.code_flow),
        )
        app.add_middleware(PlainHttpMiddleware)
        return app

    def describe(self) -> dict[str, Any]:
        """Return what `GET /service` says of the API, without secrets."""
        return {
            "url": self.url,
            "portal": self.portal_url,
            "tenant_id": self.sign_in.tenant_id,
            "client_id": ADMIN_CLIENT_ID,
            "ca": str(self.port.ca_path) if self.port.ca_path else "",
            "admin_secret": str(self.admin_secret_path),
            "issuer": self.sign_in.external.url if self.sign_in.external else "",
        }


async def open_operator_server(
    settings: Settings, directory: DataDirectory, store: Store, now: float
) -> OperatorServer | None:
    """Bind the HTTPS port of a service alone and prepare to serve it; None if the settings want no port."""
    port = bind_api_port(settings, directory, directory.secrets)
    if port is None:
        return None
    try:
        return await make_operator_server(settings, port, directory.secrets, store, now)
    except BaseException:
        port.sock.close()
        raise


async def make_operator_server(
    settings: Settings, port: ApiPort, secrets: SecretFiles, store: Store, now: float
) -> OperatorServer:
    """Prepare the operators' surfaces for this port, with the keys in `secrets`; create missing ones."""
    key = SigningKey.load_or_create(secrets.token_key)
    url, browser_url = settings.api_url or port.url, settings.api_url or port.local_url
    issuer = TokenIssuer(
        f"{url}/adfs",
        key,
        lifetime_s=round(settings.token_minutes * 60),
        audiences=[url, port.advertised_url, *port.audiences],
    )
    sign_in = TokenService(
        issuer=issuer, tenant_id=await load_or_create_tenant_id(store), external=_external_issuer(settings)
    )
    server = OperatorServer(
        port=port,
        url=url,
        sign_in=sign_in,
        admin_secret_path=secrets.admin_secret,
        portal_url=f"{browser_url}{PORTAL_HOME}",
        sessions=SessionIssuer(key=key, tenant_id=sign_in.tenant_id),
        links=SignInLinks(f"{browser_url}{ONE_TIME_LINK_PATH}/", read_real_time),
        code_flow=_code_flow(settings, sign_in.external),
    )
    if sign_in.external is None:
        await ensure_admin_client(store, secrets.admin_secret, now)
    return server


def _external_issuer(settings: Settings) -> ExternalIssuer | None:
    if not settings.oidc_issuer:
        return None
    return ExternalIssuer(settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks, client=settings.http_client)


def _code_flow(settings: Settings, external: ExternalIssuer | None) -> AuthorizationCodeFlow | None:
    if external is None or not settings.oidc_client_id:
        return None
    file = settings.oidc_client_secret_file
    return AuthorizationCodeFlow(external, settings.oidc_client_id, read_secret(Path(file)) if file else "")
