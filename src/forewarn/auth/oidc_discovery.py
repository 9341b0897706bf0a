"""Fetches an issuer's OpenID configuration and other documents, over https only, loopback excepted.

All calls block: run them in a thread.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from email.message import Message
from ipaddress import ip_address
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

import msgspec

from forewarn.auth.claims import quote_excerpt
from forewarn.errors import Rejected, Unavailable

_MAX_RESPONSE_BYTES = 1024 * 1024
_TIMEOUT_S = 5.0
_HEADERS = {"Accept": "application/json", "User-Agent": "forewarn"}


def fetch_document(url: str) -> bytes:
    """Return the body of the answer to a GET request. Blocks.

    Unavailable if there is no answer, or if it is not 2xx (redirects are not followed) or longer than 1 MiB. Raises
    Rejected as `require_https` does.
    """
    status, content = _exchange(Request(url, headers=_HEADERS))
    if status >= 300:
        raise Unavailable(f"{url!r} answered {status}")
    return content


def post_form(url: str, fields: Mapping[str, str], authorization: str = "") -> tuple[int, bytes]:
    """Send a form by POST, and return the status and body of the answer, also of a redirect or an error.

    Unavailable if there is no answer or it is longer than 1 MiB. Raises Rejected as `require_https` does. Blocks.
    """
    headers = {**_HEADERS, **({"Authorization": authorization} if authorization else {})}
    return _exchange(Request(url, urlencode(fields).encode(), headers, method="POST"))


def _exchange(request: Request) -> tuple[int, bytes]:
    url = request.full_url
    require_https(url)
    try:
        with _opener(url).open(request, timeout=_TIMEOUT_S) as response:
            status, content = int(response.status), bytes(response.read(_MAX_RESPONSE_BYTES + 1))
    except HTTPError as error:
        with error:
            status, content = error.code, _error_body(error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{url!r} does not answer: {error}") from error
    if len(content) > _MAX_RESPONSE_BYTES:
        raise Unavailable(f"{url!r} answered with more than {_MAX_RESPONSE_BYTES} bytes")
    return status, content


def _error_body(error: HTTPError) -> bytes:
    """Return the body of an error answer; empty if the connection breaks."""
    try:
        return error.read(_MAX_RESPONSE_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError):
        return b""


def require_https(url: str) -> None:
    """Raise Rejected unless the URL is https, or http on loopback: keys over plain http could be forged."""
    try:
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))
        is_valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_safe = is_valid = False
    if not (is_safe and is_valid):
        raise Rejected(f"issuer address {url!r} is neither https nor on loopback: give one that begins with https://")


def _opener(url: str) -> OpenerDirector:
    return build_opener(_NoRedirect, *([ProxyHandler({})] if _is_loopback(urlsplit(url).hostname) else []))


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirects: one could lead from https to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        return None


_BASIC, _POST = "client_secret_basic", "client_secret_post"


class OidcConfiguration(msgspec.Struct, frozen=True):
    """The parts of an issuer's openid-configuration that sign-in and verification need."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)

    @property
    def takes_secret_in_form(self) -> bool:
        """Whether the token endpoint accepts the client secret only in the form, not in a header."""
        known = self.token_endpoint_auth_methods_supported
        return _BASIC not in known and _POST in known


def fetch_oidc_configuration(issuer_url: str) -> OidcConfiguration:
    """Fetch an issuer's openid-configuration. Unavailable if it cannot be read or names another issuer.

    Raises Rejected as `require_https` does for the issuer's URL. Blocks: call it in a thread.
    """
    try:
        content = fetch_document(f"{issuer_url.rstrip('/')}/.well-known/openid-configuration")
        configuration = msgspec.json.decode(content, type=OidcConfiguration)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"its openid-configuration cannot be read ({error})") from None
    if configuration.issuer.rstrip("/") != issuer_url.rstrip("/"):
        raise Unavailable(f"its openid-configuration belongs to {quote_excerpt(configuration.issuer)}")
    return configuration
