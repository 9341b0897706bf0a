"""A request and its response as values. Who reads and writes sockets adds what framing needs."""

from __future__ import annotations

from dataclasses import dataclass

JSON = ("Content-Type", "application/json; charset=utf-8")
TEXT = ("Content-Type", "text/plain; charset=utf-8")
XML = ("Content-Type", "text/xml; charset=utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()  # names in lower case
    body: bytes = b""

    def values(self, name: str) -> tuple[str, ...]:
        """Every value of a header, in the order sent; empty if it is absent."""
        return tuple(value for given, value in self.headers if given == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Content-Length, Date and Connection are added by whoever writes it out."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    head_only: bool = False  # announce the length of the body, send none of it
