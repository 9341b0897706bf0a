"""Who is signed in to the portal: a cookie that outlives a restart, and what it is worth at this very moment."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import urlsafe_b64encode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from forewarn.access.claims import BadToken, Claims
from forewarn.access.session import LASTS_S, Ended, Session, Sessions
from forewarn.access.sign_in import SignIn
from forewarn.console.door import principal_of
from forewarn.console.house import House
from forewarn.console.portal.cookie import Cookie
from forewarn.console.portal.visit import Visit
from forewarn.core.access import Principal, owner
from forewarn.errors import Unauthenticated

_ENDED = "portal sessions ended, by person"  # under which the store keeps them
_NOBODY = "nobody is signed in here: sign in"
_SIGNED_OUT = "somebody signed out of this session: sign in again"


class Lobby:
    """Knows visitors by their cookies. Nothing else is remembered, so that what is revoked counts at once."""

    def __init__(self, *, house: House, sign_in: SignIn, sessions: Sessions) -> None:
        self.house = house
        self.sign_in = sign_in
        self._store = house.control.store
        self._sessions = sessions
        self._cookie = Cookie("forewarn", sign_in.tenant_id, lasts_s=LASTS_S)
        kept = self._store.saved(_ENDED)
        self._ended = Ended() if kept is None else msgspec.json.decode(kept, type=Ended)
        self._ending = asyncio.Lock()

    async def welcome(self, request: Request) -> Visit:
        text = self._cookie.read(request)
        session = self._read(text)
        return Visit(principal=self._principal(session), token=_repeated(text), ends_at=session.ends_at)

    def begin(
        self, request: Request, response: Response, claims: Claims, *, issuer: str = "", is_owner: bool = False
    ) -> None:
        """Sign in with this response. Unauthenticated where whoever it is may not come in any more."""
        text = self._sessions.begin(claims, self.house.real_time(), issuer=issuer, is_owner=is_owner)
        self._principal(self._read(text))
        self._cookie.put(request, response, text)

    async def end(self, request: Request, response: Response) -> None:
        """Whoever kept a copy of the cookie is signed out too, here and after a restart."""
        session = self._read(self._cookie.read(request))
        async with self._ending:
            ended = self._ended.with_one(session, self.house.real_time())
            await self._store.save(_ENDED, msgspec.json.encode(ended))
            self._ended = ended
        self.forget(request, response)

    def forget(self, request: Request, response: Response) -> None:
        self._cookie.take_back(request, response)

    def _read(self, text: str) -> Session:
        if not text:
            raise Unauthenticated(_NOBODY)
        try:
            session = self._sessions.read(text, self.house.real_time())
        except BadToken as error:
            raise Unauthenticated(str(error)) from None
        if self._ended.has(session):
            raise Unauthenticated(_SIGNED_OUT)
        return session

    def _principal(self, session: Session) -> Principal:
        if session.is_owner:
            return owner(self.house.who)
        external = self.sign_in.external.url if self.sign_in.external else ""
        if session.issuer != external:
            where = repr(external) if external else "this service itself"
            raise Unauthenticated(f"people sign in at {where} now: sign in again")
        return principal_of(session.claims, self._store)


def _repeated(text: str) -> str:
    """What forms must repeat. Who knows it knows nothing of the cookie, and without the cookie nobody knows it."""
    digest = hmac.digest(text.encode(), b"what forms repeat", hashlib.sha256)
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
