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
from forewarn.protocol.responses import body_too_large, header_too_large, malformed_request

_END_OF_HEAD = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")  # RFC 9112 §2.2: to be ignored before a request
_UPGRADE = re.compile(rb"\nupgrade(?=:)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[01]\r\n")
_REQUEST_LINE_PREFIX = re.compile(rb"[!-~]*(?: [!-~]*(?: [!-~]*\r?)?)?")
# Chunks of one byte blow a body up sixfold, and we count what we keep, so the wire may carry this much more.
_CHUNKED_OVERHEAD = 8
_CACHED_HEADS = 512
_MAX_CACHED_HEAD_BYTES = 1024  # of a head that is kept


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is all here."""

    request: HttpRequest
    keep_alive: bool
    is_http10: bool = False  # HTTP/1.0: staying open must be said


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """No request will come of these bytes: give this answer and hang up."""

    response: HttpResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedHead:
    """What a request's head says: the request without its body, and how that is framed."""

    parsed: ParsedRequest
    body_bytes: int = 0
    is_chunked: bool = False
    expects_continue: bool = False  # the caller waits for 100 Continue

    def with_body(self, body: bytes) -> ParsedRequest:
        bare = self.parsed.request
        request = HttpRequest(method=bare.method, target=bare.target, headers=bare.headers, body=body)
        return ParsedRequest(request=request, keep_alive=self.parsed.keep_alive, is_http10=self.parsed.is_http10)


@dataclass(slots=True)
class _ParserCallbacks:
    """What httptools tells of the request it reads."""

    should_keep_alive: Callable[[], bool] = bool  # the parser knows only until it has told of the request's end
    target: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = False
    headers_complete: bool = False
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a chunked body is no header, and must not pass for one.
        if not self.headers_complete:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.headers_complete = True
        self.keep_alive = self.should_keep_alive()
        self.should_keep_alive = bool  # the parser holds us, and is gone sooner if we do not hold it

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True

    def header(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given == name), None)


class RequestParser:
    """The bytes of one connection on their way to becoming requests."""

    __slots__ = ("_body", "_buffer", "_expects_continue", "_head", "_limits", "_scanned")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._scanned = 0
        self._head: _ParsedHead | None = None  # of a request that is not whole, and then its body
        self._body: _SizedBody | _ChunkedBody | None = None
        self._expects_continue = False

    @property
    def buffered_bytes(self) -> int:
        """How many bytes are not parsed yet."""
        return len(self._buffer)

    @property
    def has_partial_request(self) -> bool:
        """Whether a request has begun and is not whole."""
        return bool(self._buffer) or self._head is not None

    def take_continue(self) -> bool:
        """True once per request whose caller waits for leave to send the body."""
        wants, self._expects_continue = self._expects_continue, False
        return wants

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_request(self) -> ParsedRequest | RefusedRequest | None:
        """The next request; None: it is not whole yet."""
        try:
            if self._head is None or self._body is None:
                return self._parse_head()
            return self._parse_body(self._head, self._body)
        except (httptools.HttpParserError, ValueError):
            return RefusedRequest(response=malformed_request())

    def _parse_head(self) -> ParsedRequest | RefusedRequest | None:
        if self._buffer.startswith((b"\r", b"\n")):
            self._consume(_leading_empty_lines(self._buffer))
        end = self._buffer.find(_END_OF_HEAD, max(0, self._scanned - len(_END_OF_HEAD) + 1))
        self._scanned = len(self._buffer)
        size = self._scanned if end < 0 else end + len(_END_OF_HEAD)
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
        most = self._limits.body_bytes
        if head.body_bytes > most:
            return RefusedRequest(response=body_too_large())
        if len(self._buffer) >= head.body_bytes > 0:
            return head.with_body(self._consume(head.body_bytes))
        body = _ChunkedBody(raw, most) if head.is_chunked else _SizedBody(head.body_bytes)
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
        """Whether what came so far can no longer begin a request: a caller that speaks TLS need not wait."""
        begins = _REQUEST_LINE.match if b"\n" in self._buffer else _REQUEST_LINE_PREFIX.fullmatch
        return begins(self._buffer) is None

    def _consume(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return piece


class _SizedBody:
    """A body whose length was said."""

    __slots__ = ("_size", "received")

    is_too_large = False

    def __init__(self, size: int) -> None:
        self._size = size
        self.received = bytearray()

    @property
    def is_complete(self) -> bool:
        return len(self.received) == self._size

    def next_piece_bytes(self, buffer: bytearray) -> int:
        """How many bytes may be cut off for this."""
        return self._size - len(self.received)

    def feed(self, piece: bytes) -> None:
        self.received += piece


class _ChunkedBody:
    """A body that comes in chunks."""

    __slots__ = ("_callbacks", "_max_bytes", "_parser", "_wire_bytes_left")

    def __init__(self, head: bytes, most: int) -> None:
        self._callbacks, self._parser = _feed_httptools(head)
        self._max_bytes, self._wire_bytes_left = most, most * _CHUNKED_OVERHEAD

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
        # The body ends with a line, so a line at a time never reaches into the next request.
        return buffer.find(b"\n") + 1 or len(buffer)

    def feed(self, piece: bytes) -> None:
        self._wire_bytes_left -= len(piece)
        self._parser.feed_data(piece)


def _read_head(raw: bytes) -> _ParsedHead | ParsedRequest | RefusedRequest:
    """What the head says; whole requests need nothing more."""
    line = _REQUEST_LINE.match(raw)
    if line is None:
        return RefusedRequest(response=malformed_request())
    try:
        message, parser = _feed_httptools(raw)
    except httptools.HttpParserInvalidMethodError:
        # A verb that the parser does not know is still a request, and told so like PUT is (spec §10).
        request = HttpRequest(method=line[1].decode("ascii"), target=line[2].decode("ascii"))
        return ParsedRequest(request=request, keep_alive=False)
    except (httptools.HttpParserError, ValueError):
        return RefusedRequest(response=malformed_request())
    request = HttpRequest(
        method=parser.get_method().decode("latin-1"),
        target=message.target.decode("latin-1"),
        headers=tuple(message.headers),
    )
    is_old = parser.get_http_version() == "1.0"
    whole = ParsedRequest(request=request, keep_alive=message.keep_alive, is_http10=is_old)
    if message.is_complete:
        return whole
    expects = (message.header("expect") or "").lower() == "100-continue"
    return _ParsedHead(
        parsed=whole,
        body_bytes=int(message.header("content-length") or 0),
        is_chunked=message.header("transfer-encoding") is not None,
        expects_continue=expects and not is_old,
    )


_read_head_cached = lru_cache(maxsize=_CACHED_HEADS)(_read_head)


def _feed_httptools(head: bytes) -> tuple[_ParserCallbacks, httptools.HttpRequestParser]:
    message = _ParserCallbacks()
    parser = httptools.HttpRequestParser(message)
    message.should_keep_alive = parser.should_keep_alive
    try:
        # RFC 9110 §7.8: an offer of another protocol may be ignored; the parser would drop the body for it.
        parser.feed_data(_UPGRADE.sub(b"\nignored", head))
    except httptools.HttpParserUpgrade:
        # CONNECT: what follows is not ours to understand.
        message.is_complete, message.keep_alive = True, False
    return message, parser


def _leading_empty_lines(buffer: bytearray) -> int:
    found = _EMPTY_LINES.match(buffer)
    return found.end() if found else 0
