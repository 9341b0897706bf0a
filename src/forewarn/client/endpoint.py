"""The endpoint's address: an explicit setting, else the environment (spec §2.5)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from forewarn.errors import Rejected

WELL_KNOWN_URL = "http://169.254.169.254"  # spec §2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Host and port of a metadata endpoint; `str()` gives its http:// URL, without the port if that is 80."""

    host: str  # a name or an address; IPv6 without brackets
    port: int = 80  # of TCP

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}" if self.port == 80 else f"http://{host}:{self.port}"


def configured_endpoint(explicit: str | None, environ: Mapping[str, str]) -> Endpoint | None:
    """Return the explicit endpoint, else FOREWARN_ENDPOINT, else SCHEDULEDEVENTSIP; None if none is set."""
    text = explicit or environ.get("FOREWARN_ENDPOINT") or environ.get("SCHEDULEDEVENTSIP")
    return parse_endpoint(text) if text else None


def parse_endpoint(text: str) -> Endpoint:
    """Parse a host, address or http:// URL, with or without a port (default 80); resolve no names.

    A path at or below /metadata, and a query, are ignored, so that URLs can be pasted.
    """
    text_or_url = text.strip()
    try:
        parts = urlsplit(text_or_url if "://" in text_or_url else f"http://{_bracketed(text_or_url)}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    path = parts.path.rstrip("/").lower()
    if parts.scheme != "http" or not _is_host_name(host) or parts.username is not None or port == 0:
        raise _invalid_endpoint_error(text)
    if path not in ("", "/metadata") and not path.startswith("/metadata/"):
        raise _invalid_endpoint_error(text)
    return Endpoint(host=str(host), port=port or 80)


def _is_host_name(host: str | None) -> bool:
    return host is not None and host != "" and host.isprintable() and " " not in host


def _bracketed(address: str) -> str:
    try:
        return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    except ValueError:
        return address


def _invalid_endpoint_error(text: str) -> Rejected:
    return Rejected(
        f"the endpoint {text!r} is not a plain HTTP address: write it like {WELL_KNOWN_URL} or 127.0.1.1:8080"
    )
