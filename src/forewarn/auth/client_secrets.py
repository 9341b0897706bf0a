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
_FINGERPRINT_CHARACTERS = 16  # characters


def new_secret() -> str:
    """256 bits, as 43 characters that need no quoting anywhere, and that no command takes for an option."""
    while (secret := secrets.token_urlsafe(_SECRET_BYTES)).startswith("-"):
        pass
    return secret


def hash_secret(secret: str) -> bytes:
    """Salt and hash. SHA-256 once: 256 random bits cannot be guessed, so a slow hash would slow down only us."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + _digest(salt, secret)


def secret_matches(secret: str, known: bytes) -> bool:
    """Whether this secret was `hashed` to `known`, in the same time whichever it is."""
    salt, digest = known[:_SALT_BYTES], known[_SALT_BYTES:]
    return hmac.compare_digest(_digest(salt, secret), digest)


def secret_fingerprint(known: bytes) -> str:
    """Tells what one secret was `hashed` to from what another was, and nothing else about either."""
    return hashlib.sha256(b"mark" + known).hexdigest()[:_FINGERPRINT_CHARACTERS]


def write_secret(path: Path, secret: str) -> None:
    secure_files.write_private(path, f"{secret}\n".encode())


def read_secret(path: Path) -> str:
    try:
        secret = secure_files.read_private(path).decode().strip()
    except UnicodeDecodeError:
        raise Rejected(f"file {str(path)!r} holds no secret but other bytes: name the right file") from None
    if not secret:
        raise Rejected(f"file {str(path)!r} is empty: put the secret in it, or name the right file")
    return secret


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "surrogatepass")).digest()
