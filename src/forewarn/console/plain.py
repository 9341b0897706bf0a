"""Plain http beside TLS on one port: for browsers of this machine, and for the portal and the metrics alone."""

from __future__ import annotations

from ipaddress import ip_address

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.console.portal.page import PREFIX
from forewarn.console.refusal import said

_OPEN = ("/", "/metrics", PREFIX)


def is_of_this_machine(address: str) -> bool:
    """An address of loopback, also where it is written as IPv6 has it."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


class PlainHttp:
    """Only loopback gets this far. A web site may give that address a name of its own, so the name counts too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _refusal(Request(scope)) if scope["type"] == "http" and scope["scheme"] == "http" else None
        await (refused or self._app)(scope, receive, send)


def _refusal(request: Request) -> Response | None:
    host = request.headers.get("host", "")
    if not _names_this_machine(host):
        sentence = f"plain http is served to this machine alone, not to {host[:100]!r}: call localhost, or use https"
        return said(400, "Rejected", sentence)
    path = request.scope["path"]
    if path in _OPEN or path.startswith(f"{PREFIX}/"):
        return None
    return said(400, "Rejected", f"{request.method} {path} is served over https only: call https://{host}{path}")


def _names_this_machine(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    if not (port.isascii() and port.isdecimal()):
        return False
    return name.lower() == "localhost" or is_of_this_machine(name.removeprefix("[").removesuffix("]"))
