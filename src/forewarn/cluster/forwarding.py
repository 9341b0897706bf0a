"""Forwards operators' calls from one control node to the active one, over HTTPS.

`ForwardingApp` is the ASGI app of a standby: it forwards every call with its stream, and answers 503 while no node is
active. `ForwardedCallMiddleware` is its counterpart on the active node: it restores how the call was received. A call
is forwarded once at most.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from html import escape

import httpx2
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.auth.claims import InvalidToken
from forewarn.auth.tokens import ForwardedCall, ForwardingTokens
from forewarn.core.access import Principal, owner_principal
from forewarn.web.errors import SURFACE_HEADER, Surface, surface_of
from forewarn.web.routing import API_PREFIX

log = logging.getLogger(__name__)
FORWARDED_HEADER = "forewarn-forwarded"  # holds the token of the node that forwarded the call
NOT_ACTIVE_HEADER = "forewarn-not-active"  # of the response to a forwarded call: the name of a node that is not active
PORTAL_PATHS = ("/", "/portal")
_RETRY_AFTER_S = 1
_CONNECT_TIMEOUT_S = 2.0  # real time
_TARGET_CHECK_S = 0.25  # how often a call that is under way looks whether another node is active now
# An idle connection may be closed by the active node at any moment, and would delay the end of that node.
_ONE_CALL_PER_CONNECTION = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")  # for calls without a body, which change nothing
_STATE_OWNER = "forwarded_owner"  # in the state of a request
# Headers that are about one connection and not about the call (RFC 9110 §7.6.1); the server answers `Expect` itself.
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"expect", FORWARDED_HEADER.encode()),
    }
)
RawHeaders = Iterable[tuple[bytes, bytes]]


class NodeUnreachable(Exception):
    """A forwarded call had no effect and can be sent again.

    It did not arrive, arrived at a node that is not active, or only reads.
    """


class _TargetChanged(Exception):
    """Another node is active now, or none."""


class ForwardingApp:
    """The ASGI app of a control node that is not active: forwards every HTTP call to the active node.

    With `owner`, the calls come from the unix socket, and count as calls of the local owner of that name. `tokens`
    signs each call, so that the active node knows where it comes from.
    """

    def __init__(
        self, *, target: Callable[[], str], node: str, tokens: ForwardingTokens, tls: ssl.SSLContext, owner: str = ""
    ) -> None:
        self._target = target
        self._node = node
        self._tokens = tokens
        self._owner = owner
        self._transport = httpx2.AsyncHTTPTransport(verify=tls, trust_env=False, limits=_ONE_CALL_PER_CONNECTION)

    async def close(self) -> None:
        """Close the connections to the active node, when the app is no longer used."""
        await self._transport.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one call, and answer with the response of the active node, or 503."""
        if scope["type"] != "http":
            return
        try:
            await self.forward(scope, receive, send)
        except NodeUnreachable:
            await unreachable_response(scope)(scope, receive, send)

    async def forward(
        self, scope: Scope, receive: Receive, send: Send, can_repeat: Callable[[], bool] = lambda: False
    ) -> None:
        """Forward one HTTP call and send the response; raises NodeUnreachable if the call can be sent again.

        It can if the active node cannot be connected to. If `can_repeat()` says that the same messages can be received
        again, this also holds if the node answers that it is not active, or if a call that only reads fails. After any
        other failure the call may have had an effect, and is answered with an error.
        """
        if is_forwarded(scope):
            await _not_active_response(scope, self._node)(scope, receive, send)
            return
        if not (target := self._target()):
            await no_active_node_response(scope)(scope, receive, send)
            return
        await _Exchange(self, scope, receive, send, target, can_repeat).run()

    async def request(self, scope: Scope, target: str, body: AsyncIterator[bytes]) -> httpx2.Response:
        """Send the call to the node at `target`, and return its response, whose body is not read yet."""
        call = ForwardedCall(
            node=self._node, scheme="https" if self._owner else str(scope["scheme"]), owner=self._owner
        )
        headers = [*_end_to_end(scope["headers"]), (FORWARDED_HEADER.encode(), self._tokens.issue(call).encode())]
        query = scope["query_string"]
        path = scope.get("raw_path") or scope["path"].encode()
        request = httpx2.Request(
            scope["method"],
            httpx2.URL(target).copy_with(raw_path=path + (b"?" + query if query else b"")),
            headers=headers,
            content=body if _has_body(scope["headers"]) else b"",
            extensions={"timeout": {"connect": _CONNECT_TIMEOUT_S}},
        )
        return await self._transport.handle_async_request(request)

    def has_target(self, target: str) -> bool:
        """Return whether calls still go to this base URL, so that the active node has not changed since."""
        return self._target() == target


class _Exchange:
    """One call that is being forwarded. It ends early if the client leaves, or the active node changes."""

    def __init__(
        self,
        app: ForwardingApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        target: str,
        can_repeat: Callable[[], bool],
    ) -> None:
        self._app = app
        self._can_repeat = can_repeat
        self._scope, self._receive, self._send = scope, receive, send
        self._target = target
        self._body_ended = asyncio.Event()
        self._has_begun = False  # the response

    async def run(self) -> None:
        """Forward the call until its response is complete."""
        # Raises an error if the response breaks off, so that the server breaks the client's connection, too.
        forwarding = asyncio.create_task(self._forward())
        leaving = asyncio.create_task(self._wait_for_departure())
        try:
            while not forwarding.done() and not leaving.done():
                await asyncio.wait({forwarding, leaving}, timeout=_TARGET_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
                if not forwarding.done() and not self._app.has_target(self._target):
                    raise _TargetChanged("the active node changed during the call")
            if forwarding.done():
                forwarding.result()
        except httpx2.InvalidURL as error:
            await _error_response(self._scope, 400, f"the address of this call cannot be forwarded ({error})")(
                self._scope, self._receive, self._send
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            log.info("the active node at %s cannot be reached: %s", self._target, error)
            raise NodeUnreachable from error
        except (httpx2.HTTPError, OSError, _TargetChanged) as error:
            if self._has_begun:
                raise
            log.info("a call to the active node at %s failed: %s", self._target, error)
            if self._scope["method"] in SAFE_METHODS and self._can_repeat():
                raise NodeUnreachable from error
            refusal = "the active control node did not answer, and may or may not have carried this out"
            await _unavailable_response(self._scope, refusal)(self._scope, self._receive, self._send)
        finally:
            for task in (forwarding, leaving):
                task.cancel()
            await asyncio.gather(forwarding, leaving, return_exceptions=True)

    async def _forward(self) -> None:
        response = await self._app.request(self._scope, self._target, self._body())
        try:
            if NOT_ACTIVE_HEADER in response.headers and self._can_repeat():
                raise NodeUnreachable
            self._has_begun = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": response.status_code,
                    "headers": list(_end_to_end(response.headers.raw)),
                }
            )
            async for part in response.aiter_raw():
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            with suppress(httpx2.HTTPError, OSError):
                await response.aclose()

    async def _body(self) -> AsyncIterator[bytes]:
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise httpx2.ReadError("the client left before it had sent the whole call")
                if body := message.get("body", b""):
                    yield body
                if not message.get("more_body", False):
                    return
        finally:
            self._body_ended.set()

    async def _wait_for_departure(self) -> None:
        """Wait until the client has closed its connection; begin when its body has been read."""
        if _has_body(self._scope["headers"]):
            await self._body_ended.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class ForwardedCallMiddleware:
    """ASGI middleware of the active node: verifies calls that other control nodes have forwarded.

    It restores the scheme and the local owner that the call's token names. A call without a token passes unchanged.
    """

    def __init__(self, app: ASGIApp, *, tokens: ForwardingTokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, changed as its token says."""
        token = Headers(scope=scope).get(FORWARDED_HEADER, "") if scope["type"] == "http" else ""
        if not token:
            await self._app(scope, receive, send)
            return
        try:
            call = self._tokens.verify(token)
        except InvalidToken as error:
            await _error_response(scope, 401, f"this call was forwarded, but not accepted: {error}")(
                scope, receive, send
            )
            return
        state = dict(scope.get("state") or {})
        if call.owner:
            state[_STATE_OWNER] = f"{call.owner} on {call.node}"
        await self._app({**scope, "scheme": call.scheme, "state": state}, receive, send)


def forwarded_owner(request: Request) -> Principal | None:
    """Return the owner who made this call on another node's unix socket; None for any other call."""
    name = (request.scope.get("state") or {}).get(_STATE_OWNER)
    return None if name is None else owner_principal(str(name))


def _end_to_end(headers: RawHeaders) -> Iterable[tuple[bytes, bytes]]:
    """The headers that belong to the call, without those of one connection."""
    headers = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in named]


def _has_body(headers: RawHeaders) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)


_API_CODES: Mapping[int, str] = {400: "Rejected", 401: "Unauthenticated", 503: "Unavailable"}
_ARM_CODES: Mapping[int, str] = {400: "InvalidParameter", 401: "AuthenticationFailed", 503: "ServiceUnavailable"}
_REMEDIES: Mapping[Surface, str] = {
    Surface.CLI: "run the command again in a few seconds; `forewarn node list` shows the control nodes",
    Surface.API: "send it again in a few seconds, with the same Idempotency-Key if it creates a request",
    Surface.ARM: "send it again in a few seconds, with the same x-ms-client-request-id",
    Surface.PORTAL: "this page tries again by itself",
}


def _unavailable_response(scope: Scope, reason: str) -> Response:
    return _error_response(scope, 503, f"{reason}: {_REMEDIES[_surface(scope)]}")


def is_forwarded(scope: Scope) -> bool:
    """Return whether another node says that it has forwarded this call; its token is not verified."""
    return any(name == FORWARDED_HEADER.encode() for name, _ in scope["headers"])


def _not_active_response(scope: Scope, node: str) -> Response:
    response = _unavailable_response(
        scope, f"control node {node} is not the active one, and does not forward a call twice"
    )
    response.headers[NOT_ACTIVE_HEADER] = node
    return response


def no_active_node_response(scope: Scope) -> Response:
    """Make the 503 response for a call while no control node is active. Sends nothing."""
    return _unavailable_response(scope, "no control node is active now")


def unreachable_response(scope: Scope) -> Response:
    """Make the 503 response for a call that had no effect, because the active node cannot be reached."""
    return _unavailable_response(scope, "the active control node cannot be reached, so nothing was done")


def unsure_response(scope: Scope) -> Response:
    """Make the 503 response of a node that would refuse a change, but may no longer have the lease."""
    return _unavailable_response(
        scope, "this control node cannot be sure that it is still the active one, so nothing was done"
    )


def _error_response(scope: Scope, status: int, message: str) -> Response:
    retry = {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else {}
    surface = _surface(scope)
    if surface is Surface.PORTAL:
        refresh = {"Refresh": "2"} if status == 503 and scope["method"] == "GET" else {}
        page = f"<!doctype html><title>forewarn</title><h1>forewarn</h1><p>{escape(message)}.</p>"
        return HTMLResponse(page, status, {**retry, **refresh, "Cache-Control": "no-store"})
    code = (_ARM_CODES if surface is Surface.ARM else _API_CODES)[status]
    return JSONResponse({"error": {"code": code, "message": message}}, status, retry)


def _surface(scope: Scope) -> Surface:
    path = scope["path"]
    if path in PORTAL_PATHS or path.startswith(f"{PORTAL_PATHS[-1]}/"):
        return Surface.PORTAL
    if path == API_PREFIX or path.startswith(f"{API_PREFIX}/") or path == "/metrics":
        return surface_of(Headers(scope=scope).get(SURFACE_HEADER))
    return Surface.ARM


# The ASGI app of a control node: its own surfaces while it is active, else forwarding.
#
# The servers of the API's port and of the unix socket run this app from start to end, so that no connection is
# refused while the role changes.

_POLL_S = 0.05
_MAX_KEPT_BYTES = 256 * 1024  # of a call's body, to send it again


class _ReplayedReceive:
    """The messages of one call, which a second attempt to answer it receives again, unless they are long."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._received: list[Message] = []
        self._length = 0

    def can_repeat(self) -> bool:
        return self._length <= _MAX_KEPT_BYTES

    def from_start(self) -> Receive:
        position = 0

        async def receive() -> Message:
            nonlocal position
            if position < len(self._received):
                message = self._received[position]
            else:
                message = await self._receive()
                self._length += len(message.get("body", b""))
                if self.can_repeat():
                    self._received.append(message)
                else:
                    self._received.clear()  # they take memory, and are not received again
            position += 1
            return message

        return receive


class NodeApp:
    """The ASGI app of a control node: answers calls itself while the node is active, else forwards them.

    A call that finds no active node, or cannot reach it, waits for up to `patience_s` of real time, because most
    takeovers are over by then; after that it gets a 503. While `may_refuse` returns False, a 4xx answer of the local
    app to a change becomes a 503: its state may be old, because another node may be active already.
    """

    def __init__(
        self,
        forwarding: ForwardingApp,
        *,
        has_target: Callable[[], bool],
        patience_s: float = 5.0,
        answers_itself: Mapping[str, ASGIApp] | None = None,
        may_refuse: Callable[[], bool] = lambda: True,
    ) -> None:
        self._forwarding = forwarding
        self._has_target = has_target
        self._patience_s = patience_s
        self._answers_itself = answers_itself or {}
        self._may_refuse = may_refuse
        self._local: ASGIApp | None = None
        self._local_calls = 0
        self._calls_ended = asyncio.Event()  # set and replaced when a call of the local app has ended

    def activate(self, app: ASGIApp) -> None:
        """Answer calls with this local app from now on, including calls that wait for an active node."""
        self._local = app

    async def deactivate(self, drain_s: float) -> None:
        """Forward new calls from now on, and wait until the local app has answered those under way."""
        self._local = None
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while self._local_calls:
                    await self._calls_ended.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] != "http":
            return
        if (own := self._answers_itself.get(f"{scope['method']} {scope['path']}")) is not None:
            await own(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        ends_at, source = loop.time() + self._patience_s, _ReplayedReceive(receive)
        while not await self._try(scope, source, send):
            if loop.time() >= ends_at:
                refused = unreachable_response(scope) if self._has_target() else no_active_node_response(scope)
                await refused(scope, receive, send)
                return
            await asyncio.sleep(_POLL_S)

    async def _try(self, scope: Scope, source: _ReplayedReceive, send: Send) -> bool:
        if (local := self._local) is not None:
            await self._call_local(local, scope, source.from_start(), send)
            return True
        if not self._has_target() and not is_forwarded(scope):
            return False
        try:
            await self._forwarding.forward(scope, source.from_start(), send, source.can_repeat)
        except NodeUnreachable:
            return False
        return True

    async def _call_local(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._local_calls += 1
        is_withheld = False

        async def send_if_sure(message: Message) -> None:
            nonlocal is_withheld
            if message["type"] == "http.response.start" and 400 <= message["status"] < 500 and not self._may_refuse():
                is_withheld = True
                await unsure_response(scope)(scope, receive, send)
            elif not is_withheld:
                await send(message)

        try:
            await app(scope, receive, send if scope["method"] in SAFE_METHODS else send_if_sure)
        finally:
            self._local_calls -= 1
            self._calls_ended.set()
            self._calls_ended = asyncio.Event()
