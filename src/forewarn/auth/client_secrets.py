"""Secrets that clients sign in with: made here, known afterwards by a hash only, kept in private files."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from forewarn.access import file
from forewarn.errors import Rejected

_BYTES = 32
_SALT = 16
_MARK = 16  # characters


def new_secret() -> str:
    """256 bits, as 43 characters that need no quoting anywhere, and that no command takes for an option."""
    while (secret := secrets.token_urlsafe(_BYTES)).startswith("-"):
        pass
    return secret


def hashed(secret: str) -> bytes:
    """Salt and hash. SHA-256 once: 256 random bits cannot be guessed, so a slow hash would slow down only us."""
    salt = secrets.token_bytes(_SALT)
    return salt + _digest(salt, secret)


def fits(secret: str, known: bytes) -> bool:
    """Whether this secret was `hashed` to `known`, in the same time whichever it is."""
    salt, digest = known[:_SALT], known[_SALT:]
    return hmac.compare_digest(_digest(salt, secret), digest)


def mark_of(known: bytes) -> str:
    """Tells what one secret was `hashed` to from what another was, and nothing else about either."""
    return hashlib.sha256(b"mark" + known).hexdigest()[:_MARK]


def keep_secret(path: Path, secret: str) -> None:
    file.write_private(path, f"{secret}\n".encode())


def read_secret(path: Path) -> str:
    try:
        secret = file.read_private(path).decode().strip()
    except UnicodeDecodeError:
        raise Rejected(f"file {str(path)!r} holds no secret but other bytes: name the right file") from None
    if not secret:
        raise Rejected(f"file {str(path)!r} is empty: put the secret in it, or name the right file")
    return secret


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "surrogatepass")).digest()
