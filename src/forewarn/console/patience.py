"""Whoever changes something here and looks at a VM next sees it there: the answer waits until VMs are shown it.

Only where other processes show it; in this one, what is committed is shown already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPMethod

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOKING = (HTTPMethod.GET, HTTPMethod.HEAD)


class Patience:
    def __init__(self, app: ASGIApp, *, shown: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_when_shown(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._shown()
            await send(message)

        is_change = scope["type"] == "http" and scope["method"] not in _LOOKING
        await self._app(scope, receive, send_when_shown if is_change else send)
