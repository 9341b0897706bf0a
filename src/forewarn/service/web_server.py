"""The console on its HTTPS port: where it listens, what it shows, who signs in there, and the first client."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from forewarn.access.certificate import Certificates, ca_file, own
from forewarn.access.code_flow import CodeFlow
from forewarn.access.issuer import ExternalIssuer
from forewarn.access.link import Links
from forewarn.access.pem import Pair
from forewarn.access.secret import hashed, keep_secret, new_secret, read_secret
from forewarn.access.session import Sessions
from forewarn.access.sign_in import SignIn
from forewarn.access.signing import SigningKey
from forewarn.access.token import Issuer
from forewarn.assembly.directory import DataDirectory
from forewarn.assembly.settings import Settings, read_console
from forewarn.clock import read_real_time
from forewarn.console.app import build
from forewarn.console.directory import Directory
from forewarn.console.door import Door
from forewarn.console.house import House
from forewarn.console.plain import PlainHttp
from forewarn.console.portal.local import HOME
from forewarn.console.portal.session import Lobby
from forewarn.console.portal.sign_in import ONCE, sign_in_routes
from forewarn.console.server import serve_tls
from forewarn.core.access import ADMIN, Client, Grant, Role, client_principal
from forewarn.core.change import Commit
from forewarn.core.history import Entry, What
from forewarn.core.resource import EVERYTHING
from forewarn.errors import ForewarnError, Rejected
from forewarn.store.seam import Store

log = logging.getLogger(__name__)
_TENANT = "tenant"  # under which the store keeps its id
_ADMIN_MADE = "admin made"
_BACKLOG = 1024
_LOOK_AGAIN_S = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Everything the HTTPS port needs, ready to serve."""

    sock: socket.socket
    url: str
    pair: Pair
    certify: Callable[[], Pair]  # looks after the certificate: the same, or a new one where it ends soon
    ca: Path | None  # None: the certificate is the user's own
    sign_in: SignIn
    secret: Path
    portal: str  # its URL; over plain http where a browser of this machine reaches it so
    sessions: Sessions
    links: Links
    code_flow: CodeFlow | None  # None: people do not sign in at an issuer outside

    @asynccontextmanager
    async def serve(self, house: House, directory: Directory) -> AsyncIterator[None]:
        """For whoever signs in, until the block is left."""
        lobby = Lobby(house=house, sign_in=self.sign_in, sessions=self.sessions)
        app = build(
            house,
            Door(sign_in=self.sign_in, store=house.control.store).admit,
            directory,
            welcome=lobby.welcome,
            doors=sign_in_routes(lobby, self.links, self.code_flow),
        )
        app.add_middleware(PlainHttp)
        async with serve_tls(app, self.sock, self.pair.certificate, self.pair.key) as context:
            renewing = asyncio.create_task(self._keep_renewing(context))
            try:
                yield
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    async def _keep_renewing(self, context: ssl.SSLContext) -> None:
        """A certificate ends while a service goes on: look every few hours."""
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            await self.renew(context)

    async def renew(self, context: ssl.SSLContext) -> None:
        """Show the certificate that is there by now; the old one, while another cannot be had or written."""
        try:
            pair = await asyncio.to_thread(self.certify)
            context.load_cert_chain(pair.certificate, pair.key)
        except (ForewarnError, OSError) as error:
            log.warning("the console goes on with the certificate it has: %s", error)

    def shown(self) -> dict[str, Any]:
        """What people and `forewarn env` need to know of it."""
        return {
            "url": self.url,
            "portal": self.portal,
            "tenant_id": self.sign_in.tenant_id,
            "client_id": ADMIN,
            "ca": str(self.ca) if self.ca else "",
            "admin_secret": str(self.secret),
            "issuer": self.sign_in.external.url if self.sign_in.external else "",
        }


async def open_front(settings: Settings, directory: DataDirectory, store: Store, now: float) -> Front | None:
    """None: the settings want no HTTPS port. Rejected where its address or certificate cannot be had.

    `now` is for the history, which keeps lab time; certificates and tokens keep real time (spec §12).
    """
    if not settings.console:
        return None
    sock = _bound(settings.console)
    try:
        front = await _front(settings, directory, store, sock)
        if front.sign_in.external is None:
            await _first_client(store, directory.admin_secret, now)
        return front
    except BaseException:
        sock.close()
        raise


async def _front(settings: Settings, directory: DataDirectory, store: Store, sock: socket.socket) -> Front:
    host, port = read_console(settings.console)[0], int(sock.getsockname()[1])
    url = _url(host, port)
    names = (*settings.console_names, *_names_of(host))
    certify = partial(_pair, settings, directory, names)
    key = SigningKey.ready(directory.tls / "token.key")
    issuer = Issuer(
        f"{url}/adfs",
        key,
        lifetime_s=round(settings.token_minutes * 60),
        audiences=[f"https://{_spelled(name)}:{port}" for name in ("localhost", "127.0.0.1", "::1", *names)],
    )
    sign_in = SignIn(issuer=issuer, tenant_id=await _tenant(store), external=_external(settings))
    here = url.replace("https:", "http:", 1) if _is_here(host) else url
    return Front(
        sock=sock,
        url=url,
        pair=certify(),
        certify=certify,
        ca=None if settings.console_certificate else ca_file(directory.tls),
        sign_in=sign_in,
        secret=directory.admin_secret,
        portal=f"{here}{HOME}",
        sessions=Sessions(key=key, tenant_id=sign_in.tenant_id),
        links=Links(f"{here}{ONCE}/", read_real_time),
        code_flow=_code_flow(settings, sign_in.external),
    )


def _bound(console: str) -> socket.socket:
    host, port = read_console(console)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        taken = error.errno == errno.EADDRINUSE
        raise Rejected(
            f"the console cannot listen on {console}: {'another program does' if taken else error.strerror}; "
            "name another with --console ADDRESS:PORT or the setting 'console', or \"\" for none"
        ) from error
    return sock


def _pair(settings: Settings, directory: DataDirectory, names: tuple[str, ...]) -> Pair:
    now = read_real_time()
    if settings.console_certificate:
        return own(Path(settings.console_certificate), Path(settings.console_key), now=now)
    return Certificates.ready(directory.tls, names, now).server


def _url(host: str, port: int) -> str:
    """By a name that the certificate has, and that people type."""
    return f"https://{'localhost' if _is_here(host) else _spelled(host)}:{port}"


def _is_here(host: str) -> bool:
    """Whether programs of this machine reach what listens there as localhost."""
    address = ip_address(host)
    return address.is_loopback or address.is_unspecified


def _names_of(host: str) -> tuple[str, ...]:
    address = ip_address(host)
    if address.is_loopback:
        return ()
    return (socket.gethostname().lower(),) if address.is_unspecified else (host,)


def _spelled(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _external(settings: Settings) -> ExternalIssuer | None:
    if not settings.oidc_issuer:
        return None
    return ExternalIssuer(settings.oidc_issuer, settings.oidc_audience, settings.oidc_jwks)


def _code_flow(settings: Settings, external: ExternalIssuer | None) -> CodeFlow | None:
    if external is None or not settings.oidc_client_id:
        return None
    file = settings.oidc_client_secret_file
    return CodeFlow(external, settings.oidc_client_id, read_secret(Path(file)) if file else "")


async def _tenant(store: Store) -> str:
    """Made once: it is in every token, and clients keep it."""
    if (kept := store.saved(_TENANT)) is not None:
        return kept.decode()
    tenant_id = str(uuid.uuid4())
    await store.save(_TENANT, tenant_id.encode())
    return tenant_id


async def _first_client(store: Store, path: Path, now: float) -> None:
    """The local administrator, made once: whoever removes it is not given it again.

    The file comes first, so that a crash leaves a secret that nobody knows by hash yet, which is used the next time.
    """
    if store.saved(_ADMIN_MADE) is not None:
        return
    if store.client(ADMIN) is None:
        if not path.exists():
            keep_secret(path, new_secret())
        await store.commit(_admin(read_secret(path), now))
    await store.save(_ADMIN_MADE, b"yes")


def _admin(secret: str, now: float) -> Commit:
    client = Client(id=ADMIN, secret_hash=hashed(secret), name="local administrator", by="forewarn", at=now)
    grant = Grant(
        id="admin", role=Role.ADMINISTRATOR, to=client_principal(ADMIN), over=EVERYTHING, by="forewarn", at=now
    )
    text = f"client {ADMIN} made, with role {Role.ADMINISTRATOR} over everything"
    entry = Entry(at=now, what=What.ACCESS, who="forewarn", text=text)
    return Commit(clients=(client,), grants=(grant,), entries=(entry,))
