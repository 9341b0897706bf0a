"""Commands that are the service itself need more than a guest does, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forewarn.errors import Rejected


@contextmanager
def server_extra(command: str) -> Iterator[None]:
    """Around the imports of a command that needs the [server] extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "forewarn"):
            raise
        raise Rejected(
            f"`forewarn {command}` needs {missing}, which is not installed: pip install 'forewarn[server]'"
        ) from error
