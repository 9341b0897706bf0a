"""Sessions of people who look at pages: a signed text that their browser keeps, and which of them were ended early.

Signed with the key of our tokens, but for an audience of its own: neither is ever taken for the other.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict

import msgspec

from forewarn.access import jws
from forewarn.access.claims import BadToken, Bounds, Claims, Reason, must_hold
from forewarn.access.signing import ALGORITHM, SigningKey

LASTS_S = 12 * 3600  # real time
_AUDIENCE = frozenset({"forewarn portal"})
_MOST_ENDED = 1000  # of one person
_REMEMBERED = 1024  # open pages look again at every change, and proving one takes about 0.1 ms
_OVER = "the session is over: sign in again"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who signed in, and how; what they may do is looked up whenever they ask."""

    id: str
    ends_at: float
    claims: Claims
    issuer: str = ""  # the one outside that vouched for them; "": we did
    is_owner: bool = False  # whoever the service belongs to, by a link that only they could have made


class _Payload(Bounds, frozen=True, kw_only=True, omit_defaults=True):
    jti: str
    ids: tuple[str, ...]
    name: str
    mark: str = ""
    via: str = ""
    owner: bool = False


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions that count no longer, though their time is not over. Each person's apart: nobody ends those of others by
    signing out however often.
    """

    ids: dict[str, dict[str, float]] = {}  # whose and which → when it would have ended
    until: dict[str, float] = {}  # whose → all that end by then: too many of theirs were ended to know them one by one

    def has(self, session: Session) -> bool:
        who = session.claims.who
        return session.id in self.ids.get(who, {}) or session.ends_at <= self.until.get(who, 0.0)

    def with_one(self, session: Session, now: float, most: int = _MOST_ENDED) -> Ended:
        who = session.claims.who
        left = {one: theirs for one in self.ids if (theirs := _left(self.ids[one], now))}
        latest = sorted([*left.get(who, {}).items(), (session.id, session.ends_at)], key=lambda each: -each[1])
        until = _left(self.until, now)
        if lost := latest[most:]:
            until[who] = max(until.get(who, 0.0), lost[0][1])
        return Ended(ids={**left, who: dict(latest[:most])}, until=until)


def _left(ends: dict[str, float], now: float) -> dict[str, float]:
    return {one: at for one, at in ends.items() if at > now}


class Sessions:
    """Makes sessions at the service with this tenant id, and reads them."""

    def __init__(self, *, key: SigningKey, tenant_id: str) -> None:
        self._key = key
        self._tenant_id = tenant_id
        self._proven: OrderedDict[str, _Payload] = OrderedDict()  # which need not be proven again

    def begin(self, claims: Claims, now: float, *, issuer: str = "", is_owner: bool = False) -> str:
        payload = _Payload(
            iss=self._tenant_id,
            aud=min(_AUDIENCE),
            nbf=int(now),
            exp=int(now) + LASTS_S,
            jti=secrets.token_urlsafe(16),
            ids=claims.ids,
            name=claims.name,
            mark=claims.secret_mark,
            via=issuer,
            owner=is_owner,
        )
        return jws.signed(msgspec.json.encode(payload), self._key.private, algorithm=ALGORITHM, kid=self._key.kid)

    def read(self, text: str, now: float) -> Session:
        """Raises BadToken."""
        payload = self._proven.get(text) or self._prove(text)
        must_hold(payload, issuer=self._tenant_id, audiences=_AUDIENCE, now=now)
        claims = Claims(
            ids=payload.ids,
            name=payload.name,
            tenant=self._tenant_id,
            expires_at=payload.exp,
            secret_mark=payload.mark,
        )
        return Session(id=payload.jti, ends_at=payload.exp, claims=claims, issuer=payload.via, is_owner=payload.owner)

    def _prove(self, text: str) -> _Payload:
        header = jws.header_of(text)
        if header.kid != self._key.kid:
            raise BadToken(Reason.UNKNOWN_KEY, _OVER)
        jws.must_be_signed_with((ALGORITHM,), header)
        payload = self._proven[text] = jws.payload_of(text, self._key.public, ALGORITHM, _Payload)
        if len(self._proven) > _REMEMBERED:
            self._proven.popitem(last=False)
        return payload
