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

_CLOCK_SKEW_S = 60  # tolerated for the beginning of a token's validity, not for its end


class TokenErrorReason(StrEnum):
    """Why a token or session is not accepted: the `reason` of InvalidToken."""

    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    WRONG_AUDIENCE = "wrong audience"  # it is for another service, or of a sign-in for another client
    WRONG_ISSUER = "wrong issuer"
    BAD_SIGNATURE = "bad signature"  # or one of an algorithm that is not allowed
    MALFORMED = "malformed"  # not in the form of RFC 7515, without a needed claim, or of another sign-in
    UNKNOWN_KEY = "unknown key"  # signed with a key that is not the issuer's: perhaps a token of another issuer


class InvalidToken(Rejected):
    """A token or session is not accepted; `reason` says why, and `sentence` is the message for people."""

    def __init__(self, reason: TokenErrorReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Who a verified token, session or client secret belongs to. Grants are looked up by any of `ids`."""

    ids: tuple[str, ...]  # principal ids, such as `client:ID`; at least one
    name: str  # for people
    tenant: str  # the tenant id in the token; "": not known
    expires_at: float  # of the token or the portal session, POSIX seconds; 0: no token and no session
    secret_fingerprint: str = ""  # of the secret with which a client signed in; "": another kind of caller
    vm_key: str = ""  # the VM's key in the fleet; this and the next are "" unless it is a VM's managed identity
    vm_id: str = ""  # the VM's GUID

    @property
    def primary_id(self) -> str:
        """The first of `ids`, such as `client:ID`, for where one id of the caller is needed."""
        return self.ids[0]


class RegisteredClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The registered claims of a token (RFC 7519), as they are in the payload: nothing is verified yet."""

    iss: str  # the issuer
    aud: str | list[str]  # the audience, or several
    exp: float  # not valid from then on; real time in POSIX seconds
    nbf: float = 0  # not valid before; real time in POSIX seconds; 0: the token does not say


def check_claims(token: RegisteredClaims, *, issuer: str, audiences: frozenset[str], now: float) -> None:
    """Raise InvalidToken if the token has another issuer or audience, or is not valid now (real time).

    `audiences` are normalized. The token is expired from `exp` on, without tolerance; its `nbf` may be up to 60 s in
    the future. The signature is not checked.
    """
    if token.iss.rstrip("/") != issuer.rstrip("/"):
        raise InvalidToken(
            TokenErrorReason.WRONG_ISSUER,
            f"the token was issued by {quote_excerpt(token.iss)}: get one from {issuer!r}",
        )
    token_audiences = [token.aud] if isinstance(token.aud, str) else token.aud
    if audiences.isdisjoint(map(normalize_audience, token_audiences)):
        named = ", ".join(map(quote_excerpt, token_audiences[:3])) or "no audience"
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
    # For a URL, scheme and host are put in lower case, and slashes at the end are removed; other text keeps its letter
    # case.
    try:
        parts = urlsplit(audience)
    except ValueError:
        return audience
    if not parts.netloc:
        return audience
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower()).geturl().rstrip("/")


def normalize_audiences(audiences: Iterable[str]) -> frozenset[str]:
    """Return the set of these audiences as they are compared."""
    return frozenset(map(normalize_audience, audiences))


def quote_excerpt(text: str) -> str:
    """Return untrusted text quoted as by `repr`, and cut after 100 characters with `…`, for messages."""
    return repr(text if len(text) <= 100 else f"{text[:100]}…")


def _format_time(at: float) -> str:
    """Format a time from a token, which may be any number."""
    return iso_date(at) if 0 <= at < 2**37 else f"second {at:g}"
