"""Writes files atomically, private ones with mode 0600, and rejects secrets that others can read."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.base.files import sync_to_disk
from forewarn.errors import NotFound, Rejected, Unavailable

_PRIVATE_MODE, _PUBLIC_MODE = 0o600, 0o644


def write_private(path: Path, content: bytes) -> None:
    """Write `content` to a file with mode 0600, atomically and durably; it replaces an existing one."""
    _write_atomically(path, content, _PRIVATE_MODE)


def write_public(path: Path, content: bytes) -> None:
    """Write `content` to a file with mode 0644, atomically and durably; it replaces an existing one."""
    _write_atomically(path, content, _PUBLIC_MODE)


def read_private(path: Path) -> bytes:
    """Return the content of a file with a secret, after checking that only its owner has access."""
    with _open_regular_file(path) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if mode & 0o077:
            raise Rejected(
                f"file {str(path)!r} holds a secret and others may read it (mode {stat.S_IMODE(mode):04o}): "
                "run chmod 600 on it, and replace the secret if it may have been read"
            )
        return _read_all(descriptor)


def read_public(path: Path) -> bytes:
    """Return the content of a regular file. NotFound if it is missing."""
    with _open_regular_file(path) as descriptor:
        return _read_all(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory with mode 0700, and its parents, if it is missing. Rejected if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Rejected(f"directory {str(path)!r} cannot be used: {error.strerror}; name another") from error


def _write_atomically(path: Path, content: bytes, mode: int) -> None:
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        sync_to_disk(path.parent)
    except OSError as error:
        raise Unavailable(f"file {str(path)!r} cannot be written now ({error}): correct this and try again") from error


@contextmanager
def _open_regular_file(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}: check its name") from None
    except OSError as error:
        raise Rejected(f"file {str(path)!r} cannot be read ({error.strerror}): check its permissions") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Rejected(f"{str(path)!r} is not a regular file: name one")
        yield descriptor
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()
