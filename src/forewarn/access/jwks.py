"""The keys that an issuer publishes: which of them we use, and for which signatures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from forewarn.errors import Unavailable

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256"})
_CURVES = {"P-256": frozenset({"ES256"}), "P-384": frozenset({"ES384"})}
ALGORITHMS = frozenset.union(_RSA, *_CURVES.values())  # never HS*: whoever can verify those can sign them
_LEAST_BITS = 2048


class Key(msgspec.Struct, frozen=True, kw_only=True):
    public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
    algorithms: frozenset[str]


class _Document(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


def keys_in(document: bytes) -> dict[str, Key]:
    """The keys for signatures that have a name; those of other kinds are passed over, as RFC 7517 wants."""
    try:
        listed = msgspec.json.decode(document, type=_Document).keys
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"what it publishes is no list of keys ({error})") from None
    found = dict(_usable(listed))
    if not found:
        raise Unavailable("it publishes no key that can be used")
    return found


def _usable(listed: list[dict[str, Any]]) -> Iterator[tuple[str, Key]]:
    for jwk in listed:
        kid = jwk.get("kid")
        key = _key(jwk) if jwk.get("use", "sig") == "sig" else None
        if key and key.algorithms and isinstance(kid, str) and kid:
            yield kid, key


def _key(jwk: dict[str, Any]) -> Key | None:
    try:
        match jwk.get("kty"):
            case "RSA":
                return _rsa_key(jwk)
            case "EC":
                return _ec_key(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        pass
    return None


def _rsa_key(jwk: dict[str, Any]) -> Key | None:
    public = RSAAlgorithm.from_jwk(_public_part(jwk, "n", "e"))
    if not isinstance(public, rsa.RSAPublicKey) or public.key_size < _LEAST_BITS:
        return None
    return Key(public=public, algorithms=_narrowed(_RSA, jwk))


def _ec_key(jwk: dict[str, Any]) -> Key | None:
    public = ECAlgorithm.from_jwk(_public_part(jwk, "crv", "x", "y"))
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return None
    return Key(public=public, algorithms=_narrowed(_CURVES.get(jwk["crv"], frozenset()), jwk))


def _public_part(jwk: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: jwk[name] for name in ("kty", *names) if name in jwk}


def _narrowed(algorithms: frozenset[str], jwk: dict[str, Any]) -> frozenset[str]:
    """A key that names its algorithm is for that one only."""
    return algorithms & {jwk["alg"]} if "alg" in jwk else algorithms
