"""The signature around a token. Nothing in a token chooses how it is checked: the caller names key and algorithm."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Collection
from typing import Any, TypeVar

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from forewarn.access.claims import BadToken, Reason, shown

_LONGEST = 16 * 1024
_MALFORMED = "the token is malformed: send the access token as it was issued"

_signatures = jwt.PyJWS()
Payload = TypeVar("Payload")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the bearer says about the signature. Whatever else a header holds (keys, addresses of keys) is not read."""

    alg: str
    kid: str = ""
    crit: Any = None


def signed(content: bytes, key: rsa.RSAPrivateKey, *, algorithm: str, kid: str) -> str:
    return _signatures.encode(content, key, algorithm=algorithm, headers={"kid": kid})


def header_of(token: str) -> Header:
    """Not proven by anything yet."""
    if len(token) > _LONGEST or not token.isascii() or token.count(".") != 2:
        raise BadToken(Reason.MALFORMED, _MALFORMED)
    segment = token.partition(".")[0]
    try:
        content = urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        header = msgspec.json.decode(content, type=Header)
    except (ValueError, RecursionError):
        raise BadToken(Reason.MALFORMED, _MALFORMED) from None
    if header.crit is not None:  # extensions that must be understood: we know none (RFC 7515)
        raise BadToken(Reason.MALFORMED, _MALFORMED)
    return header


def must_be_signed_with(allowed: Collection[str], header: Header) -> None:
    if header.alg not in allowed:
        sentence = f"the token is signed with {shown(header.alg)}: get one signed with {', '.join(sorted(allowed))}"
        raise BadToken(Reason.BAD_SIGNATURE, sentence)


def payload_of(
    token: str, key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey, algorithm: str, form: type[Payload]
) -> Payload:
    """What the token says, proven by its signature."""
    try:
        content = _signatures.decode(token, key, algorithms=[algorithm])
        return msgspec.json.decode(content, type=form)
    except jwt.InvalidSignatureError:
        raise BadToken(Reason.BAD_SIGNATURE, "the token's signature does not fit its key: get a new one") from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise BadToken(Reason.MALFORMED, _MALFORMED) from None
