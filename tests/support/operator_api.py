"""Calls the API of a world in virtual time as uvicorn would, without a socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from forewarn.core.access import Grant, Principal, Role
from forewarn.core.decision import Policy
from forewarn.core.fleet import Priority, Vm
from forewarn.errors import Unauthenticated
from forewarn.service.web_server import build_web_app
from forewarn.web.dependencies import Dependencies
from tests.support.world import LAB_POLICY, World, a_host, a_vm

PREFIX = "/forewarn/v1"


class Answer:
    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, code and message of an error."""
        shown = self.json["error"]
        return self.status, shown["code"], shown["message"]


async def exchange(
    app: Starlette, method: str, target: str, content: bytes, headers: Mapping[str, str] = {}, **more: Any
) -> tuple[int, dict[str, str], bytes]:
    """Calls an app as uvicorn would, without a socket; returns status, headers and body."""
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "server": ("localhost", None),
        "client": None,
        **more,
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(part.get("body", b"") for part in sent[1:])


class Api:
    """Calls the API of a world as its owner; `holding` gives other callers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dependencies = Dependencies(
            control=world.control,
            service_info=lambda: {"version": "0.1.0", "pid": 1, "lab": True},
            run_health_checks=self._doctor,
            owner_name="local user ann",
            endpoint_of=lambda vm: f"http://{vm.address}:8080" if vm.address else "",
        )
        self.app = build_web_app(self.dependencies)

    def holding(self, role: str, *over: str, name: str = "client ci") -> Api:
        """The same API, called with this role over these resources; over none, without any role."""
        grants = [
            Grant(id=f"g{n}", role=Role(role), principal="client:ci", resource=resource)
            for n, resource in enumerate(over)
        ]
        principal = Principal(id=name.replace(" ", ":"), name=name, grants=tuple(grants))
        return self.admitting(lambda: principal)

    def admitting(self, who: Callable[[], Principal]) -> Api:
        """The same API, called by the principal that `who` returns at each call."""

        async def authenticate(request: Request) -> Principal:
            return who()

        return self._with(build_web_app(self.dependencies, authenticate))

    def without_token(self) -> Api:
        async def authenticate(request: Request) -> Principal:
            raise Unauthenticated("nobody knows you: sign in")

        return self._with(build_web_app(self.dependencies, authenticate))

    def _with(self, app: Starlette) -> Api:
        other = copy(self)
        other.app = app
        return other

    async def _doctor(self) -> list[Any]:
        return [SimpleNamespace(name="disk", ok=False, text="1 MiB free", remedy="make room")]

    def call(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        prefix: str = PREFIX,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        return self.world.do(self.calling(method, target, body, prefix=prefix, headers=headers))

    async def calling(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        prefix: str = PREFIX,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return Answer(*await exchange(self.app, method, prefix + target, content, headers))

    def get(self, target: str) -> Any:
        return self._good("GET", target)

    def post(self, target: str, body: Any = None) -> Any:
        return self._good("POST", target, body)

    def delete(self, target: str) -> Any:
        return self._good("DELETE", target)

    def _good(self, method: str, target: str, body: Any = None) -> Any:
        answer = self.call(method, target, body)
        assert answer.status in (200, 202), answer.content
        assert answer.headers["content-type"] == "application/json"
        return answer.json

    def refused(self, method: str, target: str, body: Any = None) -> tuple[int, str, str]:
        """Status, code and message of a call that fails; checks that the store is unchanged."""
        before = self.stored()
        answer = self.call(method, target, body)
        assert self.stored() == before
        return answer.error

    def stored(self) -> list[Any]:
        store = self.world.store
        return [
            [store.scope(scope_id) for scope_id in store.scope_ids()],
            store.vms(removed=True),
            store.hosts(),
            store.events(),
            store.requests(),
            store.planned(),
            store.history(),
            store.last_seq(),
            store.deliveries(),
            store.last_polls(),
            store.load("clock"),
            store.clients(),
            store.grants(),
            store.configurations(),
            store.assignments(),
        ]

    def restart_of(self, *names: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.post("/requests", {"operation": "restart", "vms": list(names)})["events"]
        return events


def in_set(number: int, **facts: Any) -> Vm:
    return a_vm(f"web-{number}", availability_set="web", update_domain=number, host=f"h{number + 1}", **facts)


def a_fleet() -> list[Vm]:
    pool = [
        a_vm(f"pool_{n}", scale_set="pool", placement_group="pg-0", host="h1", terminate_notice_min=5) for n in (0, 1)
    ]
    return [
        *(in_set(number) for number in range(3)),
        a_vm("db", host="h1", address="127.0.0.9"),
        a_vm("spot", host="h2", priority=Priority.SPOT),
        *pool,
    ]


def make_world(policy: Policy = LAB_POLICY, **options: Any) -> World:
    hosts = [a_host("h1"), a_host("h2"), a_host("h3")]
    return World(policy=policy, **{"vms": a_fleet(), "hosts": hosts, **options})


@pytest.fixture
def api_of() -> Iterator[Callable[..., Api]]:
    """Makes the API of a world with another policy or store; closes the worlds at the end."""
    worlds: list[World] = []

    def make(policy: Policy = LAB_POLICY, **options: Any) -> Api:
        worlds.append(make_world(policy, **options))
        return Api(worlds[-1])

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def api(api_of: Callable[..., Api]) -> Api:
    return api_of()


@pytest.fixture
def asleep(api_of: Callable[..., Api]) -> Api:
    """A service whose scopes are disabled until their first poll."""
    return api_of(Policy())
