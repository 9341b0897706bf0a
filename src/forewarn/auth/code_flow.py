"""Signs people in at an external issuer: OAuth authorization code flow with PKCE (RFC 7636).

All values of a sign-in are derived from one secret that the browser keeps; the service stores nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote_plus, urlencode

import msgspec

from forewarn.auth.claims import Claims, quote_excerpt
from forewarn.auth.external_issuer import (
    ExternalIssuer,
    OidcConfiguration,
    fetch_oidc_configuration,
    post_form,
    require_https,
)
from forewarn.errors import Rejected, Unauthenticated, Unavailable

_CONFIGURATION_TTL_S = 3600
_RETRY_INTERVAL_S = 5  # many sign-ins must not cause many requests to the issuer
_MAX_CONCURRENT_REDEMPTIONS = 3  # anybody can present a code, and each one costs a request to the issuer
_SCOPE = "openid profile email"


class PendingSignIn(msgspec.Struct, frozen=True):
    """One sign-in of a person at the external issuer, in progress (OAuth code flow with PKCE)."""

    # The service does not store it: the browser keeps `secret` in a cookie, and all other values follow from it. So
    # only that browser can complete the sign-in.

    secret: str  # the browser keeps it in a cookie

    @classmethod
    def start(cls) -> PendingSignIn:
        """Return a new sign-in with a random secret of 256 bits. Sends and stores nothing."""
        return cls(secrets.token_urlsafe(32))

    @property
    def state(self) -> str:
        """The `state` parameter of OAuth, derived from the secret, which the issuer sends back."""
        return self._derive("state")

    @property
    def nonce(self) -> str:
        """The `nonce` for the issuer, derived from the secret; the id token must contain it."""
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        """The code verifier of PKCE, derived from the secret; it is sent when the code is redeemed."""
        return self._derive("verifier")

    @property
    def challenge(self) -> str:
        """The S256 code challenge of PKCE for the authorization URL: the base64url SHA-256 of `verifier`."""
        return _base64(hashlib.sha256(self.verifier.encode()).digest())

    def matches_state(self, state: str) -> bool:
        """Return whether `state`, as the issuer sent it back by way of the browser, is that of this sign-in."""
        return hmac.compare_digest(state.encode("utf-8", "surrogatepass"), self.state.encode())

    def _derive(self, what: str) -> str:
        return _base64(hmac.digest(self.secret.encode("utf-8", "surrogatepass"), what.encode(), hashlib.sha256))


class _TokenResponse(msgspec.Struct, frozen=True):
    id_token: str = ""
    error: str = ""
    error_description: str = ""


class AuthorizationCodeFlow:
    """Signs people in to the portal at an external issuer, as its client `client_id`.

    Call `authorization_url` first, for the browser, then `redeem_code` with the code that the browser brings back. With
    a `secret` it authenticates as a confidential client, without one as a public client; PKCE is used in both cases.
    """

    def __init__(self, issuer: ExternalIssuer, client_id: str, secret: str = "") -> None:
        self.issuer = issuer
        self._client_id = client_id
        self._secret = secret
        self._configuration: OidcConfiguration | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._last_error = ""
        self._fetch_lock = asyncio.Lock()
        self._redemption_slots = asyncio.Semaphore(_MAX_CONCURRENT_REDEMPTIONS)

    async def authorization_url(self, sign_in: PendingSignIn, redirect_uri: str, now: float) -> str:
        """Return the URL at the issuer to which the browser is redirected to begin this sign-in."""
        endpoint = (await self._current_configuration(now)).authorization_endpoint
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": _SCOPE,
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": sign_in.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"

    async def redeem_code(self, code: str, sign_in: PendingSignIn, redirect_uri: str, now: float) -> Claims:
        """Exchange the code for an id token at the issuer, and return the claims of the verified id token.

        The caller must have checked `matches_state`. At most three exchanges run at once.
        """
        configuration = await self._current_configuration(now)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": sign_in.verifier,
        }
        authorization = ""
        if self._secret and configuration.takes_secret_in_form:
            form["client_secret"] = self._secret
        elif self._secret:
            authorization = _basic_authorization(self._client_id, self._secret)
        async with self._redemption_slots:
            status, content = await post_form(self.issuer.client, configuration.token_endpoint, form, authorization)
        response = self._parse_response(status, content)
        return await self.issuer.verify_id_token(
            response.id_token, client_id=self._client_id, nonce=sign_in.nonce, now=now
        )

    def _parse_response(self, status: int, content: bytes) -> _TokenResponse:
        try:
            response = msgspec.json.decode(content, type=_TokenResponse)
        except (ValueError, RecursionError):
            response = _TokenResponse()
        if status == 429 or status >= 500:
            raise Unavailable(f"issuer {self.issuer.url!r} answered {status}, so the sign-in failed: try again")
        if response.id_token:
            return response
        why = quote_excerpt(response.error_description or response.error or f"status {status}")
        raise Unauthenticated(f"issuer {self.issuer.url!r} did not confirm your identity ({why}): sign in again")

    async def _current_configuration(self, now: float) -> OidcConfiguration:
        """Return the issuer's configuration, at most an hour old unless the issuer cannot be reached."""
        async with self._fetch_lock:
            if (
                not 0 <= now - self._fetched_at < _CONFIGURATION_TTL_S
                and not 0 <= now - self._tried_at < _RETRY_INTERVAL_S
            ):
                self._tried_at = now
                await self._fetch_configuration(now)
        if self._configuration is None:
            raise Unavailable(
                f"sign-in at issuer {self.issuer.url!r} does not work now: {self._last_error}; try again later"
            )
        return self._configuration

    async def _fetch_configuration(self, now: float) -> None:
        try:
            configuration = await fetch_oidc_configuration(self.issuer.client, self.issuer.url)
            for endpoint in (configuration.authorization_endpoint, configuration.token_endpoint):
                require_https(endpoint)
            self._configuration, self._fetched_at = configuration, now
        except (Unavailable, Rejected) as error:
            self._last_error = str(error)


def _basic_authorization(client_id: str, secret: str) -> str:
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"  # RFC 6749 §2.3.1
    return f"Basic {b64encode(pair.encode()).decode()}"


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()
