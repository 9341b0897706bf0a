"""Secrets that stand in files: read when they are used, so that a new one needs no restart, and shown nowhere."""

from __future__ import annotations

from pathlib import Path

from forewarn.errors import Unavailable


class NoSecret(Unavailable):
    """The file cannot be read, or is empty."""


def secret_in(path: Path) -> str:
    """The first line of the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NoSecret(f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
    if not lines or not lines[0].strip():
        raise NoSecret(f"{path} is empty: put the secret into its first line")
    return lines[0].strip()
