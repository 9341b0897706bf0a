"""Signs tokens and verifies their signatures (JWS, RFC 7515).

Nothing in a token chooses how it is checked: the caller names the key and the algorithm.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Collection
from typing import Any, TypeVar

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.auth.claims import InvalidToken, TokenErrorReason, quote_excerpt

_MAX_TOKEN_CHARACTERS = 16 * 1024
_MALFORMED_TEXT = "the token is malformed: send the access token as it was issued"

_pyjws = jwt.PyJWS()
PayloadT = TypeVar("PayloadT")


class JwsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the bearer says about the signature. Whatever else a header holds (keys, addresses of keys) is not read."""

    alg: str
    kid: str = ""
    crit: Any = None


def sign(content: bytes, key: rsa.RSAPrivateKey, *, algorithm: str, kid: str) -> str:
    return _pyjws.encode(content, key, algorithm=algorithm, headers={"kid": kid})


def parse_header(token: str) -> JwsHeader:
    """Not proven by anything yet."""
    if len(token) > _MAX_TOKEN_CHARACTERS or not token.isascii() or token.count(".") != 2:
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT)
    segment = token.partition(".")[0]
    try:
        content = urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        header = msgspec.json.decode(content, type=JwsHeader)
    except (ValueError, RecursionError):
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT) from None
    if header.crit is not None:  # extensions that must be understood: we know none (RFC 7515)
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT)
    return header


def require_algorithm(allowed: Collection[str], header: JwsHeader) -> None:
    if header.alg not in allowed:
        sentence = (
            f"the token is signed with {quote_excerpt(header.alg)}: get one signed with {', '.join(sorted(allowed))}"
        )
        raise InvalidToken(TokenErrorReason.BAD_SIGNATURE, sentence)


def verify_payload(
    token: str, key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey, algorithm: str, form: type[PayloadT]
) -> PayloadT:
    """What the token says, proven by its signature."""
    try:
        content = _pyjws.decode(token, key, algorithms=[algorithm])
        return msgspec.json.decode(content, type=form)
    except jwt.InvalidSignatureError:
        raise InvalidToken(
            TokenErrorReason.BAD_SIGNATURE, "the token's signature does not fit its key: get a new one"
        ) from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT) from None
