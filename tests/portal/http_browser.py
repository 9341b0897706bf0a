"""The portal with its sign-in routes, and browsers that keep cookies and follow redirects."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette

from forewarn.auth.code_flow import AuthorizationCodeFlow
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.sessions import SessionIssuer, SignInLinks
from forewarn.auth.token_service import TokenService
from forewarn.auth.tokens import SigningKey, TokenIssuer
from forewarn.base.clock import read_real_time
from forewarn.service.web_server import PlainHttpMiddleware, build_web_app
from forewarn.web.authentication import BearerAuthenticator
from forewarn.web.dependencies import Dependencies
from forewarn.web.portal.sign_in import ONE_TIME_LINK_PATH, SessionManager, sign_in_routes
from tests.portal.conftest import Page
from tests.support.oidc_issuer import LOOPBACK_CLIENT
from tests.support.operator_api import Api

TENANT = "c0ffee00-0000-4000-8000-000000000001"
ORIGIN = "http://localhost:8443"
FORM = "application/x-www-form-urlencoded"
_REFRESH = re.compile(r'<meta http-equiv="refresh" content="0; url=([^"]*)">')


@cache
def signing_key() -> SigningKey:
    return SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))


class PortalService:
    """The web app of a service with sign-in routes; `clock_offset_s` advances its real time."""

    def __init__(self, api: Api, *, tenant_id: str = TENANT, issuer_url: str = "", client_id: str = "") -> None:
        self.api = api
        self.world = api.world
        self.clock_offset_s = 0.0
        self.tenant_id = tenant_id
        external = ExternalIssuer(issuer_url, ["api://forewarn"], client=LOOPBACK_CLIENT) if issuer_url else None
        self.code_flow = AuthorizationCodeFlow(external, client_id) if external and client_id else None
        own = TokenIssuer("https://localhost:8443/adfs", signing_key())
        self.sign_in = TokenService(issuer=own, tenant_id=tenant_id, external=external)
        self.restart()

    def now(self) -> float:
        return read_real_time() + self.clock_offset_s

    def restart(self) -> None:
        """Builds the app anew on the same store, as a new process does."""
        self.links = SignInLinks(f"{ORIGIN}{ONE_TIME_LINK_PATH}/", self.now)
        self.dependencies: Dependencies = replace(
            self.api.dependencies, real_time=self.now, sign_in_links=self.links, sign_in=self.sign_in
        )
        sessions = SessionManager(
            dependencies=self.dependencies,
            sign_in=self.sign_in,
            sessions=SessionIssuer(key=signing_key(), tenant_id=self.tenant_id),
        )
        authenticator = BearerAuthenticator(sign_in=self.sign_in, store=self.world.store, real_time=self.now)
        routes = sign_in_routes(sessions, self.links, self.code_flow)
        self.app: Starlette = build_web_app(
            self.dependencies,
            authenticator.authenticate,
            authenticate_session=sessions.authenticate,
            sign_in_routes=routes,
        )
        self.app.add_middleware(PlainHttpMiddleware)

    def add_client(self, client_id: str = "ann", role: str = "Reader") -> str:
        """Adds a client with this role over everything; returns its secret."""
        secret: str = self.api.post("/access/clients", {"id": client_id})["secret"]
        self.api.post("/access/grants", {"role": role, "principal": client_id, "resource": "/"})
        return secret

    def owner(self) -> Api:
        """The API as the owner calls it over the unix socket, where it creates sign-in links."""
        owner = self.api._with(build_web_app(self.dependencies))
        owner.dependencies = self.dependencies
        return owner


class Browser:
    """A browser without scripts: it keeps cookies and sends them with every request."""

    def __init__(self, service: PortalService, origin: str = ORIGIN) -> None:
        self.service = service
        self.origin = origin
        self.cookie_jar: dict[str, str] = {}

    @property
    def cookie(self) -> str:
        """The session cookie."""
        (text,) = (text for name, text in self.cookie_jar.items() if "flow" not in name)
        return text

    def signed_in(self, client_id: str, secret: str) -> Browser:
        """Signs in with a client's secret; returns this browser."""
        page = self.post("/portal/sign-in", {"client_id": client_id, "secret": secret})
        assert (page.status, page.headers["location"]) == (303, "/portal/"), page.text
        return self

    def user_name(self) -> str:
        """The name of the signed-in user; "" if the portal redirects to the sign-in page."""
        page = self.get("/portal/nowhere")
        if page.status == 303:
            assert page.headers["location"].startswith("/portal/sign-in?to=")
            return ""
        found = re.search(r'class="who">([^<]*)<', page.html)
        assert found is not None
        return html.unescape(found[1])

    def token(self) -> str:
        """The CSRF token of the session, from a form of a page."""
        found = re.search(r'name="token" value="([^"]*)"', self.get("/portal/nowhere").html)
        assert found is not None
        return found[1]

    def get(self, target: str, headers: Mapping[str, str] = {}, *, method: str = "GET") -> Page:
        return self.send(method, target, b"", headers)

    def post(self, target: str, fields: Mapping[str, str], headers: Mapping[str, str] = {}) -> Page:
        return self.send("POST", target, urlencode(fields).encode(), {"content-type": FORM, **headers})

    def follow_redirects(self, page: Page) -> Page:
        """The page at the end of redirects and refreshes, as long as they stay on the portal."""
        for _ in range(5):
            found = _REFRESH.search(page.html)
            to = page.headers.get("location") or (html.unescape(found[1]) if found else "")
            if not to.startswith("/"):
                return page
            page = self.get(to)
        raise AssertionError(f"too many redirects: {page.html}")

    def send(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Page:
        return self.service.world.do(self.sending(method, target, body, headers))

    async def sending(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Page:
        address = urlsplit(self.origin)
        path, _, query = target.partition("?")
        request_headers = {
            "host": address.netloc,
            **({"cookie": self._cookies()} if self.cookie_jar else {}),
            **headers,
        }
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": address.scheme,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), text.encode()) for name, text in request_headers.items()],
            "server": ("127.0.0.1", 8443),
            "client": ("127.0.0.1", 50000),
        }
        sent: list[dict[str, Any]] = []

        messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()  # forever
            return messages.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.service.app(scope, receive, send)
        received = [(name.decode().lower(), value.decode()) for name, value in sent[0]["headers"]]
        self._keep([value for name, value in received if name == "set-cookie"])
        return Page(sent[0]["status"], dict(received), b"".join(part.get("body", b"") for part in sent[1:]))

    def _cookies(self) -> str:
        return "; ".join(f"{name}={text}" for name, text in self.cookie_jar.items())

    def _keep(self, cookies: list[str]) -> None:
        for cookie in cookies:
            name, _, text = cookie.partition(";")[0].partition("=")
            if "Max-Age=0" in cookie:
                self.cookie_jar.pop(name, None)
            else:
                self.cookie_jar[name] = text
