"""The portal over a world in virtual time, visited without a socket, by whoever a test says."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from forewarn.core.access import Grant, Principal, Role, owner_principal
from forewarn.portal.context import CurrentSession
from forewarn.service.web_app import build_web_app
from tests.support import operator_api
from tests.support.operator_api import Answer, Api, exchange
from tests.support.world import World

api, api_of, asleep = operator_api.api, operator_api.api_of, operator_api.asleep  # fixtures

TOKEN = "the-token-of-this-visit"
_FORM = "application/x-www-form-urlencoded"


class Page(Answer):
    @property
    def text(self) -> str:
        """What a reader sees, without tags; runs of blanks are one."""
        plain = re.sub(r"<(script|style|title).*?</\1>|<[^>]*>", " ", self.html, flags=re.S)
        return re.sub(r"\s+", " ", html.unescape(plain)).strip()

    @property
    def html(self) -> str:
        return self.content.decode()


class Visitor:
    """Somebody who is signed in to the portal of a world."""

    def __init__(self, api: Api, principal: Principal) -> None:
        self.api = api
        self.world: World = api.world
        self.principal = principal

        async def welcome(request: Request) -> CurrentSession:
            return CurrentSession(principal=self.principal, csrf_token=TOKEN, ends_at=float("inf"))

        self.app = build_web_app(api.house, authenticate_session=welcome)

    def holding(self, role: str, *over: str, name: str = "client ci") -> Visitor:
        """Somebody else, with this role over these resources."""
        grants = [Grant(id=f"g{n}", role=Role(role), to="client:ci", over=resource) for n, resource in enumerate(over)]
        return Visitor(self.api, Principal(id=name.replace(" ", ":"), name=name, grants=tuple(grants)))

    def get(self, target: str) -> Page:
        """A page that is shown."""
        page = self.visit("GET", target)
        assert page.status == 200, page.text
        return page

    def post(self, target: str, fields: Mapping[str, str | list[str]] = {}, *, token: str = TOKEN) -> Page:
        """A form, sent as a browser does."""
        sent = urlencode({"token": token, **fields}, doseq=True).encode()
        return self.visit("POST", target, sent, {"content-type": _FORM})

    def visit(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> Page:
        return self.world.do(self.visiting(method, target, body, headers))

    async def visiting(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Page:
        given = {"host": "localhost:8443", **headers}
        more = {"server": ("localhost", 8443), "client": ("127.0.0.1", 50000)}
        return Page(*await exchange(self.app, method, target, body, given, **more))


@pytest.fixture
def portal_of(api_of: Callable[..., Api]) -> Callable[..., Visitor]:
    """Makes the portal of a world with another policy, fleet or store, visited by its owner."""

    def make(*given: Any, **options: Any) -> Visitor:
        return Visitor(api_of(*given, **options), owner_principal("local user ann"))

    return make


@pytest.fixture
def portal(portal_of: Callable[..., Visitor]) -> Visitor:
    return portal_of()
