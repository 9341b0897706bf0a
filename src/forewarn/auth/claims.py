"""The claims of a verified token, the checks on them, and the reasons why a token is rejected.

The same for our own tokens and for those of an external issuer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from forewarn.errors import Rejected
from forewarn.protocol.dates import iso_date

_CLOCK_SKEW_S = 60  # two machines' clocks differ; a token that has ended has ended


class TokenErrorReason(StrEnum):
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    WRONG_AUDIENCE = "wrong audience"
    WRONG_ISSUER = "wrong issuer"
    BAD_SIGNATURE = "bad signature"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown key"


class InvalidToken(Rejected):
    """A token that proves nothing. The sentence never holds the token itself."""

    def __init__(self, reason: TokenErrorReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asking. Grants may name any of `ids`; the history calls them by the first."""

    ids: tuple[str, ...]
    name: str
    tenant: str
    expires_at: float
    secret_fingerprint: str = ""  # of a client: by which of its secrets it signed in
    vm_key: str = ""
    vm_id: str = ""

    @property
    def primary_id(self) -> str:
        return self.ids[0]


class RegisteredClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What every token must keep to, whoever issued it."""

    iss: str
    aud: str | list[str]
    exp: float
    nbf: float = 0


def check_claims(token: RegisteredClaims, *, issuer: str, audiences: frozenset[str], now: float) -> None:
    """Raise BadToken unless this token is from there, for here, and for now. `audiences` are `spelled`."""
    if token.iss.rstrip("/") != issuer.rstrip("/"):
        raise InvalidToken(
            TokenErrorReason.WRONG_ISSUER,
            f"the token was issued by {quote_excerpt(token.iss)}: get one from {issuer!r}",
        )
    asked = [token.aud] if isinstance(token.aud, str) else token.aud
    if audiences.isdisjoint(map(normalize_audience, asked)):
        named = ", ".join(map(quote_excerpt, asked[:3])) or "nobody"
        wanted = min(audiences, default="")
        raise InvalidToken(
            TokenErrorReason.WRONG_AUDIENCE, f"the token is for {named}, not for this service: ask for {wanted!r}"
        )
    if now >= token.exp:
        raise InvalidToken(TokenErrorReason.EXPIRED, f"the token expired at {_format_time(token.exp)}: get a new one")
    if now < token.nbf - _CLOCK_SKEW_S:
        raise InvalidToken(
            TokenErrorReason.NOT_YET_VALID,
            f"the token is not valid before {_format_time(token.nbf)}: check both clocks",
        )


def normalize_audience(audience: str) -> str:
    """An audience in the one spelling that is compared: scheme and host in small letters, no slash at the end."""
    try:
        parts = urlsplit(audience)
    except ValueError:
        return audience
    if not parts.netloc:
        return audience
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().rstrip("/")


def normalize_audiences(audiences: Iterable[str]) -> frozenset[str]:
    return frozenset(map(normalize_audience, audiences))


def quote_excerpt(text: str) -> str:
    """What a stranger wrote, cut short."""
    return repr(text if len(text) <= 100 else f"{text[:100]}…")


def _format_time(at: float) -> str:
    """Strangers may write any number."""
    return iso_date(at) if 0 <= at < 2**37 else f"second {at:g}"
