"""Portal sessions, which are signed cookies, and one-time sign-in links.

Sessions are signed with the token key but for their own audience, so neither is accepted as the other. Links work
once, for 15 minutes; only their hash is kept, in memory.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from forewarn.auth import jws
from forewarn.auth.claims import Claims, InvalidToken, RegisteredClaims, TokenErrorReason, check_claims
from forewarn.auth.tokens import SIGNING_ALGORITHM, SigningKey
from forewarn.errors import Unauthenticated

LINK_LIFETIME_S = 15 * 60  # real time
_LINK_CODE_BYTES = 32
_MAX_OPEN_LINKS = 256  # unused links; then the oldest is dropped
_LINK_INVALID_TEXT = (
    "this sign-in link is not valid: it was used already, or its 15 minutes are over; `forewarn portal` makes another"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInIdentity:
    """The person or client whom a sign-in link signs in to the portal."""

    claims: Claims  # not from a token, so without an expiry
    is_owner: bool = False  # the session becomes one of the service's owner


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInLink:
    """A link that signs in to the portal once, made by `SignInLinks.create`."""

    url: str = field(repr=False)  # a secret: the first person to open it is signed in
    ends_at: float  # when it stops being valid, in POSIX seconds of real time


class SignInLinks:
    """Makes and redeems sign-in links. They are kept in memory only, at most 256; a restart forgets them."""

    def __init__(self, prefix: str, real_time: Callable[[], float]) -> None:
        self._prefix = prefix
        self._real_time = real_time
        self._open_links: dict[bytes, tuple[SignInIdentity, float]] = {}  # oldest first

    def create(self, identity: SignInIdentity) -> SignInLink:
        """Return a new link that signs this identity in once, within 15 minutes of real time."""
        code, ends_at = secrets.token_urlsafe(_LINK_CODE_BYTES), self._real_time() + LINK_LIFETIME_S
        while len(self._open_links) >= _MAX_OPEN_LINKS:
            del self._open_links[next(iter(self._open_links))]
        self._open_links[_hash_link_code(code)] = identity, ends_at
        return SignInLink(url=f"{self._prefix}{code}", ends_at=ends_at)

    def redeem(self, code: str) -> SignInIdentity:
        """Return the identity of the link that ends with this code, and invalidate the link."""
        identity, ends_at = self._open_links.pop(_hash_link_code(code), (None, 0.0))
        if identity is None or not self._real_time() < ends_at:
            raise Unauthenticated(_LINK_INVALID_TEXT)
        return identity


def _hash_link_code(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


SESSION_LIFETIME_S = 12 * 3600  # real time
_SESSION_AUDIENCE = frozenset({"forewarn portal"})
_MAX_ENDED_PER_PERSON = 1000
_MAX_VERIFIED_SESSIONS = 1024  # cached, because open pages check at every change, and a check takes about 0.1 ms
_SESSION_ENDED_TEXT = "the session is over: sign in again"


class PortalSession(msgspec.Struct, frozen=True, kw_only=True):
    """A verified portal session. It does not say what the person may do: grants are looked up at every request."""

    id: str  # random; EndedSessions names it
    ends_at: float  # real time, in POSIX seconds
    claims: Claims  # of the person or client who signed in, with the tenant of this service and the session's expiry
    issuer: str = ""  # the external issuer that identified the person; "": this service did
    is_owner: bool = False  # signed in with a link that only the service's owner can make


class _SessionPayload(RegisteredClaims, frozen=True, kw_only=True, omit_defaults=True):
    jti: str
    ids: tuple[str, ...]
    name: str
    mark: str = ""
    via: str = ""
    owner: bool = False


class EndedSessions(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that were ended before their time, by person: an immutable value that the store keeps.

    Sessions are not stored, so this is how a sign-out stays in force. If one person ends more than 1,000 sessions, all
    sessions of that person that expire by `until` count as ended.
    """

    ids: dict[str, dict[str, float]] = {}  # primary id → session id → when it would have expired (real time)
    until: dict[str, float] = {}  # primary id → sessions that expire by then (inclusive, real time) count as ended

    def contains(self, session: PortalSession) -> bool:
        """Return whether the session was ended before its time; whether it has expired is not checked."""
        who = session.claims.primary_id
        return session.id in self.ids.get(who, {}) or session.ends_at <= self.until.get(who, 0.0)

    def with_session(self, session: PortalSession, now: float, limit: int = _MAX_ENDED_PER_PERSON) -> EndedSessions:
        """Return a copy to which this session is added, without the sessions that have expired at `now`."""
        who = session.claims.primary_id
        remaining = {person: sessions for person in self.ids if (sessions := _unexpired(self.ids[person], now))}
        latest = sorted([*remaining.get(who, {}).items(), (session.id, session.ends_at)], key=lambda each: -each[1])
        until = _unexpired(self.until, now)
        if dropped := latest[limit:]:
            until[who] = max(until.get(who, 0.0), dropped[0][1])
        return EndedSessions(ids={**remaining, who: dict(latest[:limit])}, until=until)


def _unexpired(ends: dict[str, float], now: float) -> dict[str, float]:
    return {key: at for key, at in ends.items() if at > now}


class SessionIssuer:
    """Issues and verifies portal sessions, which are signed texts in a cookie. Stores no sessions."""

    def __init__(self, *, key: SigningKey, tenant_id: str) -> None:
        self._key = key
        self._tenant_id = tenant_id
        self._verified: OrderedDict[str, _SessionPayload] = OrderedDict()  # a cache

    def issue(self, claims: Claims, now: float, *, issuer: str = "", is_owner: bool = False) -> str:
        """Return a new session as a signed text for a cookie, valid for 12 hours of real time from `now`."""
        payload = _SessionPayload(
            iss=self._tenant_id,
            aud=min(_SESSION_AUDIENCE),
            nbf=int(now),
            exp=int(now) + SESSION_LIFETIME_S,
            jti=secrets.token_urlsafe(16),
            ids=claims.ids,
            name=claims.name,
            mark=claims.secret_fingerprint,
            via=issuer,
            owner=is_owner,
        )
        return jws.sign(msgspec.json.encode(payload), self._key.private, algorithm=SIGNING_ALGORITHM, kid=self._key.kid)

    def verify(self, text: str, now: float) -> PortalSession:
        """Return the session in `text`, the value of a cookie.

        The caller must still check whether EndedSessions contains it, and whether its client exists and has the same
        secret.
        """
        payload = self._verified.get(text) or self._verify_signature(text)
        check_claims(payload, issuer=self._tenant_id, audiences=_SESSION_AUDIENCE, now=now)
        claims = Claims(
            ids=payload.ids,
            name=payload.name,
            tenant=self._tenant_id,
            expires_at=payload.exp,
            secret_fingerprint=payload.mark,
        )
        return PortalSession(
            id=payload.jti, ends_at=payload.exp, claims=claims, issuer=payload.via, is_owner=payload.owner
        )

    def _verify_signature(self, text: str) -> _SessionPayload:
        header = jws.parse_header(text)
        if header.kid != self._key.kid:
            raise InvalidToken(TokenErrorReason.UNKNOWN_KEY, _SESSION_ENDED_TEXT)
        jws.require_algorithm((SIGNING_ALGORITHM,), header)
        payload = self._verified[text] = jws.verify_payload(text, self._key.public, SIGNING_ALGORITHM, _SessionPayload)
        if len(self._verified) > _MAX_VERIFIED_SESSIONS:
            self._verified.popitem(last=False)
        return payload
