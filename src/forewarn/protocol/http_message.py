"""HTTP requests and responses as values, and the request target split into path and query.

Code that reads and writes sockets adds what framing needs: Content-Length, Date, Connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote, unquote_plus

JSON_CONTENT_TYPE = ("Content-Type", "application/json; charset=utf-8")
TEXT_CONTENT_TYPE = ("Content-Type", "text/plain; charset=utf-8")
XML_CONTENT_TYPE = ("Content-Type", "text/xml; charset=utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A complete HTTP request, to be sent or as received."""

    method: str  # such as GET, as it was sent
    target: str  # path and query as on the request line, not parsed (see `parse_target`)
    headers: tuple[tuple[str, str], ...] = ()  # names in lower case, in the order sent
    body: bytes = b""  # b"": none

    def header_values(self, name: str) -> tuple[str, ...]:
        """Return every value of a header (name in lower case), in the order sent; empty if it is absent."""
        return tuple(value for header, value in self.headers if header == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An HTTP response without Content-Length, Date and Connection, which the writer adds."""

    status: int  # such as 200
    headers: tuple[tuple[str, str], ...] = ()  # in order; names in lower case if the client received it
    body: bytes = b""  # b"": none
    head_only: bool = False  # send the Content-Length of the body, but not the body (HEAD)


_ABSOLUTE_FORM = re.compile(r"https?://([^/?]*)", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """The path and the query of a request, decoded; `parse_target` makes it."""

    path: tuple[str, ...]  # percent-decoded segments, in the letter case of the request
    parameters: tuple[tuple[str, str], ...]  # name in lower case and value ("" without `=`), in the order of the query
    authority: str = ""  # host and port of an absolute URL; "": the Host header has them

    def lower_path(self) -> tuple[str, ...]:
        """Return the path segments in lower case, in their order, to compare them without letter case."""
        return tuple(segment.lower() for segment in self.path)

    def parameter(self, name: str) -> str | None:
        """Return the first value of a query parameter (name in lower case); None if it is absent."""
        return next((value for parameter, value in self.parameters if parameter == name), None)

    def duplicate_parameter(self) -> str | None:
        """Return the first parameter name that is repeated, in lower case; None if each occurs once."""
        seen: set[str] = set()
        for name, _ in self.parameters:
            if name in seen:
                return name
            seen.add(name)
        return None


def parse_target(text: str) -> RequestTarget | None:
    """Split a request target into path and query; None if it has no path, such as `*` or `host:80`.

    A client behind a proxy may send an absolute URL; its host is then the `authority`. Segments are split before they
    are percent-decoded, so %2F never separates segments.
    """
    absolute = _ABSOLUTE_FORM.match(text)
    path, _, query = text[absolute.end() if absolute else 0 :].partition("?")
    if not path.startswith("/"):
        return None
    segments = path.removeprefix("/").removesuffix("/").split("/")
    return RequestTarget(
        path=tuple(map(unquote, segments)),
        parameters=_parse_query(query),
        authority=absolute[1] if absolute else "",
    )


def is_foreign_name(authority: str) -> bool:
    """Return whether an authority (host and port) is a host name other than `localhost`, and no address.

    The owner of such a name decides which address it has, and may choose that of a metadata endpoint: a page of that
    host could then send requests here as if they went to its own host (DNS rebinding).
    """
    match = _HOST_AND_PORT.fullmatch(authority)
    host = match[1] if match else authority
    if host.lower() in ("", "localhost"):
        return False
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return True
    return False


def _parse_query(query: str) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in query.split("&") if part)
    return tuple((unquote_plus(name).lower(), unquote_plus(value)) for name, _, value in pairs)
