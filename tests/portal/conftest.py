"""The portal of a world in virtual time, called without a socket, as a user that the test chooses."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from forewarn.core.access import Grant, Principal, Role, owner_principal
from forewarn.service.web_server import build_web_app
from forewarn.web.portal.context import CurrentSession
from tests.support import operator_api
from tests.support.operator_api import Answer, Api, exchange
from tests.support.world import World

api, api_of, asleep = operator_api.api, operator_api.api_of, operator_api.asleep  # fixtures

TOKEN = "the-token-of-this-session"
_FORM = "application/x-www-form-urlencoded"


class Page(Answer):
    """A response of the portal."""

    @property
    def text(self) -> str:
        """The visible text, without tags; runs of spaces become one."""
        plain = re.sub(r"<(script|style|title).*?</\1>|<[^>]*>", " ", self.html, flags=re.S)
        return re.sub(r"\s+", " ", html.unescape(plain)).strip()

    @property
    def html(self) -> str:
        return self.content.decode()


class PortalUser:
    """A user who is signed in to the portal of a world."""

    def __init__(self, api: Api, principal: Principal) -> None:
        self.api = api
        self.world: World = api.world
        self.principal = principal

        async def authenticate_session(request: Request) -> CurrentSession:
            return CurrentSession(principal=self.principal, csrf_token=TOKEN, ends_at=float("inf"))

        self.app = build_web_app(api.dependencies, authenticate_session=authenticate_session)

    def with_role(self, role: str, *over: str, name: str = "client ci") -> PortalUser:
        """Another user, with this role over these resources."""
        grants = [
            Grant(id=f"g{n}", role=Role(role), principal="client:ci", resource=resource)
            for n, resource in enumerate(over)
        ]
        return PortalUser(self.api, Principal(id=name.replace(" ", ":"), name=name, grants=tuple(grants)))

    def get(self, target: str) -> Page:
        """Opens a page, which must succeed."""
        page = self.request("GET", target)
        assert page.status == 200, page.text
        return page

    def post(self, target: str, fields: Mapping[str, str | list[str]] = {}, *, token: str = TOKEN) -> Page:
        """Submits a form as a browser does."""
        body = urlencode({"token": token, **fields}, doseq=True).encode()
        return self.request("POST", target, body, {"content-type": _FORM})

    def request(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> Page:
        return self.world.do(self.send_request(method, target, body, headers))

    async def send_request(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Page:
        headers = {"host": "localhost:8443", **headers}
        connection = {"server": ("localhost", 8443), "client": ("127.0.0.1", 50000)}
        return Page(*await exchange(self.app, method, target, body, headers, **connection))


@pytest.fixture
def portal_of(api_of: Callable[..., Api]) -> Callable[..., PortalUser]:
    """Makes the portal of a world with another policy, fleet or store, with its owner as the user."""

    def make(*args: Any, **options: Any) -> PortalUser:
        return PortalUser(api_of(*args, **options), owner_principal("local user ann"))

    return make


@pytest.fixture
def portal(portal_of: Callable[..., PortalUser]) -> PortalUser:
    return portal_of()
