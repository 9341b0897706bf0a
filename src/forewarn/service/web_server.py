"""The HTTPS port for operators: its socket, certificate, tokens, sessions, and its renewal.

The history uses lab time; certificates and tokens use real time (spec §12).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request

from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path, load_user_certificate
from forewarn.auth.client_secrets import read_secret
from forewarn.auth.code_flow import AuthorizationCodeFlow
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.pem import CertificateFiles, validity_problem
from forewarn.auth.sessions import SessionIssuer, SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import SigningKey, TokenIssuer
from forewarn.clock import read_real_time
from forewarn.core.access import ADMIN_CLIENT_ID, Principal
from forewarn.errors import ForewarnError, Rejected
from forewarn.portal.browser_security import PORTAL_HOME
from forewarn.portal.context import CurrentSession
from forewarn.portal.session import SessionManager
from forewarn.portal.sign_in import ONE_TIME_LINK_PATH, sign_in_routes
from forewarn.service.data_directory import DataDirectory
from forewarn.service.first_start import ensure_admin_client, load_or_create_tenant_id
from forewarn.service.settings import Settings, parse_console_address
from forewarn.service.web_app import PlainHttpMiddleware, build_web_app
from forewarn.store.interface import Store
from forewarn.web.authentication import BearerAuthenticator
from forewarn.web.connection_slots import claim_connection
from forewarn.web.dependencies import Dependencies
from forewarn.web.directory import FleetDirectory
from forewarn.web.server import serve_tls

log = logging.getLogger(__name__)
_BACKLOG = 1024
_RENEWAL_CHECK_S = 6 * 3600.0
_INVALID_CHECK_S = 60.0  # while the certificate is not valid: the clock may be set any moment
_RENEWAL_ADVICE = "correct what prevents its renewal"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorServer:
    """The HTTPS port for operators (the console), ready to serve; made by `open_operator_server`."""

    sock: socket.socket  # bound and listening
    url: str  # with https, and the port that is bound
    certificate_files: CertificateFiles  # as of the start
    ensure_certificate: Callable[[], CertificateFiles]  # returns the current files; renews a certificate that ends soon
    ca_path: Path | None  # None: the certificate is not from the local CA
    sign_in: TokenService  # issues and verifies the tokens of operators
    admin_secret_path: Path  # the file with the administrator client's secret; it may not exist
    portal_url: str  # over plain http, if a browser of this machine can reach it so
    sessions: SessionIssuer  # of the portal
    links: SignInLinks  # one-time links that sign in to the portal
    code_flow: AuthorizationCodeFlow | None  # None: no sign-in to the portal at an external issuer

    @asynccontextmanager
    async def serve(self, dependencies: Dependencies, directory: FleetDirectory) -> AsyncIterator[None]:
        """Serve API, ARM facade, /metrics and portal to authenticated callers until the block is left.

        `directory` is the index of VM names, shared with other apps. Checks every few hours whether the certificate
        needs renewal. A certificate that is not valid now is served with a warning, and checked every minute. At the
        end it closes `sock`.
        """
        sessions = SessionManager(dependencies=dependencies, sign_in=self.sign_in, sessions=self.sessions)
        bearer = BearerAuthenticator(sign_in=self.sign_in, store=dependencies.control.store)

        async def authenticate(request: Request) -> Principal:
            principal = await bearer.authenticate(request)
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
        async with serve_tls(app, self.sock, self.certificate_files.certificate, self.certificate_files.key) as context:
            renewing = asyncio.create_task(self._renew_forever(context))
            try:
                yield
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    async def _renew_forever(self, context: ssl.SSLContext) -> None:
        """Check the certificate every few hours, because it may expire while the service runs."""
        served = self.certificate_files
        while True:
            if served.problem:
                log.warning("VMs are served, but clients do not trust the console now: %s", served.problem)
            await asyncio.sleep(_INVALID_CHECK_S if served.problem else _RENEWAL_CHECK_S)
            served = await self.renew_certificate(context, served)

    async def renew_certificate(self, context: ssl.SSLContext, served: CertificateFiles) -> CertificateFiles:
        """Renew the certificate if it ends soon, and load its files into `context`, for new connections.

        Returns the files of the certificate that is served now. If renewal or loading fails, logs it and returns
        `served`, which it keeps, with the `problem` that it had or, if it is not valid any more, has now.
        """
        try:
            files = await asyncio.to_thread(self.ensure_certificate)
            context.load_cert_chain(files.certificate, files.key)
        except (ForewarnError, OSError) as error:
            log.warning("the console keeps its certificate, because it could not be renewed: %s", error)
            problem = validity_problem(served.certificate, served.facts, read_real_time(), _RENEWAL_ADVICE)
            return msgspec.structs.replace(served, problem=served.problem or problem)
        return files

    def describe(self) -> dict[str, Any]:
        """What `GET /service` says of the console, without secrets.

        Its keys: "url", "portal", "tenant_id", "client_id", "ca" and "admin_secret" (paths), and "issuer" (the URL of
        the external issuer). "ca" and "issuer" are "" if there is none.
        """
        return {
            "url": self.url,
            "portal": self.portal_url,
            "tenant_id": self.sign_in.tenant_id,
            "client_id": ADMIN_CLIENT_ID,
            "ca": str(self.ca_path) if self.ca_path else "",
            "admin_secret": str(self.admin_secret_path),
            "issuer": self.sign_in.external.url if self.sign_in.external else "",
        }


async def open_operator_server(
    settings: Settings, directory: DataDirectory, store: Store, now: float
) -> OperatorServer | None:
    """Bind the HTTPS port and prepare to serve it; None if the settings want no port.

    Creates, where missing, keys, the certificate, the tenant id and, unless clients sign in at an external issuer, once
    the administrator client. `now` is lab time, for the history. The caller closes the server's `sock`. Raises Rejected
    if the address, the certificate or a secret's file cannot be used, Unavailable if the store cannot be written.
    """
    if not settings.console:
        return None
    sock = _bind_socket(settings.console)
    try:
        server = await _build_operator_server(settings, directory, store, sock)
        if server.sign_in.external is None:
            await ensure_admin_client(store, directory.admin_secret, now)
        return server
    except BaseException:
        sock.close()
        raise


async def _build_operator_server(
    settings: Settings, directory: DataDirectory, store: Store, sock: socket.socket
) -> OperatorServer:
    host, port = parse_console_address(settings.console)[0], int(sock.getsockname()[1])
    url = _base_url(host, port)
    names = (*settings.console_names, *_certificate_names(host))
    ensure_certificate = partial(_certificate_files, settings, directory, names)
    key = SigningKey.load_or_create(directory.tls / "token.key")
    issuer = TokenIssuer(
        f"{url}/adfs",
        key,
        lifetime_s=round(settings.token_minutes * 60),
        audiences=[f"https://{_url_host(name)}:{port}" for name in ("localhost", "127.0.0.1", "::1", *names)],
    )
    sign_in = TokenService(
        issuer=issuer, tenant_id=await load_or_create_tenant_id(store), external=_external_issuer(settings)
    )
    local_url = url.replace("https:", "http:", 1) if _is_local(host) else url
    return OperatorServer(
        sock=sock,
        url=url,
        certificate_files=ensure_certificate(),
        ensure_certificate=ensure_certificate,
        ca_path=None if settings.console_certificate else ca_certificate_path(directory.tls),
        sign_in=sign_in,
        admin_secret_path=directory.admin_secret,
        portal_url=f"{local_url}{PORTAL_HOME}",
        sessions=SessionIssuer(key=key, tenant_id=sign_in.tenant_id),
        links=SignInLinks(f"{local_url}{ONE_TIME_LINK_PATH}/", read_real_time),
        code_flow=_code_flow(settings, sign_in.external),
    )


def _bind_socket(console: str) -> socket.socket:
    host, port = parse_console_address(console)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        is_taken = error.errno == errno.EADDRINUSE
        raise Rejected(
            f"the console cannot listen on {console}: {'the port is in use' if is_taken else error.strerror}; "
            "name another with --console ADDRESS:PORT or the setting 'console'; \"\" means no console"
        ) from error
    return sock


def _certificate_files(settings: Settings, directory: DataDirectory, names: tuple[str, ...]) -> CertificateFiles:
    now = read_real_time()
    if settings.console_certificate:
        return load_user_certificate(Path(settings.console_certificate), Path(settings.console_key), now=now)
    return ServiceCertificates.load_or_create(directory.tls, names, now).server


def _base_url(host: str, port: int) -> str:
    """The URL with a host name that people type and that the certificate has."""
    return f"https://{'localhost' if _is_local(host) else _url_host(host)}:{port}"


def _is_local(host: str) -> bool:
    """Whether programs on this machine reach this address as localhost."""
    address = ip_address(host)
    return address.is_loopback or address.is_unspecified


def _certificate_names(host: str) -> tuple[str, ...]:
    address = ip_address(host)
    if address.is_loopback:
        return ()
    return (socket.gethostname().lower(),) if address.is_unspecified else (host,)


def _url_host(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _external_issuer(settings: Settings) -> ExternalIssuer | None:
    if not settings.oidc_issuer:
        return None
    return ExternalIssuer(settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks, client=settings.http_client)


def _code_flow(settings: Settings, external: ExternalIssuer | None) -> AuthorizationCodeFlow | None:
    if external is None or not settings.oidc_client_id:
        return None
    file = settings.oidc_client_secret_file
    return AuthorizationCodeFlow(external, settings.oidc_client_id, read_secret(Path(file)) if file else "")
