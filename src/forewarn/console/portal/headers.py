"""What a browser is told of every page: no script but ours, no frame around it, nothing kept or told elsewhere."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.console.portal.page import PREFIX

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# An origin is told to ourselves, who look at it; `no-referrer` would make it null.
_ALWAYS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Headers:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path != "/" and path != PREFIX and not path.startswith(f"{PREFIX}/"):
            await self._app(scope, receive, send)
            return
        told = {**_ALWAYS, "Cache-Control": "no-cache" if path.startswith(f"{PREFIX}/static/") else "no-store"}

        async def send_told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in told.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_told)
