"""Fixtures: the ARM facade over a world in virtual time, called without a socket by any principal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.requests import Request

from forewarn.auth.tokens import SigningKey
from forewarn.core.access import Grant, Principal, Role, owner_principal
from forewarn.service.web_server import build_web_app
from forewarn.web.authentication import Authenticate, BearerAuthenticator
from tests.support import operator_api
from tests.support.operator_api import Answer, exchange
from tests.support.world import World

api, api_of, asleep = operator_api.api, operator_api.api_of, operator_api.asleep  # fixtures

BASE = "https://localhost:8443"
GROUP = "/subscriptions/sub/resourceGroups/lab"
COMPUTE = f"{GROUP}/providers/Microsoft.Compute"
_PRINCIPAL = "test.principal"


class Caller:
    """Calls the ARM facade of a world as one principal."""

    def __init__(self, arm: Arm, principal: Principal) -> None:
        self._arm = arm
        self.principal = principal

    def call(self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Sends a request; the target is a path, or a whole URL such as those in responses."""
        return self._arm.world.do(self._arm.calling(method, target, body, headers or {}, self.principal))

    def get(self, target: str) -> Any:
        """The body of a successful GET."""
        answer = self.call("GET", target)
        assert answer.status == 200, answer.content
        assert answer.headers["content-type"] == "application/json"
        return answer.json

    def refused(self, method: str, target: str, body: Any = None) -> tuple[int, str, str]:
        """Status, code and message of a call that fails; checks that the store is unchanged."""
        before = self._arm.stored()
        answer = self.call(method, target, body)
        assert self._arm.stored() == before
        return answer.error


class Arm(Caller):
    """Calls the ARM facade as the owner, who may do everything; `holding` gives other callers."""

    def __init__(self, api: Any, authenticator_of_caller: Authenticate | None = None) -> None:
        super().__init__(self, owner_principal("local user ann"))
        self.api = api
        self.world: World = api.world
        self.app = build_web_app(api.dependencies, authenticator_of_caller or _principal_of_scope)

    def behind(self, authenticator: BearerAuthenticator) -> Arm:
        """The same facade, where a bearer token authenticates the caller."""
        return Arm(self.api, authenticator.authenticate)

    def holding(self, role: Role, *over: str, name: str = "client ci") -> Caller:
        """A caller with this role over these resources; over none, a caller without any role."""
        grants = tuple(
            Grant(id=f"g{n}", role=role, principal="client:ci", resource=resource) for n, resource in enumerate(over)
        )
        return Caller(self, Principal(id="client:ci", name=name, grants=grants))

    def stored(self) -> Any:
        return [*self.api.stored(), self.world.store.clients(), self.world.store.grants()]

    async def calling(
        self, method: str, target: str, body: Any, headers: Mapping[str, str], principal: Principal
    ) -> Answer:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {"host": "localhost:8443", **{name.lower(): value for name, value in headers.items()}}
        more = {
            "scheme": "https",
            "server": ("127.0.0.1", 8443),
            "client": ("127.0.0.1", 50_000),
            _PRINCIPAL: principal,
        }
        return Answer(*await exchange(self.app, method, target.removeprefix(BASE), content, given, **more))


async def _principal_of_scope(request: Request) -> Principal:
    principal: Principal = request.scope[_PRINCIPAL]
    return principal


@pytest.fixture
def arm_of(api_of: Callable[..., Any]) -> Callable[..., Arm]:
    """Makes the ARM facade of a world with another policy, store, fleet or sign-in."""

    def make(*args: Any, **options: Any) -> Arm:
        changes = {name: options.pop(name) for name in ("sign_in", "real_time") if name in options}
        api = api_of(*args, **options)
        api.dependencies = replace(api.dependencies, **changes)
        return Arm(api)

    return make


@pytest.fixture(scope="session")
def signing_key() -> SigningKey:
    return SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))


@pytest.fixture
def arm(arm_of: Callable[..., Arm]) -> Arm:
    """The ARM facade of the test fleet, in the group lab of the subscription sub.

    It has web-0…2 of the availability set web, db, spot, and pool_0 and pool_1 of the scale set pool.
    """
    return arm_of()
