"""HTTP/1.1 as bytes, as far as this client needs it: a request written, an answer read piece by piece. Pure.

http.client cannot be awaited; so both drivers read the same way, and neither knows proxies.
"""

from __future__ import annotations

import re

from forewarn.client.endpoint import Endpoint
from forewarn.client.move import Broken
from forewarn.protocol.message import Request, Response

LARGEST_HEAD = 64 * 1024
LARGEST_BODY = 8 * 1024 * 1024
_LONGEST_SIZE = 1024  # of the line before a chunk
_NO_BODY = frozenset({204, 304})
_STATUS = re.compile(r"[1-9][0-9]{2}")


def written(request: Request, endpoint: Endpoint) -> bytes:
    host = str(endpoint).removeprefix("http://")
    fields = (("host", host), ("accept", "application/json"), ("user-agent", "forewarn"), *request.headers)
    length = (("content-length", str(len(request.body))),) if request.body or request.method == "POST" else ()
    lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in (*fields, *length))]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + request.body


class Incoming:
    """One answer in the making. Feed it what was received, b"" at the end; it gives the Response when that is whole."""

    def __init__(self) -> None:
        self.began = False  # something was received
        self.keeps = False  # another request may follow on this connection
        self._data = bytearray()
        self._head: Response | None = None
        self._chunks = _Chunks()

    def feed(self, data: bytes) -> Response | None:
        self.began = self.began or bool(data)
        self._data += data
        if self._head is None:
            self._head = self._read_head()
        if self._head is None:
            if not data:
                raise Broken("the connection was closed before there was an answer")
            return None
        body = self._read_body(self._head, is_end=not data)
        return None if body is None else Response(status=self._head.status, headers=self._head.headers, body=body)

    def _read_head(self) -> Response | None:
        while True:
            end = self._data.find(b"\r\n\r\n")
            if max(end, 0 if end >= 0 else len(self._data)) > LARGEST_HEAD:
                raise Broken("the head of the answer is too long")
            if end < 0:
                return None
            version, head = _head(bytes(self._data[:end]))
            del self._data[: end + 4]
            if head.status >= 200:  # what comes before is about the request, not an answer to it
                self.keeps = _keeps(version, head)
                return head

    def _read_body(self, head: Response, *, is_end: bool) -> bytes | None:
        if head.status in _NO_BODY:
            return b""
        if "chunked" in _field(head, "transfer-encoding").lower():
            body = self._chunks.body_in(self._data)
        elif length := _field(head, "content-length"):
            body = self._first(_number(length, 10))
        else:
            self.keeps = False
            body = bytes(self._data) if is_end else None
        if len(self._data) > LARGEST_BODY:
            raise Broken(f"the answer is longer than {LARGEST_BODY} bytes")
        if body is None and is_end:
            raise Broken("the connection was closed in the middle of the answer")
        return body

    def _first(self, length: int) -> bytes | None:
        if length > LARGEST_BODY:
            raise Broken(f"the answer is longer than {LARGEST_BODY} bytes")
        return bytes(self._data[:length]) if len(self._data) >= length else None


def _head(raw: bytes) -> tuple[str, Response]:
    """The version and the status line with its fields."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _STATUS.fullmatch(words[1]):
        raise Broken(f"what answers does not speak HTTP ({first[:40]!r})")
    pairs = (line.partition(":") for line in lines)
    fields = tuple((name.strip().lower(), value.strip()) for name, colon, value in pairs if colon)
    return words[0], Response(status=int(words[1]), headers=fields)


def _keeps(version: str, head: Response) -> bool:
    wish = _field(head, "connection").lower()
    return "close" not in wish and (version != "HTTP/1.0" or "keep-alive" in wish)


def _field(head: Response, name: str) -> str:
    return next((value for given, value in head.headers if given == name), "")


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise Broken(f"the answer gives its length as {text[:20]!r}")
    return number


class _Chunks:
    """A body in chunks. What was read of it is not read again, however small its pieces are."""

    def __init__(self) -> None:
        self._body, self._at = bytearray(), 0

    def body_in(self, data: bytearray) -> bytes | None:
        """The body, once its last chunk is there."""
        while (end := data.find(b"\r\n", self._at, self._at + _LONGEST_SIZE)) >= 0:
            size = _number(data[self._at : end].decode("latin-1").partition(";")[0].strip(), 16)
            if size == 0:
                return bytes(self._body) if data.find(b"\r\n\r\n", end) >= 0 else None
            if len(data) < end + 2 + size + 2:
                return None
            self._body += data[end + 2 : end + 2 + size]
            self._at = end + 2 + size + 2
        if len(data) >= self._at + _LONGEST_SIZE:
            raise Broken("the answer does not say how long its chunks are")
        return None
