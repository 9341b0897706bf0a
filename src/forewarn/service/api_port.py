"""The HTTPS port for operators: its bound socket, and its certificate, which it renews.

It can be bound and served before the service is ready, and serves any ASGI app. Certificates use real time (spec §12).
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
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp

from forewarn.auth.certificate_authority import LOOPBACK_NAMES
from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path, load_user_certificate
from forewarn.auth.pem import CertificateFiles, validity_problem
from forewarn.base.clock import read_real_time
from forewarn.errors import ForewarnError, Rejected
from forewarn.service.data_directory import DataDirectory, SecretFiles
from forewarn.service.settings import Settings, parse_api_address
from forewarn.web.server import ServingState, serve_tls

log = logging.getLogger(__name__)
_BACKLOG = 1024
_RENEWAL_CHECK_S = 6 * 3600.0
_INVALID_CHECK_S = 60.0  # while the certificate is not valid: the clock may be set any moment
_RENEWAL_ADVICE = "correct what prevents its renewal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPort:
    """The HTTPS port for operators, bound and listening; it can be served before the service is ready."""

    sock: socket.socket  # bound and listening
    url: str  # with https, `localhost` or the address that is bound, and the port that is bound
    local_url: str  # over plain http, if a browser of this machine can reach it so; else `url`
    advertised_url: str  # other machines reach it there, unless the port is on loopback
    names: tuple[str, ...]  # host names beside the loopback names; a certificate of our own CA has them
    certificate_files: CertificateFiles  # as of the start
    ensure_certificate: Callable[[], CertificateFiles]  # returns the current files; renews a certificate that ends soon
    ca_path: Path | None  # of our own CA's certificate; None: another CA issued the server's

    @property
    def number(self) -> int:
        """The number of the TCP port that is bound, never 0."""
        return int(self.sock.getsockname()[1])

    @property
    def audiences(self) -> list[str]:
        """The base URLs by which clients may call the API, for tokens; those of loopback names come first."""
        return [f"https://{_url_host(name)}:{self.number}" for name in (*LOOPBACK_NAMES, *self.names)]

    @asynccontextmanager
    async def serve(self, app: ASGIApp, state: ServingState | None = None) -> AsyncIterator[None]:
        """Serve an ASGI app on this port until the block is left; then close the socket.

        It checks the certificate every six hours, and renews it if it ends soon. One that is not valid now is served
        all the same, and checked every minute.
        """
        files = self.certificate_files
        async with serve_tls(app, self.sock, files.certificate, files.key, state) as context:
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
                log.warning("VMs are served, but clients do not trust the API now: %s", served.problem)
            await asyncio.sleep(_INVALID_CHECK_S if served.problem else _RENEWAL_CHECK_S)
            served = await self.renew_certificate(context, served)

    async def renew_certificate(self, context: ssl.SSLContext, served: CertificateFiles) -> CertificateFiles:
        """Renew the certificate if it ends soon, and let new connections use it; return the files served now."""
        try:
            files = await asyncio.to_thread(self.ensure_certificate)
            context.load_cert_chain(files.certificate, files.key)
        except (ForewarnError, OSError) as error:
            log.warning("the API keeps its certificate, because it could not be renewed: %s", error)
            problem = validity_problem(served.certificate, served.facts, read_real_time(), _RENEWAL_ADVICE)
            return msgspec.structs.replace(served, problem=served.problem or problem)
        return files


def bind_api_port(settings: Settings, directory: DataDirectory, secrets: SecretFiles) -> ApiPort | None:
    """Bind the HTTPS port for operators, and load or make its certificate; None if the settings have none."""
    if not settings.api:
        return None
    sock = _bind_socket(settings.api)
    try:
        host, port = parse_api_address(settings.api)[0], int(sock.getsockname()[1])
        url = _base_url(host, port)
        urls = filter(None, (settings.api_url, settings.advertise))
        names = (*settings.api_names, *_certificate_names(host), *(urlsplit(url).hostname or "" for url in urls))
        ensure_certificate = partial(_certificate_files, settings, directory, secrets, names)
        return ApiPort(
            sock=sock,
            url=url,
            local_url=url.replace("https:", "http:", 1) if _is_local(host) else url,
            advertised_url=settings.advertise or f"https://{_url_host(_reachable_name(host))}:{port}",
            names=names,
            certificate_files=ensure_certificate(),
            ensure_certificate=ensure_certificate,
            ca_path=None if settings.api_certificate else ca_certificate_path(secrets.authority),
        )
    except BaseException:
        sock.close()
        raise


def _bind_socket(address: str) -> socket.socket:
    host, port = parse_api_address(address)
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
            f"the API cannot listen on {address}: {'the port is in use' if is_taken else error.strerror}; "
            "name another with --api ADDRESS:PORT or the setting 'api'; \"\" means neither API nor portal"
        ) from error
    return sock


def _certificate_files(
    settings: Settings, directory: DataDirectory, secrets: SecretFiles, names: tuple[str, ...]
) -> CertificateFiles:
    now = read_real_time()
    if settings.api_certificate:
        return load_user_certificate(Path(settings.api_certificate), Path(settings.api_key), now=now)
    return ServiceCertificates.load_or_create(directory.tls, names, now, authority=secrets.authority).server


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


def _reachable_name(host: str) -> str:
    """A name of the certificate by which other machines reach this address, if any can."""
    address = ip_address(host)
    if address.is_unspecified:
        return socket.gethostname().lower()
    return "localhost" if address.is_loopback else host


def _url_host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
