"""The key that our own tokens are signed with: made once, kept in a private file."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from forewarn.access import file, pem
from forewarn.errors import Rejected

ALGORITHM = "RS256"
_BITS = 2048


class SigningKey:
    """An RSA key and its name, which follows from it (RFC 7638)."""

    def __init__(self, private: rsa.RSAPrivateKey) -> None:
        self.private = private
        self.public = private.public_key()
        self._numbers = _jwk(self.public)
        self.kid = _thumbprint(self._numbers)

    @classmethod
    def ready(cls, path: Path) -> SigningKey:
        """The key in this file, made if missing. Rejected where it is no RSA key, or not ours alone to read."""
        if not path.exists():
            file.make_directory(path.parent)
            pem.write_key(path, rsa.generate_private_key(public_exponent=65537, key_size=_BITS))
        key = pem.key_in(file.read_private(path), path)
        if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < _BITS:
            raise Rejected(
                f"key {str(path)!r} is no RSA key of {_BITS} bits or more: move it away to have a new one made, "
                "with which everybody must sign in again"
            )
        return cls(key)

    @property
    def jwk(self) -> dict[str, str]:
        """The public half, as JWKS documents list it (RFC 7517)."""
        return {**self._numbers, "kid": self.kid, "use": "sig", "alg": ALGORITHM}


def _jwk(key: rsa.RSAPublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    return {"e": _base64(_bytes(numbers.e)), "kty": "RSA", "n": _base64(_bytes(numbers.n))}


def _thumbprint(jwk: dict[str, str]) -> str:
    return _base64(hashlib.sha256(json.dumps(jwk, sort_keys=True, separators=(",", ":")).encode()).digest())


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8)


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()
