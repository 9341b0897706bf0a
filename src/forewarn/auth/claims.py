"""What a token says of whoever holds it, and why one is refused; the same for our own tokens and an issuer's."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from forewarn.errors import Rejected
from forewarn.protocol.date import iso_date

_EARLY_S = 60  # two machines' clocks differ; a token that has ended has ended


class Reason(StrEnum):
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    WRONG_AUDIENCE = "wrong audience"
    WRONG_ISSUER = "wrong issuer"
    BAD_SIGNATURE = "bad signature"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown key"


class BadToken(Rejected):
    """A token that proves nothing. The sentence never holds the token itself."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asking. Grants may name any of `ids`; the history calls them by the first."""

    ids: tuple[str, ...]
    name: str
    tenant: str
    expires_at: float
    secret_mark: str = ""  # of a client: by which of its secrets it signed in
    vm_key: str = ""
    vm_id: str = ""

    @property
    def who(self) -> str:
        return self.ids[0]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What every token must keep to, whoever issued it."""

    iss: str
    aud: str | list[str]
    exp: float
    nbf: float = 0


def must_hold(token: Bounds, *, issuer: str, audiences: frozenset[str], now: float) -> None:
    """Raise BadToken unless this token is from there, for here, and for now. `audiences` are `spelled`."""
    if token.iss.rstrip("/") != issuer.rstrip("/"):
        raise BadToken(Reason.WRONG_ISSUER, f"the token was issued by {shown(token.iss)}: get one from {issuer!r}")
    asked = [token.aud] if isinstance(token.aud, str) else token.aud
    if audiences.isdisjoint(map(spelled, asked)):
        named = ", ".join(map(shown, asked[:3])) or "nobody"
        wanted = min(audiences, default="")
        raise BadToken(Reason.WRONG_AUDIENCE, f"the token is for {named}, not for this service: ask for {wanted!r}")
    if now >= token.exp:
        raise BadToken(Reason.EXPIRED, f"the token expired at {_date(token.exp)}: get a new one")
    if now < token.nbf - _EARLY_S:
        raise BadToken(Reason.NOT_YET_VALID, f"the token is not valid before {_date(token.nbf)}: check both clocks")


def spelled(audience: str) -> str:
    """An audience in the one spelling that is compared: scheme and host in small letters, no slash at the end."""
    try:
        parts = urlsplit(audience)
    except ValueError:
        return audience
    if not parts.netloc:
        return audience
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().rstrip("/")


def all_spelled(audiences: Iterable[str]) -> frozenset[str]:
    return frozenset(map(spelled, audiences))


def shown(text: str) -> str:
    """What a stranger wrote, cut short."""
    return repr(text if len(text) <= 100 else f"{text[:100]}…")


def _date(at: float) -> str:
    """Strangers may write any number."""
    return iso_date(at) if 0 <= at < 2**37 else f"second {at:g}"
