"""Protects browsers: CSRF token and same-origin checks, safe redirect targets, security headers.

Every write of the portal calls `require_csrf_token`; `SecurityHeadersMiddleware` sets the Content-Security-Policy
of every page.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forewarn.errors import Forbidden
from forewarn.portal.context import PORTAL_PREFIX, CurrentSession

CSRF_FIELD = "token"
CSRF_HEADER = "X-Forewarn-Token"
_TRUSTED_FETCH_SITES = (
    "same-origin",
    "none",
)  # of Sec-Fetch-Site; another port of this machine is "same-site", and not ours
_CROSS_ORIGIN_MESSAGE = (
    "this was sent by a page that is not of this portal, so nothing was done: open the portal and ask there"
)
_WRONG_TOKEN_MESSAGE = (
    "the form is not of this sign-in, so nothing was done: load the page again, and send it from there"
)


def require_csrf_token(
    visit: CurrentSession, headers: Mapping[str, str], fields: Mapping[str, str | Sequence[str]]
) -> None:
    """Raise Forbidden unless the visit's token is in the field or the header, and the page that sent it is ours."""
    require_same_origin(headers)
    given = fields.get(CSRF_FIELD) or headers.get(CSRF_HEADER) or ""
    one = given if isinstance(given, str) else given[0]
    if not hmac.compare_digest(one.encode("utf-8", "surrogatepass"), visit.csrf_token.encode()):
        raise Forbidden(_WRONG_TOKEN_MESSAGE)


def require_same_origin(headers: Mapping[str, str]) -> None:
    """Where the browser says which page asked: it must be one that came from the very address that is asked."""
    if headers.get("sec-fetch-site", "none") not in _TRUSTED_FETCH_SITES:
        raise Forbidden(_CROSS_ORIGIN_MESSAGE)
    origin = headers.get("origin")
    if origin is not None and _origin_authority(origin) != headers.get("host", "").lower():
        raise Forbidden(_CROSS_ORIGIN_MESSAGE)


def _origin_authority(origin: str) -> str | None:
    """`null`, which is what pages without an origin have, is nobody's."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


PORTAL_HOME = f"{PORTAL_PREFIX}/"
_SIGN_IN_OR_OUT = f"{PORTAL_PREFIX}/sign-"  # in or out: nobody goes on to there


def safe_redirect_path(to: str) -> str:
    """This path and query, if it is a page of the portal; else the first page there is.

    Browsers take a backslash for a slash and leave out line breaks, so neither may be in it.
    """
    ours = to == PORTAL_PREFIX or to.startswith((PORTAL_HOME, f"{PORTAL_PREFIX}?"))
    plain = to.isascii() and to.isprintable() and "\\" not in to
    return to if ours and plain and not to.startswith(_SIGN_IN_OR_OUT) else PORTAL_HOME


_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# An origin is told to ourselves, who look at it; `no-referrer` would make it null.
_SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecurityHeadersMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path != "/" and path != PORTAL_PREFIX and not path.startswith(f"{PORTAL_PREFIX}/"):
            await self._app(scope, receive, send)
            return
        told = {
            **_SECURITY_HEADERS,
            "Cache-Control": "no-cache" if path.startswith(f"{PORTAL_PREFIX}/static/") else "no-store",
        }

        async def send_told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in told.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_told)
