"""Renders responses to bytes with Date, Content-Length and Connection, and writes slow bodies.

With `imds_headers` they also have the headers that Azure's metadata service was seen to send: Server and
x-ms-request-id, in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import count
from uuid import uuid4

from forewarn.protocol.dates import http_date
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, XML_CONTENT_TYPE, HttpResponse

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# The log has the traceback; the client does not see it.
INTERNAL_ERROR_RESPONSE = HttpResponse(
    status=500, headers=(JSON_CONTENT_TYPE,), body=b'{ "error": "Internal server error" }'
)

# Python 3.13 renamed these phrases; the bytes that VMs get must not depend on its version.
_FIXED_PHRASES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Request Entity Too Large",
    HTTPStatus.REQUEST_URI_TOO_LONG: "Request-URI Too Long",
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: "Requested Range Not Satisfiable",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Unprocessable Entity",
}
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {_FIXED_PHRASES.get(status, status.phrase)}\r\n" for status in HTTPStatus
}
_CACHED_RESPONSES = 1024
_IMDS_SERVER = "IMDS/150.870.65.1854"  # as captured in February 2026
_IIS_SERVER = "Microsoft-IIS/10.0"  # of the front end, which answers unsupported verbs itself, without a request id


class DateHeader:
    """The Date header's `line`, right for `valid_from` <= lab time < `valid_until`."""

    __slots__ = ("line", "valid_from", "valid_until")

    def __init__(self, now: float) -> None:
        self.valid_from = int(now)
        self.valid_until = self.valid_from + 1
        self.line = f"Date: {http_date(self.valid_from)}\r\n".encode("ascii")


class PreparedResponse:
    """A rendered response without its Date header, which goes between the bytes `before` and `after`."""

    __slots__ = ("_after", "_before", "date", "raw")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self.date: DateHeader | None = None
        self.raw = b""

    def bytes_at(self, date: DateHeader) -> bytes:
        """Return the complete response with this Date header, and keep both in `raw` and `date`."""
        if self.date is not date:
            self.date, self.raw = date, self._before + date.line + self._after
        return self.raw


class _RequestIds:
    """Makes the values of x-ms-request-id: GUIDs that differ in their last 12 digits, which count up."""

    # The prefix is random, so that the ids of several processes differ. Counting costs a poll less than a random GUID
    # does.

    __slots__ = ("next_number", "prefix")

    def __init__(self) -> None:
        self.prefix = str(uuid4())[:24].encode("ascii")
        self.next_number = count(1).__next__


class _IdentifiedResponse(PreparedResponse):
    """A rendered response that also lacks the number of its request id, which each use of it adds."""

    # `date` stays None, so that the response cache calls `bytes_at` for every hit.

    __slots__ = ("_ids", "_rest", "_rest_date")

    def __init__(self, before: bytes, after: bytes, ids: _RequestIds) -> None:
        super().__init__(before, after)
        self._ids = ids
        self._rest_date: DateHeader | None = None
        self._rest = b""

    def bytes_at(self, date: DateHeader) -> bytes:
        if self._rest_date is not date:
            self._rest_date, self._rest = date, b"\r\n" + date.line + self._after
        return b"%b%012x%b" % (self._before, self._ids.next_number(), self._rest)


class ResponseWriter:
    """Renders responses to bytes: status line, headers, body. `now` returns lab time, for Date (spec §12)."""

    def __init__(self, now: Callable[[], float], *, imds_headers: bool = False) -> None:
        self._now = now
        self._date = DateHeader(now())
        self._prepare = partial(_prepare_as_imds, ids=_RequestIds()) if imds_headers else _prepare
        self._prepare_cached = lru_cache(maxsize=_CACHED_RESPONSES)(self._prepare)
        self._last: tuple[HttpResponse, bool, bool, PreparedResponse] | None = None

    def bytes_for(self, response: HttpResponse, *, keep_alive: bool, is_http10: bool) -> bytes:
        """Return the bytes of a response with the current Date, Content-Length (not in a 304) and Connection."""
        last = self._last
        if last is None or last[0] is not response or last[1] is not keep_alive or last[2] is not is_http10:
            last = self._last = (response, keep_alive, is_http10, self._prepare(response, keep_alive, is_http10))
        return last[3].bytes_at(self.date_header_at(self._now()))

    def prepare(self, response: HttpResponse, *, keep_alive: bool, is_http10: bool) -> PreparedResponse:
        """Return the bytes of a response without its Date, for the response cache, which adds that each time."""
        return self._prepare_cached(response, keep_alive, is_http10)

    def date_header_at(self, now: float) -> DateHeader:
        """Return the Date header for `now`; the same object for all times within one second."""
        if not self._date.valid_from <= now < self._date.valid_until:
            self._date = DateHeader(now)
        return self._date


def _prepare(response: HttpResponse, keep_alive: bool, is_http10: bool) -> PreparedResponse:
    before = _head(response, (*response.headers, *_content_length(response)))
    return PreparedResponse(before, _end(response, keep_alive, is_http10))


def _prepare_as_imds(
    response: HttpResponse, keep_alive: bool, is_http10: bool, *, ids: _RequestIds
) -> PreparedResponse:
    """Prepare a response with the headers of Azure's metadata service, in the order of captured responses."""
    length, end = _content_length(response), _end(response, keep_alive, is_http10)
    if XML_CONTENT_TYPE in response.headers:
        server = (("Server", _IIS_SERVER),)
        if response.head_only:
            return PreparedResponse(_head(response, (*length, *response.headers, *server)), end)
        return PreparedResponse(_head(response, (*length, *response.headers)), _header_lines(server) + end)
    before = _head(response, (*response.headers, ("Server", _IMDS_SERVER))) + b"x-ms-request-id: " + ids.prefix
    return _IdentifiedResponse(before, _header_lines(length) + end, ids)


def _content_length(response: HttpResponse) -> tuple[tuple[str, str], ...]:
    """The Content-Length header, or none in a 304: there it would be that of the 200's body (RFC 9110 §8.6)."""
    return () if response.status == HTTPStatus.NOT_MODIFIED else (("Content-Length", str(len(response.body))),)


def _head(response: HttpResponse, headers: tuple[tuple[str, str], ...]) -> bytes:
    return _STATUS_LINES[response.status].encode("ascii") + _header_lines(headers)


def _header_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def _end(response: HttpResponse, keep_alive: bool, is_http10: bool) -> bytes:
    end = b"\r\n"
    if not keep_alive:
        end = b"Connection: close\r\n\r\n"
    elif is_http10:
        end = b"Connection: keep-alive\r\n\r\n"
    return end if response.head_only else end + response.body


_MAX_SLOW_CHUNKS = 20


class SlowBodyWriter:
    """Writes the head of a response when created and its body over `duration_s`, then calls `on_done`."""

    def __init__(
        self,
        *,
        write: Callable[[bytes], None],
        response_bytes: bytes,
        duration_s: float,
        on_done: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._write, self._on_done = write, on_done
        head_bytes = response_bytes.index(b"\r\n\r\n") + 4
        self._remaining = response_bytes[head_bytes:]
        self._chunk_bytes = max(1, -(-len(self._remaining) // _MAX_SLOW_CHUNKS))
        self._interval_s = duration_s / max(1, -(-len(self._remaining) // self._chunk_bytes))
        write(response_bytes[:head_bytes])
        self._timer = self._loop.call_later(self._interval_s, self._write_chunk)

    def finish(self) -> None:
        """Write the rest of the body at once, and call `on_done` before returning. Not for use after the end."""
        self.stop()
        rest, self._remaining = self._remaining, b""
        self._write(rest)
        self._on_done()

    def stop(self) -> None:
        """Write nothing more, and do not call `on_done`; the response stays incomplete."""
        self._timer.cancel()

    def _write_chunk(self) -> None:
        if len(self._remaining) <= self._chunk_bytes:
            self.finish()
            return
        chunk, self._remaining = self._remaining[: self._chunk_bytes], self._remaining[self._chunk_bytes :]
        self._write(chunk)
        self._timer = self._loop.call_later(self._interval_s, self._write_chunk)
