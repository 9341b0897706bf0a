"""Renders responses to bytes with Date, Content-Length and Connection, and writes slow bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus

from forewarn.protocol.dates import http_date
from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpResponse

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


class DateHeader:
    """The Date header for the second of lab time that contains `now` (POSIX seconds).

    `line` is the header's bytes, right for `valid_from` <= time < `valid_until`.
    """

    __slots__ = ("line", "valid_from", "valid_until")

    def __init__(self, now: float) -> None:
        self.valid_from = int(now)
        self.valid_until = self.valid_from + 1
        self.line = f"Date: {http_date(self.valid_from)}\r\n".encode("ascii")


class PreparedResponse:
    """A rendered response without its Date header, which goes between the bytes `before` and `after`.

    `raw` is the complete response with the Date header `date`, as `bytes_at` made it last; before that, they are b""
    and None.
    """

    __slots__ = ("_after", "_before", "date", "raw")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self.date: DateHeader | None = None
        self.raw = b""

    def bytes_at(self, date: DateHeader) -> bytes:
        """Return the complete response with this Date header, and keep it in `raw` and `date`."""
        if self.date is not date:
            self.date, self.raw = date, self._before + date.line + self._after
        return self.raw


class ResponseWriter:
    """Renders responses to bytes: status line, headers, body. `now` returns lab time, for Date (spec §12)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._date = DateHeader(now())
        self._prepare_cached = lru_cache(maxsize=_CACHED_RESPONSES)(_prepare)
        self._last: tuple[HttpResponse, bool, bool, PreparedResponse] | None = None

    def bytes_for(self, response: HttpResponse, *, keep_alive: bool, is_http10: bool) -> bytes:
        """Return the bytes of a response with the current Date, Content-Length (not in a 304) and Connection.

        Connection is `close` without `keep_alive`, and `keep-alive` for HTTP/1.0 with it. The body is left out if the
        response is `head_only`. The last response is kept, because many long polls get the same object.
        """
        last = self._last
        if last is None or last[0] is not response or last[1] is not keep_alive or last[2] is not is_http10:
            last = self._last = (response, keep_alive, is_http10, _prepare(response, keep_alive, is_http10))
        return last[3].bytes_at(self.date_header_at(self._now()))

    def prepare(self, response: HttpResponse, *, keep_alive: bool, is_http10: bool) -> PreparedResponse:
        """Return the bytes of a response without its Date, for the response cache, which adds that each time.

        They have Content-Length (not in a 304) and Connection: `close` without `keep_alive`, and `keep-alive` for
        HTTP/1.0 with it. The body is left out if the response is `head_only`. Equal responses with equal flags share
        one object, as long as it is among the 1024 used last.
        """
        return self._prepare_cached(response, keep_alive, is_http10)

    def date_header_at(self, now: float) -> DateHeader:
        """Return the Date header for `now` (lab time); the same object for all times within one second."""
        if not self._date.valid_from <= now < self._date.valid_until:
            self._date = DateHeader(now)
        return self._date


def _prepare(response: HttpResponse, keep_alive: bool, is_http10: bool) -> PreparedResponse:
    lines = [_STATUS_LINES[response.status]]
    lines += [f"{name}: {value}\r\n" for name, value in response.headers]
    # In a 304 it would be the length of the 200's body (RFC 9110 §8.6).
    if response.status != HTTPStatus.NOT_MODIFIED:
        lines.append(f"Content-Length: {len(response.body)}\r\n")
    before = "".join(lines).encode("latin-1")
    after = b"\r\n"
    if not keep_alive:
        after = b"Connection: close\r\n\r\n"
    elif is_http10:
        after = b"Connection: keep-alive\r\n\r\n"
    return PreparedResponse(before, after if response.head_only else after + response.body)


_MAX_SLOW_CHUNKS = 20


class SlowBodyWriter:
    """Writes the head of a response when created and its body over `duration_s`, then calls `on_done`.

    `response_bytes` has both. The body is written with `write` in at most 20 pieces, in real time, the first after a
    pause. Create it inside a running event loop.
    """

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
        """Write nothing more, and do not call `on_done`; the response stays incomplete.

        Does nothing after the end.
        """
        self._timer.cancel()

    def _write_chunk(self) -> None:
        if len(self._remaining) <= self._chunk_bytes:
            self.finish()
            return
        chunk, self._remaining = self._remaining[: self._chunk_bytes], self._remaining[self._chunk_bytes :]
        self._write(chunk)
        self._timer = self._loop.call_later(self._interval_s, self._write_chunk)
