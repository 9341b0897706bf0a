"""Files with secrets, of the user's own: nobody else's from the moment they exist.

As `access.file`, of which the [agent] extra lacks what stands beside it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from forewarn.errors import NotFound, Rejected


def read_private(path: Path) -> str:
    """What the file holds; Rejected where anybody but its owner could read it too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would keep us waiting
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            content = file.read() if stat.S_ISREG(mode) else b""
        text = content.decode()
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}: check its name") from None
    except OSError as error:
        raise Rejected(f"file {str(path)!r} cannot be read ({error.strerror}): see to its permissions") from error
    except UnicodeDecodeError:
        raise Rejected(f"file {str(path)!r} is no text: name the right file") from None
    if not stat.S_ISREG(mode):
        raise Rejected(f"{str(path)!r} is not a file: name one")
    if mode & 0o077:
        raise Rejected(
            f"file {str(path)!r} holds a secret and others may read it (mode {stat.S_IMODE(mode):04o}): "
            "run chmod 600 on it, and replace the secret if somebody may have seen it"
        )
    return text


def read_secret(path: Path) -> str:
    return must_be_secret(read_private(path), f"file {str(path)!r}")


def must_be_secret(text: str, source: str) -> str:
    secret = text.strip()
    if not secret:
        raise Rejected(f"{source} is empty: put the secret in it")
    if len(secret.splitlines()) > 1:
        raise Rejected(f"{source} holds more than one line: put the secret in it and nothing else")
    return secret


def write_private(path: Path, text: str) -> None:
    """Whole or not there. A link is followed, so that those who keep such files elsewhere go on doing so."""
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(handle)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise Rejected(f"file {str(path)!r} cannot be written ({error.strerror}): name another") from error
