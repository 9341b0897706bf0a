"""A standby forwards operators' calls to the active node, over TLS, with their streams; real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from forewarn.auth.certificates import ServiceCertificates, ca_certificate_path
from forewarn.auth.tokens import ForwardedCall, ForwardingTokens, SigningKey
from forewarn.cluster.forwarding import FORWARDED_HEADER, ForwardedCallMiddleware, ForwardingApp, forwarded_owner
from forewarn.web.server import ServingState, serve_tls, serve_unix

LIMIT_S = 30.0  # of every wait


@dataclass
class Upstream:
    """What the app of the active node has seen, and how long it holds its answers."""

    calls: list[Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    departures: int = 0  # clients that left while their answer was held
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/held", self.hold, methods=["GET", "POST"]),
                Route("/events", self.stream),
                Route("/broken", self.break_off),
                Route("/status/{status:int}", self.answer_with),
                Route("/{path:path}", self.echo, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
            ]
        )

    async def echo(self, request: Request) -> Response:
        self.calls.append(request)
        self.bodies.append(await request.body())
        owner = forwarded_owner(request)
        view = {
            "method": request.method,
            "path": request.scope["path"],
            "raw_path": request.scope["raw_path"].decode(),
            "query": request.url.query,
            "scheme": request.scope["scheme"],
            "host": request.headers["host"],
            "cookies": request.headers.get("cookie", ""),
            "owner": owner.name if owner else "",
            "length": len(self.bodies[-1]),
        }
        response = JSONResponse(view, headers={"X-Answered": "yes"})
        response.set_cookie("one", "1")
        response.set_cookie("two", "2")
        return response

    async def answer_with(self, request: Request) -> Response:
        status = request.path_params["status"]
        return Response(b"" if status in (204, 304) else b"text", status, {"Retry-After": "7"})

    async def hold(self, request: Request) -> Response:
        self.calls.append(request)
        waiting, leaving = asyncio.create_task(self.released.wait()), asyncio.create_task(_left(request))
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        self.departures += leaving.done()
        for task in (waiting, leaving):
            task.cancel()
        return PlainTextResponse("released")

    async def stream(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            await self.released.wait()
            yield b"data: 2\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def break_off(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun"
            await self.released.wait()
            raise ConnectionAbortedError

        return StreamingResponse(parts())


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    ServiceCertificates.load_or_create(directory, (), time.time())
    return directory


class Nodes:
    """An active node and standbys that forward to it, with a client of theirs."""

    def __init__(self, stack: AsyncExitStack, tls: Path, key: SigningKey) -> None:
        self._stack, self._tls = stack, tls
        self.tokens = ForwardingTokens(key, time.time)
        self.upstream = Upstream()
        self.target = ""
        self.trust = ssl.create_default_context(cafile=ca_certificate_path(tls))

    async def serve(self, app: Any) -> str:
        """Serve an app over TLS; returns its base URL."""
        pair = ServiceCertificates.load_or_create(self._tls, (), time.time()).server
        sock = socket.create_server(("127.0.0.1", 0))
        await self._stack.enter_async_context(serve_tls(app, sock, pair.certificate, pair.key, ServingState()))
        return f"https://localhost:{sock.getsockname()[1]}"

    async def start_active(self) -> None:
        self.target = await self.serve(ForwardedCallMiddleware(self.upstream.app(), tokens=self.tokens))

    async def start_standby(self, owner: str = "", **changes: Any) -> ForwardingApp:
        given = {"target": lambda: self.target, "node": "c2", "tokens": self.tokens, "tls": self.trust, "owner": owner}
        app = ForwardingApp(**{**given, **changes})
        self._stack.push_async_callback(app.close)
        return app

    async def client(self, base_url: str, **options: Any) -> httpx2.AsyncClient:
        client = httpx2.AsyncClient(base_url=base_url, verify=self.trust, trust_env=False, timeout=LIMIT_S, **options)
        return await self._stack.enter_async_context(client)


Scenario = Callable[[Nodes, httpx2.AsyncClient], Awaitable[Any]]


@pytest.fixture(scope="module")
def running(tls: Path, key: SigningKey) -> Iterator[tuple[asyncio.Runner, Nodes, httpx2.AsyncClient]]:
    """An active node, a standby and a client of the standby, which serve all tests of this module."""
    stack = AsyncExitStack()

    async def start() -> tuple[Nodes, httpx2.AsyncClient]:
        nodes = Nodes(stack, tls, key)
        await nodes.start_active()
        return nodes, await nodes.client(await nodes.serve(await nodes.start_standby()))

    with asyncio.Runner() as runner:
        nodes, client = runner.run(start())
        yield runner, nodes, client
        runner.run(stack.aclose())


@pytest.fixture
def forward(running: tuple[asyncio.Runner, Nodes, httpx2.AsyncClient]) -> Iterator[Callable[[Scenario], Any]]:
    """Runs a scenario with an active node that has seen no calls, a standby, and a client of the standby."""
    runner, nodes, client = running

    async def within(scenario: Scenario) -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await scenario(nodes, client)

    active = nodes.target
    nodes.upstream.calls.clear()
    nodes.upstream.bodies.clear()
    nodes.upstream.departures = 0
    nodes.upstream.released.clear()
    yield lambda scenario: runner.run(within(scenario))
    nodes.upstream.released.set()
    nodes.target = active


def error_of(response: httpx2.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_method_path_query_headers_and_body_are_forwarded(forward: Callable[[Scenario], Any], method: str) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> tuple[httpx2.Response, Request]:
        answer = await client.request(
            method, "/vms/lab%2Fweb-0?a=1&b=%20", content=b"{}", headers={"X-Sent": "1", "Cookie": "a=b"}
        )
        return answer, nodes.upstream.calls[0]

    answer, call = forward(scenario)
    view = answer.json()
    assert answer.status_code == 200
    assert (view["method"], view["raw_path"], view["query"]) == (method, "/vms/lab%2Fweb-0", "a=1&b=%20")
    assert (view["cookies"], view["length"], call.headers["x-sent"]) == ("a=b", 2, "1")
    assert (view["scheme"], view["owner"]) == ("https", "")
    assert answer.headers["x-answered"] == "yes"
    assert len(answer.headers.get_list("set-cookie")) == 2


def test_the_active_node_sees_the_name_by_which_the_client_called(forward: Callable[[Scenario], Any]) -> None:
    """Addresses in responses, such as those of operations, lead back to the node that the client called."""

    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> tuple[str, str]:
        return (await client.get("/x")).json()["host"], client.base_url.netloc.decode()

    host, called = forward(scenario)
    assert host == called


def test_a_head_request_has_no_body(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.head("/x")

    answer = forward(scenario)
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


@pytest.mark.parametrize("status", [204, 304, 404, 429, 500])
def test_every_status_is_forwarded_with_its_headers(forward: Callable[[Scenario], Any], status: int) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.get(f"/status/{status}")

    answer = forward(scenario)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")


def test_a_large_body_is_forwarded_in_pieces(forward: Callable[[Scenario], Any]) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> int:
        return int((await client.post("/x", content=body())).json()["length"])

    assert forward(scenario) == 64 * 65536


def test_server_sent_events_arrive_one_by_one(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> list[bytes]:
        async with client.stream("GET", "/events") as response:
            parts = response.aiter_raw()
            first = await anext(parts)
            nodes.upstream.released.set()  # the second event does not exist before the first has arrived
            return [first, *[part async for part in parts]]

    assert forward(scenario) == [b"data: 1\n\n", b"data: 2\n\n"]


def test_a_long_poll_waits_for_its_answer(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> str:
        poll = asyncio.create_task(client.get("/held"))
        await eventually(lambda: bool(nodes.upstream.calls))
        assert not poll.done()
        nodes.upstream.released.set()
        return (await poll).text

    assert forward(scenario) == "released"


def test_the_active_node_learns_that_a_client_has_left(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> int:
        poll = asyncio.create_task(client.get("/held"))
        await eventually(lambda: bool(nodes.upstream.calls))
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        await eventually(lambda: nodes.upstream.departures > 0)
        return nodes.upstream.departures

    assert forward(scenario) == 1


def test_a_response_that_breaks_off_breaks_off_for_the_client_too(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> None:
        async with client.stream("GET", "/broken") as response:
            parts = response.aiter_raw()
            assert await anext(parts) == b"begun"
            nodes.upstream.released.set()
            with pytest.raises(httpx2.RemoteProtocolError):
                await anext(parts)

    forward(scenario)


SURFACES = {
    "our API": ("GET", "/forewarn/v1/fleet", {}, "Unavailable", "send it again in a few seconds, with the same Idem"),
    "our command line": (
        "GET",
        "/forewarn/v1/fleet",
        {"Forewarn-Surface": "cli"},
        "Unavailable",
        "run the command again",
    ),
    "Azure's API": ("POST", "/subscriptions/s/x", {}, "ServiceUnavailable", "with the same x-ms-client-request-id"),
}


@pytest.mark.parametrize(("method", "path", "headers", "code", "remedy"), SURFACES.values(), ids=SURFACES)
def test_without_an_active_node_the_answer_is_503_in_the_words_of_the_surface(
    forward: Callable[[Scenario], Any], method: str, path: str, headers: dict[str, str], code: str, remedy: str
) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        nodes.target = ""
        return await client.request(method, path, headers=headers)

    answer = forward(scenario)
    status, found, message = error_of(answer)
    assert (status, found, answer.headers["retry-after"]) == (503, code, "1")
    assert message.startswith("no control node is active now: ")
    assert remedy in message


def test_without_an_active_node_the_portal_shows_a_page_that_tries_again(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        nodes.target = ""
        return await client.get("/portal/fleet")

    answer = forward(scenario)
    assert (answer.status_code, answer.headers["refresh"]) == (503, "2")
    assert "no control node is active now: this page tries again by itself." in answer.text


def test_an_active_node_that_cannot_be_reached_is_a_503(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            nodes.target = f"https://localhost:{sock.getsockname()[1]}"
        return await client.get("/forewarn/v1/fleet")

    status, code, message = error_of(forward(scenario))
    assert (status, code) == (503, "Unavailable")
    assert message.startswith("the active control node cannot be reached, so nothing was done: ")


def test_a_call_ends_with_503_when_another_node_becomes_active(forward: Callable[[Scenario], Any]) -> None:
    """The old active node may hang, and would hold the call forever."""

    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        poll = asyncio.create_task(client.post("/held", content=b"{}"))
        await eventually(lambda: bool(nodes.upstream.calls))
        nodes.target = "https://localhost:1"
        return await poll

    status, _, message = error_of(forward(scenario))
    assert status == 503
    assert message.startswith("the active control node did not answer, and may or may not have carried this out: ")


def test_a_stream_ends_when_another_node_becomes_active(forward: Callable[[Scenario], Any]) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> None:
        async with client.stream("GET", "/events") as response:
            parts = response.aiter_raw()
            await anext(parts)
            nodes.target = ""
            with pytest.raises(httpx2.RemoteProtocolError):
                await anext(parts)

    forward(scenario)


def test_two_standbys_that_take_each_other_for_active_do_not_forward_in_circles(
    forward: Callable[[Scenario], Any],
) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> httpx2.Response:
        nodes.target = await nodes.serve(await nodes.start_standby(node="c3"))
        return await client.get("/forewarn/v1/fleet")

    status, _, message = error_of(forward(scenario))
    assert status == 503
    assert message.startswith("control node c3 is not the active one, and does not forward a call twice: ")


def test_a_node_with_a_certificate_of_another_authority_is_not_called(
    forward: Callable[[Scenario], Any], tmp_path: Path
) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> tuple[httpx2.Response, int]:
        ServiceCertificates.load_or_create(tmp_path, (), time.time())
        other_trust = ssl.create_default_context(cafile=ca_certificate_path(tmp_path))
        standby = await nodes.client(await nodes.serve(await nodes.start_standby(tls=other_trust)))
        return await standby.get("/forewarn/v1/fleet"), len(nodes.upstream.calls)

    answer, calls = forward(scenario)
    assert (error_of(answer)[0], calls) == (503, 0)


def test_a_call_on_the_unix_socket_is_that_of_the_local_owner(
    forward: Callable[[Scenario], Any], tmp_path: Path
) -> None:
    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> Any:
        app = await nodes.start_standby(owner="local user ann")
        async with serve_unix(app, tmp_path / "forewarn.sock", ServingState()):
            local = await nodes.client(
                "http://localhost", transport=httpx2.AsyncHTTPTransport(uds=str(tmp_path / "forewarn.sock"))
            )
            return (await local.get("/forewarn/v1/fleet")).json()

    view = forward(scenario)
    assert (view["owner"], view["scheme"]) == ("local user ann on c2", "https")


def test_a_forged_or_expired_token_does_not_make_an_owner(forward: Callable[[Scenario], Any], key: SigningKey) -> None:
    other = SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    call = ForwardedCall(node="c9", scheme="https", owner="local user mallory")
    forged = {
        "yes": "malformed",
        ForwardingTokens(other, time.time).issue(call): "give all control nodes the same secrets",
        ForwardingTokens(key, lambda: time.time() - 3600).issue(call): "expired",
    }

    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> list[httpx2.Response]:
        active = await nodes.client(nodes.target)
        return [await active.get("/forewarn/v1/x", headers={FORWARDED_HEADER: token}) for token in forged]

    for answer, reason in zip(forward(scenario), forged.values(), strict=True):
        status, code, message = error_of(answer)
        assert (status, code) == (401, "Unauthenticated")
        assert reason in message


def test_a_client_cannot_pass_its_own_token_through_a_standby(
    forward: Callable[[Scenario], Any], key: SigningKey
) -> None:
    token = ForwardingTokens(key, time.time).issue(ForwardedCall(node="c2", scheme="https", owner="local user ann"))

    async def scenario(nodes: Nodes, client: httpx2.AsyncClient) -> tuple[httpx2.Response, int]:
        return await client.get("/forewarn/v1/x", headers={FORWARDED_HEADER: token}), len(nodes.upstream.calls)

    answer, calls = forward(scenario)
    assert (answer.status_code, calls) == (503, 0)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)
