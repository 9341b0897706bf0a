"""Where a service elsewhere is: its URL as people type it, read once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from forewarn.errors import Rejected

_HOST = re.compile(r"[\w.-]+(:\d{1,5})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}" if self.port == 443 else f"https://{host}:{self.port}"


def read_server(text: str) -> Server:
    try:
        parts = urlsplit(text.strip())
        server = Server(host=parts.hostname or "", port=443 if parts.port is None else parts.port)
    except ValueError:
        raise _no_server(text) from None
    more = parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None
    if parts.scheme != "https" or not server.host or not server.port or more:
        raise _no_server(text)
    return server


def _no_server(text: str) -> Rejected:
    return Rejected(f"{text!r} is no server: give its URL, such as https://{_example(text)}")


def _example(text: str) -> str:
    """What was typed, if nothing but the scheme is wrong."""
    bare = text.strip().removeprefix("http://").rstrip("/")
    return bare if _HOST.fullmatch(bare) else "vmhost.example.org:8443"
