"""Fetches an issuer's OpenID configuration and other documents, over https only, loopback excepted."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlencode, urlsplit

import msgspec

from forewarn.auth.claims import quote_excerpt
from forewarn.base.http_client import HttpClient, HttpLimits, HttpRequestFailed
from forewarn.errors import Rejected, Unavailable

_LIMITS = HttpLimits(timeout_s=5.0, body_timeout_s=5.0, max_body_bytes=1024 * 1024)
_HEADERS = {"Accept": "application/json", "User-Agent": "forewarn"}
_FORM_HEADERS = {**_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}


async def fetch_document(client: HttpClient, url: str) -> bytes:
    """Send a GET request for JSON, and return the body of the answer, undecoded."""
    status, content = await _exchange(client, "GET", url, _HEADERS)
    if status >= 300:
        raise Unavailable(f"{url!r} answered {status}")
    return content


async def post_form(
    client: HttpClient, url: str, fields: Mapping[str, str], authorization: str = ""
) -> tuple[int, bytes]:
    """Send a URL-encoded form by POST, and return status and body; error statuses and redirects are returned too."""
    headers = {**_FORM_HEADERS, **({"Authorization": authorization} if authorization else {})}
    return await _exchange(client, "POST", url, headers, urlencode(fields).encode())


async def _exchange(
    client: HttpClient, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> tuple[int, bytes]:
    require_https(url)
    try:
        response = await client.send(method, url, headers=headers, body=body, limits=_LIMITS)
    except HttpRequestFailed as error:
        raise Unavailable(f"{url!r} does not answer: {error}") from error
    if not response.is_complete and response.status < 300:
        is_long = len(response.body) >= _LIMITS.max_body_bytes
        problem = f"more than {_LIMITS.max_body_bytes} bytes" if is_long else "a body that breaks off"
        raise Unavailable(f"{url!r} answered with {problem}")
    return response.status, response.body


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


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


_BASIC, _POST = "client_secret_basic", "client_secret_post"


class OidcConfiguration(msgspec.Struct, frozen=True):
    """The parts of an issuer's openid-configuration that we need, as the issuer wrote them, not checked."""

    issuer: str  # its URL
    jwks_uri: str  # where its public keys are
    authorization_endpoint: str = ""  # where browsers sign in; "": it names none, also in the next field
    token_endpoint: str = ""  # where codes are exchanged for tokens
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)  # how a client may send its secret, by OIDC name

    @property
    def takes_secret_in_form(self) -> bool:
        """Whether a client must send its secret as a form field, because Basic authentication is not listed."""
        known = self.token_endpoint_auth_methods_supported
        return _BASIC not in known and _POST in known


async def fetch_oidc_configuration(client: HttpClient, issuer_url: str) -> OidcConfiguration:
    """Fetch the openid-configuration of an issuer, below its URL at `.well-known/`."""
    try:
        content = await fetch_document(client, f"{issuer_url.rstrip('/')}/.well-known/openid-configuration")
        configuration = msgspec.json.decode(content, type=OidcConfiguration)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"its openid-configuration cannot be read ({error})") from None
    if configuration.issuer.rstrip("/") != issuer_url.rstrip("/"):
        raise Unavailable(f"its openid-configuration belongs to {quote_excerpt(configuration.issuer)}")
    return configuration
