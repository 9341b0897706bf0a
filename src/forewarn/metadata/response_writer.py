"""Responses to bytes. What framing needs is added here: Date, Content-Length, Connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus

from forewarn.protocol.codec import http_date
from forewarn.protocol.message import JSON, Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# A mistake of ours; what it was stands in the log, and is none of the caller's business.
BROKEN = Response(status=500, headers=(JSON,), body=b'{ "error": "Internal server error" }')

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_SHARED = 1024


class Date:
    """One second of lab time, and how a header says it."""

    __slots__ = ("line", "since", "until")

    def __init__(self, now: float) -> None:
        self.since = int(now)
        self.until = self.since + 1
        self.line = f"Date: {http_date(self.since)}\r\n".encode("ascii")


class Dated:
    """A response that lacks nothing but its date; the bytes of the last one are kept."""

    __slots__ = ("_after", "_before", "date", "raw")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self.date: Date | None = None
        self.raw = b""

    def at(self, date: Date) -> bytes:
        if self.date is not date:
            self.date, self.raw = date, self._before + date.line + self._after
        return self.raw


class Writer:
    """Writes responses out, dated in lab time (spec §12)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._date = Date(now())
        self._shared = lru_cache(maxsize=_SHARED)(_dated)
        self._last: tuple[Response, bool, bool, Dated] | None = None

    def bytes_for(self, response: Response, *, keep_alive: bool, is_old: bool) -> bytes:
        """Many who waited for the same are given the same response, one after the other."""
        last = self._last
        if last is None or last[0] is not response or last[1] is not keep_alive or last[2] is not is_old:
            last = self._last = (response, keep_alive, is_old, _dated(response, keep_alive, is_old))
        return last[3].at(self.date_at(self._now()))

    def dated(self, response: Response, *, keep_alive: bool, is_old: bool) -> Dated:
        """To be written again and again; equal ones are kept once."""
        return self._shared(response, keep_alive, is_old)

    def date_at(self, now: float) -> Date:
        """The same object within the same second."""
        if not self._date.since <= now < self._date.until:
            self._date = Date(now)
        return self._date


def _dated(response: Response, keep_alive: bool, is_old: bool) -> Dated:
    lines = [_LINES[response.status]]
    lines += [f"{name}: {value}\r\n" for name, value in response.headers]
    # RFC 9110 §8.6: in a 304 it would be the length of the body that is left out.
    if response.status != HTTPStatus.NOT_MODIFIED:
        lines.append(f"Content-Length: {len(response.body)}\r\n")
    before = "".join(lines).encode("latin-1")
    after = b"\r\n"
    if not keep_alive:
        after = b"Connection: close\r\n\r\n"
    elif is_old:
        after = b"Connection: keep-alive\r\n\r\n"
    return Dated(before, after if response.head_only else after + response.body)
