"""The operators' surfaces on the HTTPS port: tokens, sessions, sign-in and the app that serves them.

The history uses lab time; tokens use real time (spec §12).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request

from forewarn.auth.client_secrets import read_secret
from forewarn.auth.code_flow import AuthorizationCodeFlow
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.sessions import SessionIssuer, SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import SigningKey, TokenIssuer
from forewarn.base.clock import read_real_time
from forewarn.cluster.forwarding import forwarded_owner
from forewarn.control.directory import FleetDirectory
from forewarn.core.access import ADMIN_CLIENT_ID, Principal
from forewarn.service.api_port import ApiPort, bind_api_port
from forewarn.service.data_directory import DataDirectory, SecretFiles
from forewarn.service.first_start import ensure_admin_client, load_or_create_tenant_id
from forewarn.service.settings import Settings
from forewarn.service.web_app import PlainHttpMiddleware, build_web_app
from forewarn.store.interface import Store
from forewarn.web.authentication import BearerAuthenticator
from forewarn.web.connection_slots import claim_connection
from forewarn.web.dependencies import Dependencies
from forewarn.web.portal.browser_security import PORTAL_HOME
from forewarn.web.portal.context import CurrentSession
from forewarn.web.portal.session import SessionManager
from forewarn.web.portal.sign_in import ONE_TIME_LINK_PATH, sign_in_routes


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
