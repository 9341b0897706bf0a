"""The ASGI app of a control node: its own surfaces while it is active, else forwarding.

The servers of the API's port and of the unix socket run this app from start to end, so that no connection is
refused while the role changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.cluster.forwarding import (
    SAFE_METHODS,
    ForwardingApp,
    NodeUnreachable,
    is_forwarded,
    no_active_node_response,
    unreachable_response,
    unsure_response,
)

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
