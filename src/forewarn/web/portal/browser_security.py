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
from forewarn.web.portal.context import PORTAL_PREFIX, CurrentSession

CSRF_FIELD = "token"  # form field that holds the CSRF token
CSRF_HEADER = "X-Forewarn-Token"  # header that scripts may use instead
# Values of Sec-Fetch-Site. Another port of this machine is "same-site", and not trusted.
_TRUSTED_FETCH_SITES = ("same-origin", "none")
_CROSS_ORIGIN_MESSAGE = "another site sent this request, so nothing was done: open the portal and submit the form there"
_WRONG_TOKEN_MESSAGE = (
    "the form does not belong to your current session, so nothing was done: reload the page, and submit it again"
)


def require_csrf_token(
    session: CurrentSession, headers: Mapping[str, str], fields: Mapping[str, str | Sequence[str]]
) -> None:
    """Raise Forbidden unless the request holds the session's CSRF token and comes from our own origin."""
    require_same_origin(headers)
    submitted = fields.get(CSRF_FIELD) or headers.get(CSRF_HEADER) or ""
    token = submitted if isinstance(submitted, str) else submitted[0]
    if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), session.csrf_token.encode()):
        raise Forbidden(_WRONG_TOKEN_MESSAGE)


def require_same_origin(headers: Mapping[str, str]) -> None:
    """Raise Forbidden if the headers Sec-Fetch-Site or Origin say that another origin sent the request."""
    if headers.get("sec-fetch-site", "none") not in _TRUSTED_FETCH_SITES:
        raise Forbidden(_CROSS_ORIGIN_MESSAGE)
    origin = headers.get("origin")
    if origin is not None and _origin_authority(origin) != headers.get("host", "").lower():
        raise Forbidden(_CROSS_ORIGIN_MESSAGE)


def _origin_authority(origin: str) -> str | None:
    """Host and port of an Origin header in lower case; None for `null` and for invalid ones."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


PORTAL_HOME = f"{PORTAL_PREFIX}/"  # the overview
_SIGN_IN_OR_OUT = f"{PORTAL_PREFIX}/sign-"  # never a redirect target


def safe_redirect_path(to: str) -> str:
    """Return `to` if it is a path of the portal, with or without a query; else `/portal/`, the overview."""
    # Browsers read a backslash as a slash and drop line breaks, so only printable ASCII without backslashes is
    # accepted.
    is_portal_path = to == PORTAL_PREFIX or to.startswith((PORTAL_HOME, f"{PORTAL_PREFIX}?"))
    is_plain = to.isascii() and to.isprintable() and "\\" not in to
    return to if is_portal_path and is_plain and not to.startswith(_SIGN_IN_OR_OUT) else PORTAL_HOME


_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# Referrer-Policy: `no-referrer` would make the Origin header null, which `require_same_origin` checks.
_SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecurityHeadersMiddleware:
    """ASGI middleware that adds security and caching headers to the responses of `/` and of the portal."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path != "/" and path != PORTAL_PREFIX and not path.startswith(f"{PORTAL_PREFIX}/"):
            await self._app(scope, receive, send)
            return
        headers_to_set = {
            **_SECURITY_HEADERS,
            "Cache-Control": "no-cache" if path.startswith(f"{PORTAL_PREFIX}/static/") else "no-store",
        }

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in headers_to_set.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
