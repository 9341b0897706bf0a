"""Signs people in at an external issuer: OAuth authorization code flow with PKCE (RFC 7636).

Everything a sign-in needs is derived from one secret that the browser keeps; the service stores nothing.
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
from forewarn.auth.external_issuer import ExternalIssuer
from forewarn.auth.oidc_discovery import OidcConfiguration, fetch_oidc_configuration, post_form, require_https
from forewarn.errors import Rejected, Unauthenticated, Unavailable

_CONFIGURATION_TTL_S = 3600
_RETRY_INTERVAL_S = 5  # whoever asks to sign in must not become a flood of requests to the issuer
_MAX_CONCURRENT_REDEMPTIONS = (
    3  # at a time: any stranger can bring a code, and the threads that ask are also for what VMs wait for
)
_SCOPE = "openid profile email"


class AuthorizationFlow(msgspec.Struct, frozen=True):
    """One sign-in under way. Whoever does not know its secret can neither begin it for others nor end it."""

    secret: str

    @classmethod
    def start(cls) -> AuthorizationFlow:
        return cls(secrets.token_urlsafe(32))

    @property
    def state(self) -> str:
        return self._derive("state")

    @property
    def nonce(self) -> str:
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        return self._derive("verifier")

    @property
    def challenge(self) -> str:
        return _base64(hashlib.sha256(self.verifier.encode()).digest())

    def matches_state(self, state: str) -> bool:
        return hmac.compare_digest(state.encode("utf-8", "surrogatepass"), self.state.encode())

    def _derive(self, what: str) -> str:
        return _base64(hmac.digest(self.secret.encode("utf-8", "surrogatepass"), what.encode(), hashlib.sha256))


class _TokenResponse(msgspec.Struct, frozen=True):
    id_token: str = ""
    error: str = ""
    error_description: str = ""


class AuthorizationCodeFlow:
    """Signs people in at `issuer` as its client `client_id`; without a secret, as a public one."""

    def __init__(self, issuer: ExternalIssuer, client_id: str, secret: str = "") -> None:
        self.issuer = issuer
        self._client_id = client_id
        self._secret = secret
        self._configuration: OidcConfiguration | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._last_error = ""
        self._fetch_lock = asyncio.Lock()
        self._redemption_slots = asyncio.Semaphore(_MAX_CONCURRENT_REDEMPTIONS)

    async def authorization_url(self, flow: AuthorizationFlow, redirect_uri: str, now: float) -> str:
        """Where the browser is sent."""
        endpoint = (await self._current_configuration(now)).authorization_endpoint
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": _SCOPE,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": flow.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def redeem_code(self, code: str, flow: AuthorizationFlow, redirect_uri: str, now: float) -> Claims:
        """Who came back with this code. Raises Unauthenticated, BadToken or Unavailable."""
        found = await self._current_configuration(now)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": flow.verifier,
        }
        authorization = ""
        if self._secret and found.takes_secret_in_form:
            form["client_secret"] = self._secret
        elif self._secret:
            authorization = _basic_authorization(self._client_id, self._secret)
        async with self._redemption_slots:
            status, content = await asyncio.to_thread(post_form, found.token_endpoint, form, authorization)
        answer = self._parse_response(status, content)
        return await self.issuer.verify_id_token(answer.id_token, client_id=self._client_id, nonce=flow.nonce, now=now)

    def _parse_response(self, status: int, content: bytes) -> _TokenResponse:
        try:
            answer = msgspec.json.decode(content, type=_TokenResponse)
        except (ValueError, RecursionError):
            answer = _TokenResponse()
        if status == 429 or status >= 500:
            raise Unavailable(f"issuer {self.issuer.url!r} answers {status} and redeems no code now: try again")
        if answer.id_token:
            return answer
        why = quote_excerpt(answer.error_description or answer.error or f"status {status}")
        raise Unauthenticated(f"issuer {self.issuer.url!r} does not say who you are ({why}): sign in once more")

    async def _current_configuration(self, now: float) -> OidcConfiguration:
        """As the issuer said within the last hour; while it cannot be reached, as it said before."""
        async with self._fetch_lock:
            if (
                not 0 <= now - self._fetched_at < _CONFIGURATION_TTL_S
                and not 0 <= now - self._tried_at < _RETRY_INTERVAL_S
            ):
                self._tried_at = now
                await self._fetch_configuration(now)
        if self._configuration is None:
            raise Unavailable(
                f"nobody can sign in at issuer {self.issuer.url!r} now: {self._last_error}; try again later"
            )
        return self._configuration

    async def _fetch_configuration(self, now: float) -> None:
        try:
            found = await asyncio.to_thread(fetch_oidc_configuration, self.issuer.url)
            for endpoint in (found.authorization_endpoint, found.token_endpoint):
                require_https(endpoint)
            self._configuration, self._fetched_at = found, now
        except (Unavailable, Rejected) as error:
            self._last_error = str(error)


def _basic_authorization(client_id: str, secret: str) -> str:
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"  # RFC 6749 §2.3.1
    return f"Basic {b64encode(pair.encode()).decode()}"


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()
