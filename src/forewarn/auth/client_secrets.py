"""Client secrets: makes, hashes, compares and stores them in private files.

A small file of its own, because `control` needs it without tokens and certificates.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from forewarn.auth import secure_files
from forewarn.errors import Rejected

_SECRET_BYTES = 32
_SALT_BYTES = 16
_FINGERPRINT_CHARACTERS = 16


def new_secret() -> str:
    """Return a random secret of 256 bits: 43 characters that need no quoting and do not begin with a dash."""
    while (secret := secrets.token_urlsafe(_SECRET_BYTES)).startswith("-"):
        pass
    return secret


def hash_secret(secret: str) -> bytes:
    """Return a new random salt followed by the SHA-256 hash of salt and secret: another value each time."""
    # One round is enough: 256 random bits cannot be guessed, so a slow hash would only slow down the service.
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + _digest(salt, secret)


def secret_matches(secret: str, secret_hash: bytes) -> bool:
    """Return whether `secret_hash` was made from this secret; compares in constant time."""
    salt, digest = secret_hash[:_SALT_BYTES], secret_hash[_SALT_BYTES:]
    return hmac.compare_digest(_digest(salt, secret), digest)


def secret_fingerprint(secret_hash: bytes) -> str:
    """Return a short id of a result of `hash_secret`; it reveals nothing about the secret."""
    # Tokens contain it, so that they are invalid once the client has another secret.
    return hashlib.sha256(b"mark" + secret_hash).hexdigest()[:_FINGERPRINT_CHARACTERS]


def write_secret(path: Path, secret: str) -> None:
    """Write a secret and a newline to a file with mode 0600, atomically and durably."""
    secure_files.write_private(path, f"{secret}\n".encode())


def read_secret(path: Path) -> str:
    """Return the secret in a file, without white space around it."""
    try:
        secret = secure_files.read_private(path).decode().strip()
    except UnicodeDecodeError:
        raise Rejected(f"file {str(path)!r} contains no secret but binary data: name the right file") from None
    if not secret:
        raise Rejected(f"file {str(path)!r} is empty: put the secret in it, or name the right file")
    return secret


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "surrogatepass")).digest()
