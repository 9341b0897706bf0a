"""Parses the bytes of a connection into HTTP requests within the limits (spec §10). No I/O.

httptools parses; this module finds where a request ends. The parser is never given more than one request, so of many
pipelined requests only the one being answered has been parsed. Parsed heads are cached over all connections.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import httptools
import msgspec

from forewarn.metadata.limits import Limits
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.responses import (
    body_too_large,
    header_too_large,
    host_header_invalid,
    malformed_request,
    transfer_coding_not_supported,
)

_END_OF_HEAD = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")  # ignored before a request (RFC 9112 §2.2)
_UPGRADE = re.compile(rb"\nupgrade(?=:)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[01]\r\n")
_REQUEST_LINE_PREFIX = re.compile(rb"[!-~]*(?: [!-~]*(?: [!-~]*\r?)?)?")
# The limit is for the decoded body. Chunks of one byte need six bytes each, so a chunked body may be this much longer.
_CHUNKED_OVERHEAD = 8
_CACHED_HEADS = 512
_MAX_CACHED_HEAD_BYTES = 1024


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete and valid HTTP request, as `RequestParser` returns it."""

    request: HttpRequest  # without headers and body if the method is unknown
    keep_alive: bool  # the client wants the connection to stay open; False for CONNECT and an unknown method
    is_http10: bool = False  # HTTP/1.0: the response needs Connection: keep-alive to keep it open


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """The bytes are not a valid request: send this response and close the connection."""

    response: HttpResponse  # the error, such as 400 or 413


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedHead:
    parsed: ParsedRequest
    body_bytes: int = 0
    is_chunked: bool = False
    expects_continue: bool = False  # the client waits for 100 Continue

    def with_body(self, body: bytes) -> ParsedRequest:
        bare = self.parsed.request
        request = HttpRequest(method=bare.method, target=bare.target, headers=bare.headers, body=body)
        return ParsedRequest(request=request, keep_alive=self.parsed.keep_alive, is_http10=self.parsed.is_http10)


@dataclass(slots=True)
class _ParserCallbacks:
    should_keep_alive: Callable[[], bool] = bool  # of the parser; valid only until the request is complete
    target: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = False
    headers_complete: bool = False
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers of a chunked body must not be taken for headers.
        if not self.headers_complete:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.headers_complete = True
        self.keep_alive = self.should_keep_alive()
        self.should_keep_alive = bool  # breaks the reference cycle with the parser

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True

    def header(self, name: str) -> str | None:
        return next((value for header, value in self.headers if header == name), None)


class RequestParser:
    """Parses the bytes of one connection: `feed` them, then call `next_request` until it returns None.

    It applies the size limits of `limits`, not the time limits. After a RefusedRequest the parser must not be used
    again.
    """

    __slots__ = ("_body", "_buffer", "_expects_continue", "_head", "_limits", "_scanned")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._scanned = 0
        self._head: _ParsedHead | None = None  # of an incomplete request
        self._body: _SizedBody | _ChunkedBody | None = None
        self._expects_continue = False

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that were fed and not parsed yet, without those of an incomplete request's body."""
        return len(self._buffer)

    @property
    def has_partial_request(self) -> bool:
        """Whether there are unparsed bytes or an incomplete request; False between two requests."""
        return bool(self._buffer) or self._head is not None

    def take_continue(self) -> bool:
        """Return True once if the client waits for 100 Continue and has sent no part of the body yet."""
        expects_continue, self._expects_continue = self._expects_continue, False
        return expects_continue

    def feed(self, data: bytes) -> None:
        """Append bytes received from the client; parses nothing. The limits apply in `next_request`."""
        self._buffer += data

    def next_request(self) -> ParsedRequest | RefusedRequest | None:
        """Take the next complete request out of the buffered bytes; None if more bytes are needed."""
        try:
            if self._head is None or self._body is None:
                return self._parse_head()
            return self._parse_body(self._head, self._body)
        except (httptools.HttpParserError, ValueError):
            return RefusedRequest(response=malformed_request())

    def _parse_head(self) -> ParsedRequest | RefusedRequest | None:
        if self._buffer.startswith((b"\r", b"\n")):
            self._consume(_leading_empty_lines(self._buffer))
        # From where the last search ended: a head that drips in must not be searched again and again.
        end = self._buffer.find(_END_OF_HEAD, max(0, self._scanned - len(_END_OF_HEAD) + 1))
        self._scanned = len(self._buffer)
        size = self._scanned if end < 0 else end + len(_END_OF_HEAD)
        # Also of a head without an end: it will not become shorter.
        if size > self._limits.head_bytes:
            return RefusedRequest(response=malformed_request() if self._cannot_be_http() else header_too_large())
        if end < 0:
            return RefusedRequest(response=malformed_request()) if self._cannot_be_http() else None
        raw = self._consume(size)
        head = _read_head_cached(raw) if size <= _MAX_CACHED_HEAD_BYTES else _read_head(raw)
        if not isinstance(head, _ParsedHead):
            return head
        return self._start_body(head, raw)

    def _start_body(self, head: _ParsedHead, raw: bytes) -> ParsedRequest | RefusedRequest | None:
        max_bytes = self._limits.body_bytes
        if head.body_bytes > max_bytes:
            return RefusedRequest(response=body_too_large())
        if len(self._buffer) >= head.body_bytes > 0:
            return head.with_body(self._consume(head.body_bytes))
        body = _ChunkedBody(raw, max_bytes) if head.is_chunked else _SizedBody(head.body_bytes)
        self._head, self._body, self._expects_continue = head, body, head.expects_continue
        return self._parse_body(head, body)

    def _parse_body(self, head: _ParsedHead, body: _SizedBody | _ChunkedBody) -> ParsedRequest | RefusedRequest | None:
        self._expects_continue = self._expects_continue and not self._buffer
        while self._buffer and not body.is_complete and not body.is_too_large:
            body.feed(self._consume(body.next_piece_bytes(self._buffer)))
        if body.is_too_large:
            return RefusedRequest(response=body_too_large())
        if not body.is_complete:
            return None
        self._head = self._body = None
        return head.with_body(bytes(body.received))

    def _cannot_be_http(self) -> bool:
        """Whether the bytes cannot be the start of a request, so that a TLS client gets its error at once."""
        match = _REQUEST_LINE.match if b"\n" in self._buffer else _REQUEST_LINE_PREFIX.fullmatch
        return match(self._buffer) is None

    def _consume(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return piece


class _SizedBody:
    __slots__ = ("_size", "received")

    is_too_large = False

    def __init__(self, size: int) -> None:
        self._size = size
        self.received = bytearray()

    @property
    def is_complete(self) -> bool:
        return len(self.received) == self._size

    def next_piece_bytes(self, buffer: bytearray) -> int:
        return self._size - len(self.received)

    def feed(self, piece: bytes) -> None:
        self.received += piece


class _ChunkedBody:
    __slots__ = ("_callbacks", "_max_bytes", "_parser", "_wire_bytes_left")

    def __init__(self, head: bytes, max_bytes: int) -> None:
        self._callbacks, self._parser = _feed_httptools(head)
        self._max_bytes, self._wire_bytes_left = max_bytes, max_bytes * _CHUNKED_OVERHEAD

    @property
    def is_complete(self) -> bool:
        return self._callbacks.is_complete

    @property
    def is_too_large(self) -> bool:
        return len(self.received) > self._max_bytes or self._wire_bytes_left < 0

    @property
    def received(self) -> bytearray:
        return self._callbacks.body

    def next_piece_bytes(self, buffer: bytearray) -> int:
        # A chunked body ends with a line, so one line at a time never reaches into the next request.
        return buffer.find(b"\n") + 1 or len(buffer)

    def feed(self, piece: bytes) -> None:
        self._wire_bytes_left -= len(piece)
        self._parser.feed_data(piece)


def _read_head(raw: bytes) -> _ParsedHead | ParsedRequest | RefusedRequest:
    line = _REQUEST_LINE.match(raw)
    if line is None:
        return RefusedRequest(response=malformed_request())
    try:
        callbacks, parser = _feed_httptools(raw)
    except httptools.HttpParserInvalidMethodError:
        # A method that the parser does not know gets the same error as PUT (spec §10).
        request = HttpRequest(method=line[1].decode("ascii"), target=line[2].decode("ascii"))
        return ParsedRequest(request=request, keep_alive=False)
    except (httptools.HttpParserError, ValueError):
        return RefusedRequest(response=malformed_request())
    request = HttpRequest(
        method=parser.get_method().decode("latin-1"),
        target=callbacks.target.decode("latin-1"),
        headers=tuple(callbacks.headers),
    )
    is_http10 = parser.get_http_version() == "1.0"
    refusal = _check_framing(request, is_http10=is_http10)
    if refusal is not None:
        return RefusedRequest(response=refusal)
    parsed = ParsedRequest(request=request, keep_alive=callbacks.keep_alive, is_http10=is_http10)
    if callbacks.is_complete:
        return parsed
    expects_continue = (callbacks.header("expect") or "").lower() == "100-continue"
    return _ParsedHead(
        parsed=parsed,
        body_bytes=int(callbacks.header("content-length") or 0),
        is_chunked=callbacks.header("transfer-encoding") is not None,
        expects_continue=expects_continue and not is_http10,
    )


def _check_framing(request: HttpRequest, *, is_http10: bool) -> HttpResponse | None:
    # RFC 9112 demands it: a proxy in front of this server could read such a request differently.
    host_count = len(request.header_values("host"))
    if host_count > 1 or (host_count == 0 and not is_http10):
        return host_header_invalid()
    codings = request.header_values("transfer-encoding")
    if codings and (is_http10 or [coding.strip().lower() for coding in codings] != ["chunked"]):
        return transfer_coding_not_supported()
    return None


_read_head_cached = lru_cache(maxsize=_CACHED_HEADS)(_read_head)


def _feed_httptools(head: bytes) -> tuple[_ParserCallbacks, httptools.HttpRequestParser]:
    callbacks = _ParserCallbacks()
    parser = httptools.HttpRequestParser(callbacks)
    callbacks.should_keep_alive = parser.should_keep_alive
    try:
        # An Upgrade header may be ignored (RFC 9110 §7.8); httptools would drop the body because of it.
        parser.feed_data(_UPGRADE.sub(b"\nignored", head))
    except httptools.HttpParserUpgrade:
        # CONNECT: the bytes that follow are not HTTP.
        callbacks.is_complete, callbacks.keep_alive = True, False
    return callbacks, parser


def _leading_empty_lines(buffer: bytearray) -> int:
    match = _EMPTY_LINES.match(buffer)
    return match.end() if match else 0
