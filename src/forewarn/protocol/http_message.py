"""HTTP requests and responses as values, and the request target split into path and query.

Code that reads and writes sockets adds what framing needs: Content-Length, Date, Connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

JSON_CONTENT_TYPE = ("Content-Type", "application/json; charset=utf-8")
TEXT_CONTENT_TYPE = ("Content-Type", "text/plain; charset=utf-8")
XML_CONTENT_TYPE = ("Content-Type", "text/xml; charset=utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()  # names in lower case
    body: bytes = b""

    def header_values(self, name: str) -> tuple[str, ...]:
        """Every value of a header, in the order sent; empty if it is absent."""
        return tuple(value for given, value in self.headers if given == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """Content-Length, Date and Connection are added by whoever writes it out."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    head_only: bool = False  # announce the length of the body, send none of it


_ABSOLUTE_FORM = re.compile(r"https?://[^/?]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    path: tuple[str, ...]  # decoded segments, as spelled
    parameters: tuple[tuple[str, str], ...]  # decoded, names in lower case

    def lower_path(self) -> tuple[str, ...]:
        return tuple(segment.lower() for segment in self.path)

    def parameter(self, name: str) -> str | None:
        return next((value for given, value in self.parameters if given == name), None)

    def duplicate_parameter(self) -> str | None:
        """The first parameter name that is there twice; names are compared without case (spec §2.3)."""
        seen: set[str] = set()
        for name, _ in self.parameters:
            if name in seen:
                return name
            seen.add(name)
        return None


def parse_target(text: str) -> RequestTarget | None:
    """None for what is no path at all, such as `*` or `host:80`.

    A client behind a proxy may send the whole address; its host is not looked at. Segments are split before
    they are decoded, so that %2F never makes a new one. One slash at the end is forgiven, dots are kept.
    """
    absolute = _ABSOLUTE_FORM.match(text)
    path, _, query = text[absolute.end() if absolute else 0 :].partition("?")
    if not path.startswith("/"):
        return None
    segments = path.removeprefix("/").removesuffix("/").split("/")
    return RequestTarget(path=tuple(map(unquote, segments)), parameters=_parse_query(query))


def _parse_query(query: str) -> tuple[tuple[str, str], ...]:
    pairs = (piece.partition("=") for piece in query.split("&") if piece)
    return tuple((unquote_plus(name).lower(), unquote_plus(value)) for name, _, value in pairs)
