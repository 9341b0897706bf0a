"""Portal sessions: reads and writes the session cookie and resolves it to a principal per request.

The cookie is signed and survives a restart. Only ended sessions are stored, so that a revoked client or role counts
at once. Cookie names carry the tenant id, because browsers separate cookies by host and not by port.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import urlsafe_b64encode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from forewarn.auth.claims import Claims, InvalidToken
from forewarn.auth.sessions import SESSION_LIFETIME_S, EndedSessions, PortalSession, SessionIssuer
from forewarn.auth.token_service import TokenService
from forewarn.core.access import Principal, owner_principal
from forewarn.errors import Unauthenticated
from forewarn.portal.context import CurrentSession
from forewarn.web.authentication import principal_for_claims
from forewarn.web.dependencies import Dependencies

_TENANT_ID_LENGTH = 8


class ServiceCookie:
    """Never sent along from other sites, never shown to scripts; over TLS, only over TLS and by this host alone."""

    def __init__(self, word: str, tenant_id: str, *, lasts_s: int) -> None:
        self._name = f"{word}-{tenant_id[:_TENANT_ID_LENGTH]}"
        self._max_age_s = lasts_s

    def read(self, request: Request) -> str:
        return request.cookies.get(self._name_for(request), "")

    def write(self, request: Request, response: Response, text: str) -> None:
        self._set_cookie(request, response, text, self._max_age_s)

    def clear(self, request: Request, response: Response) -> None:
        self._set_cookie(request, response, "", 0)

    def _set_cookie(self, request: Request, response: Response, text: str, lasts_s: int) -> None:
        response.set_cookie(
            self._name_for(request),
            text,
            max_age=lasts_s,
            path="/",
            secure=_is_secure(request),
            httponly=True,
            samesite="strict",
        )

    def _name_for(self, request: Request) -> str:
        return f"__Host-{self._name}" if _is_secure(request) else self._name


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


_ENDED_SESSIONS_KEY = "portal sessions ended, by person"  # under which the store keeps them
_NOT_SIGNED_IN_MESSAGE = "nobody is signed in here: sign in"
_SIGNED_OUT_MESSAGE = "somebody signed out of this session: sign in again"


class SessionManager:
    """Knows visitors by their cookies. Nothing else is remembered, so that what is revoked counts at once."""

    def __init__(self, *, dependencies: Dependencies, sign_in: TokenService, sessions: SessionIssuer) -> None:
        self.dependencies = dependencies
        self.sign_in = sign_in
        self._store = dependencies.control.store
        self._sessions = sessions
        self._cookie = ServiceCookie("forewarn", sign_in.tenant_id, lasts_s=SESSION_LIFETIME_S)
        kept = self._store.load(_ENDED_SESSIONS_KEY)
        self._ended_sessions = EndedSessions() if kept is None else msgspec.json.decode(kept, type=EndedSessions)
        self._ended_sessions_lock = asyncio.Lock()

    async def authenticate(self, request: Request) -> CurrentSession:
        text = self._cookie.read(request)
        session = self._read_session(text)
        return CurrentSession(
            principal=self._principal_of(session), csrf_token=_csrf_token_for(text), ends_at=session.ends_at
        )

    def start_session(
        self, request: Request, response: Response, claims: Claims, *, issuer: str = "", is_owner: bool = False
    ) -> None:
        """Sign in with this response. Unauthenticated where whoever it is may not come in any more."""
        text = self._sessions.issue(claims, self.dependencies.real_time(), issuer=issuer, is_owner=is_owner)
        self._principal_of(self._read_session(text))
        self._cookie.write(request, response, text)

    async def end_session(self, request: Request, response: Response) -> None:
        """Whoever kept a copy of the cookie is signed out too, here and after a restart."""
        session = self._read_session(self._cookie.read(request))
        async with self._ended_sessions_lock:
            ended = self._ended_sessions.with_session(session, self.dependencies.real_time())
            await self._store.save(_ENDED_SESSIONS_KEY, msgspec.json.encode(ended))
            self._ended_sessions = ended
        self.clear_cookie(request, response)

    def clear_cookie(self, request: Request, response: Response) -> None:
        self._cookie.clear(request, response)

    def _read_session(self, text: str) -> PortalSession:
        if not text:
            raise Unauthenticated(_NOT_SIGNED_IN_MESSAGE)
        try:
            session = self._sessions.verify(text, self.dependencies.real_time())
        except InvalidToken as error:
            raise Unauthenticated(str(error)) from None
        if self._ended_sessions.contains(session):
            raise Unauthenticated(_SIGNED_OUT_MESSAGE)
        return session

    def _principal_of(self, session: PortalSession) -> Principal:
        if session.is_owner:
            return owner_principal(self.dependencies.owner_name)
        external = self.sign_in.external.url if self.sign_in.external else ""
        if session.issuer != external:
            where = repr(external) if external else "this service itself"
            raise Unauthenticated(f"people sign in at {where} now: sign in again")
        return principal_for_claims(session.claims, self._store)


def _csrf_token_for(text: str) -> str:
    """What forms must repeat. Who knows it knows nothing of the cookie, and without the cookie nobody knows it."""
    digest = hmac.digest(text.encode(), b"what forms repeat", hashlib.sha256)
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
