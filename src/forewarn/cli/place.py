"""Which service is meant: the one whose socket lies in the data directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SOCKET = "forewarn.sock"


def data_directory(explicit: str | None, environ: Mapping[str, str]) -> Path:
    """A flag over the environment over the user's own state directory."""
    given = explicit or environ.get("FOREWARN_DATA")
    if given:
        return Path(given).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "forewarn"
