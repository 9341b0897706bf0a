"""Signing people in at an issuer outside: they come back with a code, which we redeem for who they are.

Authorization code with PKCE (RFC 7636). All that a sign-in under way needs follows from one secret, which the browser
keeps: nothing is remembered here.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote_plus, urlencode

import msgspec

from forewarn.access.claims import Claims, shown
from forewarn.access.discovery import Discovery, discovered
from forewarn.access.fetch import must_be_safe, send_form
from forewarn.access.issuer import ExternalIssuer
from forewarn.errors import Rejected, Unauthenticated, Unavailable

_KEPT_S = 3600
_PACE_S = 5  # whoever asks to sign in must not become a flood of requests to the issuer
_MOST_REDEEMED = 3  # at a time: any stranger can bring a code, and the threads that ask are also for what VMs wait for
_SCOPE = "openid profile email"


class Flow(msgspec.Struct, frozen=True):
    """One sign-in under way. Whoever does not know its secret can neither begin it for others nor end it."""

    secret: str

    @classmethod
    def begun(cls) -> Flow:
        return cls(secrets.token_urlsafe(32))

    @property
    def state(self) -> str:
        return self._derived("state")

    @property
    def nonce(self) -> str:
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        return self._derived("verifier")

    @property
    def challenge(self) -> str:
        return _base64(hashlib.sha256(self.verifier.encode()).digest())

    def is_answered_by(self, state: str) -> bool:
        return hmac.compare_digest(state.encode("utf-8", "surrogatepass"), self.state.encode())

    def _derived(self, what: str) -> str:
        return _base64(hmac.digest(self.secret.encode("utf-8", "surrogatepass"), what.encode(), hashlib.sha256))


class _Answer(msgspec.Struct, frozen=True):
    id_token: str = ""
    error: str = ""
    error_description: str = ""


class CodeFlow:
    """Signs people in at `issuer` as its client `client_id`; without a secret, as a public one."""

    def __init__(self, issuer: ExternalIssuer, client_id: str, secret: str = "") -> None:
        self.issuer = issuer
        self._client_id = client_id
        self._secret = secret
        self._known: Discovery | None = None
        self._known_at = self._tried_at = float("-inf")
        self._trouble = ""
        self._finding = asyncio.Lock()
        self._redeeming = asyncio.Semaphore(_MOST_REDEEMED)

    async def address(self, flow: Flow, redirect_uri: str, now: float) -> str:
        """Where the browser is sent."""
        endpoint = (await self._discovery(now)).authorization_endpoint
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

    async def redeem(self, code: str, flow: Flow, redirect_uri: str, now: float) -> Claims:
        """Who came back with this code. Raises Unauthenticated, BadToken or Unavailable."""
        found = await self._discovery(now)
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
            authorization = _basic(self._client_id, self._secret)
        async with self._redeeming:
            status, content = await asyncio.to_thread(send_form, found.token_endpoint, form, authorization)
        answer = self._read(status, content)
        return await self.issuer.verify_person(answer.id_token, client_id=self._client_id, nonce=flow.nonce, now=now)

    def _read(self, status: int, content: bytes) -> _Answer:
        try:
            answer = msgspec.json.decode(content, type=_Answer)
        except (ValueError, RecursionError):
            answer = _Answer()
        if status == 429 or status >= 500:
            raise Unavailable(f"issuer {self.issuer.url!r} answers {status} and redeems no code now: try again")
        if answer.id_token:
            return answer
        why = shown(answer.error_description or answer.error or f"status {status}")
        raise Unauthenticated(f"issuer {self.issuer.url!r} does not say who you are ({why}): sign in once more")

    async def _discovery(self, now: float) -> Discovery:
        """As the issuer said within the last hour; while it cannot be reached, as it said before."""
        async with self._finding:
            if not 0 <= now - self._known_at < _KEPT_S and not 0 <= now - self._tried_at < _PACE_S:
                self._tried_at = now
                await self._find(now)
        if self._known is None:
            raise Unavailable(f"nobody can sign in at issuer {self.issuer.url!r} now: {self._trouble}; try again later")
        return self._known

    async def _find(self, now: float) -> None:
        try:
            found = await asyncio.to_thread(discovered, self.issuer.url)
            for endpoint in (found.authorization_endpoint, found.token_endpoint):
                must_be_safe(endpoint)
            self._known, self._known_at = found, now
        except (Unavailable, Rejected) as error:
            self._trouble = str(error)


def _basic(client_id: str, secret: str) -> str:
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"  # RFC 6749 §2.3.1
    return f"Basic {b64encode(pair.encode()).decode()}"


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()
