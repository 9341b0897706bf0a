"""Which service is meant: the one whose socket lies in the data directory, unless another is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forewarn.errors import Rejected

SOCKET = "forewarn.sock"


def data_directory(explicit: str | None, environ: Mapping[str, str]) -> Path:
    """A flag over the environment over the user's own state directory."""
    given = explicit or environ.get("FOREWARN_DATA")
    if given:
        return Path(given).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "forewarn"


def config_directory(environ: Mapping[str, str]) -> Path:
    """What belongs to the user, not to a service."""
    config = environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "forewarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A service elsewhere, as somebody named it: by its URL, by a profile, or by both."""

    server: str = ""
    profile: str = ""

    def __bool__(self) -> bool:
        return bool(self.server or self.profile)


def named_service(flags: Named, data: str | None, environ: Mapping[str, str]) -> Named:
    """What flags name, else the environment; nothing where the service on this machine is meant.

    Flags count as a whole: whoever names a service does not get half of another from the environment.
    """
    if flags and data:
        given = "--server" if flags.server else "--profile"
        raise Rejected(f"--data and {given} name two services: give one of them")
    if flags or data:
        return flags
    return Named(server=environ.get("FOREWARN_SERVER", ""), profile=environ.get("FOREWARN_PROFILE", ""))
