"""Responses to bytes. What framing needs is added here: Date, Content-Length, Connection."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from forewarn.protocol.codec import http_date
from forewarn.protocol.message import JSON, Response

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# A mistake of ours; what it was stands in the log, and is none of the caller's business.
BROKEN = Response(status=500, headers=(JSON,), body=b'{ "error": "Internal server error" }')

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class Writer:
    """Writes responses out, dated in lab time (spec §12)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._second = -1
        self._date = ""

    def bytes_for(self, response: Response, *, keep_alive: bool, is_old: bool) -> bytes:
        lines = [_LINES[response.status]]
        lines += [f"{name}: {value}\r\n" for name, value in response.headers]
        # RFC 9110 §8.6: in a 304 it would be the length of the body that is left out.
        if response.status != HTTPStatus.NOT_MODIFIED:
            lines.append(f"Content-Length: {len(response.body)}\r\n")
        lines.append(self._date_line())
        if not keep_alive:
            lines.append("Connection: close\r\n")
        elif is_old:
            lines.append("Connection: keep-alive\r\n")
        lines.append("\r\n")
        head = "".join(lines).encode("latin-1")
        return head if response.head_only else head + response.body

    def _date_line(self) -> str:
        second = int(self._now())
        if second != self._second:
            self._second, self._date = second, f"Date: {http_date(second)}\r\n"
        return self._date
