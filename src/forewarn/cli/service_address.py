"""Which service a command means: a data directory on this machine, or the URL of a server elsewhere.

Flags come before the environment, and the environment before the default state directory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forewarn.errors import Rejected

SOCKET_NAME = "forewarn.sock"


def data_directory(explicit: str | None, environ: Mapping[str, str]) -> Path:
    """Return the data directory: `explicit` (--data), else FOREWARN_DATA, else the default one."""
    given = explicit or environ.get("FOREWARN_DATA")
    if given:
        return Path(given).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "forewarn"


def start_command(data: Path, given_data: str | None = None) -> str:
    """Return the command that starts a service in this data directory, such as `forewarn up --data DIR`."""
    option = f" --data {shlex.quote(given_data)}" if given_data else ""
    if not os.path.isdir(data):
        return f"forewarn up{option}"
    try:
        from forewarn.service.data_directory import DATABASE_FILE, START_COMMANDS
        from forewarn.store.purpose import StorePurpose, read_purpose
    except ModuleNotFoundError:
        return f"forewarn up{option}"
    return f"{START_COMMANDS[read_purpose(data / DATABASE_FILE) or StorePurpose.LAB]}{option}"


def config_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's sign-in profiles: `forewarn` below XDG_CONFIG_HOME or ~/.config."""
    config = environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "forewarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSelection:
    """The remote service that options or environment select: a URL, a profile, or both."""

    server: str = ""  # its URL as typed, not checked yet; "": that of the profile
    profile: str = ""  # the name of a saved profile; "": not given

    def __bool__(self) -> bool:
        return bool(self.server or self.profile)


def select_remote_service(flags: RemoteSelection, data: str | None, environ: Mapping[str, str]) -> RemoteSelection:
    """Return the remote service that options, else the environment, select; falsy for the local one."""
    # If any option, --data included, selects a service, the environment is ignored, so the two are never mixed.
    if flags and data:
        given = "--server" if flags.server else "--profile"
        raise Rejected(f"--data and {given} select different services: give only one of them")
    if flags or data:
        return flags
    return RemoteSelection(server=environ.get("FOREWARN_SERVER", ""), profile=environ.get("FOREWARN_PROFILE", ""))


_HOST_AND_PORT = re.compile(r"[\w.-]+(:\d{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Host and port of a remote service; `str` returns its https URL, without port 443."""

    host: str  # a name in lower case, or an address; IPv6 without brackets
    port: int  # from 1 to 65535

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}" if self.port == 443 else f"https://{host}:{self.port}"


def parse_server_url(text: str) -> ServerAddress:
    """Return the address in `https://HOST[:PORT]`, with port 443 by default; Rejected for anything else."""
    try:
        parts = urlsplit(text.strip())
        server = ServerAddress(host=parts.hostname or "", port=443 if parts.port is None else parts.port)
    except ValueError:
        raise _bad_server_url(text) from None
    more = parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None
    if parts.scheme != "https" or not server.host or not server.port or more:
        raise _bad_server_url(text)
    return server


def _bad_server_url(text: str) -> Rejected:
    return Rejected(f"{text!r} is not a server's URL: give one such as https://{_example_address(text)}")


def _example_address(text: str) -> str:
    """The given host and port if only the scheme is wrong, else an example."""
    bare = text.strip().removeprefix("http://").rstrip("/")
    return bare if _HOST_AND_PORT.fullmatch(bare) else "vmhost.example.org:8443"
