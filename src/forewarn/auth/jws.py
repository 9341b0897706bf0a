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
    """The header of a token (JWS), read before anything is verified: it may be forged."""

    alg: str  # the algorithm of the signature, such as RS256
    kid: str = ""  # the id of the key; "": not given
    crit: Any = None  # extensions that a verifier must understand; `parse_header` accepts none


def sign(content: bytes, key: rsa.RSAPrivateKey, *, algorithm: str, kid: str) -> str:
    """Return a signed token with the payload `content`, in the compact form of RFC 7515."""
    return _pyjws.encode(content, key, algorithm=algorithm, headers={"kid": kid})


def parse_header(token: str) -> JwsHeader:
    """Return the header of a token without verifying the token."""
    if len(token) > _MAX_TOKEN_CHARACTERS or not token.isascii() or token.count(".") != 2:
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT)
    segment = token.partition(".")[0]
    try:
        content = urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        header = msgspec.json.decode(content, type=JwsHeader)
    except (ValueError, RecursionError):
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT) from None
    if header.crit is not None:  # extensions that a verifier must understand; we know none (RFC 7515)
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT)
    return header


def require_algorithm(allowed: Collection[str], header: JwsHeader) -> None:
    """Raise InvalidToken (BAD_SIGNATURE) if the header's algorithm is not in `allowed` (such as RS256)."""
    if header.alg not in allowed:
        sentence = (
            f"the token is signed with {quote_excerpt(header.alg)}: get one signed with {', '.join(sorted(allowed))}"
        )
        raise InvalidToken(TokenErrorReason.BAD_SIGNATURE, sentence)


def verify_payload(
    token: str, key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey, algorithm: str, payload_type: type[PayloadT]
) -> PayloadT:
    """Return the payload of a token, decoded to `payload_type`, after verifying its signature."""
    try:
        content = _pyjws.decode(token, key, algorithms=[algorithm])
        return msgspec.json.decode(content, type=payload_type)
    except jwt.InvalidSignatureError:
        raise InvalidToken(
            TokenErrorReason.BAD_SIGNATURE, "the token's signature is not valid: get a new token"
        ) from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise InvalidToken(TokenErrorReason.MALFORMED, _MALFORMED_TEXT) from None
