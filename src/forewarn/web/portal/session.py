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
from forewarn.web.authentication import principal_for_claims
from forewarn.web.dependencies import Dependencies
from forewarn.web.portal.context import CurrentSession

_TENANT_ID_LENGTH = 8


class ServiceCookie:
    """A cookie of this service: HttpOnly and SameSite=Strict; over TLS also Secure and bound to this host."""

    # Its name has a part of the tenant id, so that two services on one machine do not overwrite each other's cookies.

    def __init__(self, name: str, tenant_id: str, *, max_age_s: int) -> None:
        self._name = f"{name}-{tenant_id[:_TENANT_ID_LENGTH]}"
        self._max_age_s = max_age_s

    def read(self, request: Request) -> str:
        """Return the text of the cookie in a request; "" if the browser sent none. Verifies nothing."""
        return request.cookies.get(self._name_for(request), "")

    def write(self, request: Request, response: Response, text: str) -> None:
        """Add the cookie with the value `text` to `response`, for `max_age_s` seconds."""
        self._set_cookie(request, response, text, self._max_age_s)

    def clear(self, request: Request, response: Response) -> None:
        """Add a header to `response` that makes the browser delete this cookie."""
        self._set_cookie(request, response, "", 0)

    def _set_cookie(self, request: Request, response: Response, text: str, max_age_s: int) -> None:
        response.set_cookie(
            self._name_for(request),
            text,
            max_age=max_age_s,
            path="/",
            secure=_is_secure(request),
            httponly=True,
            samesite="strict",
        )

    def _name_for(self, request: Request) -> str:
        return f"__Host-{self._name}" if _is_secure(request) else self._name


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


_ENDED_SESSIONS_KEY = "portal sessions ended, by person"  # in the store; must not change
_NOT_SIGNED_IN_MESSAGE = "you are not signed in: sign in"
_SIGNED_OUT_MESSAGE = "this session was signed out: sign in again"


class SessionManager:
    """Starts, resolves and ends portal sessions, which are signed cookies, valid for 12 hours (real time)."""

    # Only ended sessions are stored. Each request resolves the user's rights anew, so that a revocation counts at once.

    def __init__(self, *, dependencies: Dependencies, sign_in: TokenService, sessions: SessionIssuer) -> None:
        self.dependencies = dependencies
        self.sign_in = sign_in
        self._store = dependencies.control.store
        self._sessions = sessions
        self._cookie = ServiceCookie("forewarn", sign_in.tenant_id, max_age_s=SESSION_LIFETIME_S)
        stored = self._store.load(_ENDED_SESSIONS_KEY)
        self._ended_sessions = EndedSessions() if stored is None else msgspec.json.decode(stored, type=EndedSessions)
        self._ended_sessions_lock = asyncio.Lock()

    async def authenticate(self, request: Request) -> CurrentSession:
        """Return the session of a request, with the user's current rights; `history_seq` is not set."""
        text = self._cookie.read(request)
        session = self._read_session(text)
        return CurrentSession(
            principal=self._principal_of(session), csrf_token=_csrf_token_for(text), ends_at=session.ends_at
        )

    def start_session(
        self, request: Request, response: Response, claims: Claims, *, issuer: str = "", is_owner: bool = False
    ) -> None:
        """Sign a user in for 12 hours: add the session cookie to `response`. Stores nothing."""
        text = self._sessions.issue(claims, self.dependencies.real_time(), issuer=issuer, is_owner=is_owner)
        self._principal_of(self._read_session(text))
        self._cookie.write(request, response, text)

    async def end_session(self, request: Request, response: Response) -> None:
        """Sign out: clear the cookie, and store that the session ended, so that a copy of it is worthless."""
        session = self._read_session(self._cookie.read(request))
        async with self._ended_sessions_lock:
            ended = self._ended_sessions.with_session(session, self.dependencies.real_time())
            await self._store.save(_ENDED_SESSIONS_KEY, msgspec.json.encode(ended))
            self._ended_sessions = ended
        self.clear_cookie(request, response)

    def clear_cookie(self, request: Request, response: Response) -> None:
        """Make the browser delete the session cookie."""
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
            issuer_text = repr(external) if external else "this service itself"
            raise Unauthenticated(f"users sign in at {issuer_text} now: sign in again")
        return principal_for_claims(session.claims, self._store)


def _csrf_token_for(text: str) -> str:
    """The CSRF token of a session cookie: a keyed hash, which does not reveal the cookie."""
    digest = hmac.digest(text.encode(), b"what forms repeat", hashlib.sha256)
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
