"""HTTP/1.1 encoding and incremental parsing, as far as this client needs it. Pure.

http.client cannot be awaited, so both clients use this parser instead.
"""

from __future__ import annotations

import re

from forewarn.client.effects import IncompleteResponse
from forewarn.client.endpoint import Endpoint
from forewarn.protocol.http_message import HttpRequest, HttpResponse

MAX_HEAD_BYTES = 64 * 1024  # of a response
MAX_BODY_BYTES = 8 * 1024 * 1024  # of a response
_MAX_CHUNK_HEADER_BYTES = 1024
_BODYLESS_STATUSES = frozenset({204, 304})
_STATUS_CODE = re.compile(r"[1-9][0-9]{2}")


def encode_request(request: HttpRequest, endpoint: Endpoint) -> bytes:
    """Encode a request, head and body, as the bytes to send to the endpoint."""
    host = str(endpoint).removeprefix("http://")
    fields = (("host", host), ("accept", "application/json"), ("user-agent", "forewarn"), *request.headers)
    length = (("content-length", str(len(request.body))),) if request.body or request.method == "POST" else ()
    lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{name}: {value}" for name, value in (*fields, *length))]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + request.body


class ResponseReader:
    """Parses one HTTP response from the received bytes, piece by piece; feed it b"" when the peer has closed.

    Once `feed` has returned the response, `can_keep_alive` says whether another request may follow on the connection.
    """

    def __init__(self) -> None:
        self.has_received = False  # whether any byte came
        self.can_keep_alive = False  # another request may follow on this connection; valid after the response
        self._data = bytearray()
        self._head: HttpResponse | None = None
        self._chunks = _ChunkedBodyReader()

    def feed(self, data: bytes) -> HttpResponse | None:
        """Add received data; return the response once it is complete, else None."""
        self.has_received = self.has_received or bool(data)
        self._data += data
        if self._head is None:
            self._head = self._read_head()
        if self._head is None:
            if not data:
                raise IncompleteResponse("the connection was closed before the answer began")
            return None
        body = self._read_body(self._head, is_end=not data)
        return None if body is None else HttpResponse(status=self._head.status, headers=self._head.headers, body=body)

    def _read_head(self) -> HttpResponse | None:
        while True:
            end = self._data.find(b"\r\n\r\n")
            if max(end, 0 if end >= 0 else len(self._data)) > MAX_HEAD_BYTES:
                raise IncompleteResponse("the head of the answer is too long")
            if end < 0:
                return None
            version, head = _parse_head(bytes(self._data[:end]))
            del self._data[: end + 4]
            if head.status >= 200:  # skip interim 1xx responses
                self.can_keep_alive = _is_keep_alive(version, head)
                return head

    def _read_body(self, head: HttpResponse, *, is_end: bool) -> bytes | None:
        if head.status in _BODYLESS_STATUSES:
            return b""
        if "chunked" in _header_value(head, "transfer-encoding").lower():
            body = self._chunks.read_body(self._data)
        elif length := _header_value(head, "content-length"):
            body = self._read_fixed_length(_parse_length(length, 10))
        else:
            self.can_keep_alive = False
            body = bytes(self._data) if is_end else None
        if len(self._data) > MAX_BODY_BYTES:
            raise IncompleteResponse(f"the answer is longer than {MAX_BODY_BYTES} bytes")
        if body is None and is_end:
            raise IncompleteResponse("the connection was closed in the middle of the answer")
        return body

    def _read_fixed_length(self, length: int) -> bytes | None:
        if length > MAX_BODY_BYTES:
            raise IncompleteResponse(f"the answer is longer than {MAX_BODY_BYTES} bytes")
        return bytes(self._data[:length]) if len(self._data) >= length else None


def _parse_head(raw: bytes) -> tuple[str, HttpResponse]:
    """Returns the HTTP version, and a response with status and headers."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _STATUS_CODE.fullmatch(words[1]):
        raise IncompleteResponse(f"the answer is not HTTP ({first[:40]!r})")
    pairs = (line.partition(":") for line in lines)
    fields = tuple((name.strip().lower(), value.strip()) for name, colon, value in pairs if colon)
    return words[0], HttpResponse(status=int(words[1]), headers=fields)


def _is_keep_alive(version: str, head: HttpResponse) -> bool:
    header = _header_value(head, "connection").lower()
    return "close" not in header and (version != "HTTP/1.0" or "keep-alive" in header)


def _header_value(head: HttpResponse, name: str) -> str:
    return next((value for given, value in head.headers if given == name), "")


def _parse_length(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise IncompleteResponse(f"the answer gives its length as {text[:20]!r}")
    return number


class _ChunkedBodyReader:
    """Decodes a chunked body; each chunk is read only once, however small the received pieces are."""

    def __init__(self) -> None:
        self._body, self._at = bytearray(), 0

    def read_body(self, data: bytearray) -> bytes | None:
        """Returns the body once its last chunk is complete, else None."""
        while (end := data.find(b"\r\n", self._at, self._at + _MAX_CHUNK_HEADER_BYTES)) >= 0:
            size = _parse_length(data[self._at : end].decode("latin-1").partition(";")[0].strip(), 16)
            if size == 0:
                return bytes(self._body) if data.find(b"\r\n\r\n", end) >= 0 else None
            if len(data) < end + 2 + size + 2:
                return None
            self._body += data[end + 2 : end + 2 + size]
            self._at = end + 2 + size + 2
        if len(data) >= self._at + _MAX_CHUNK_HEADER_BYTES:
            raise IncompleteResponse("the answer does not say how long its chunks are")
        return None
