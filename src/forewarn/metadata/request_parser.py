"""Bytes in, whole requests out, one at a time: httptools parses, we frame and keep the limits (spec §10). No I/O.

The parser is never given more than one request's bytes, so however many requests a caller sends at once, only the
one being answered has been parsed; the rest waits as the bytes it came in. Heads are the same again and again, so what
one says is kept, and whoever sends it next, on whichever connection, has it read already.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import httptools
import msgspec

from forewarn.metadata.limits import Limits
from forewarn.protocol.exchange import Request, Response, header_too_large, malformed, too_large

_END_OF_HEAD = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")  # RFC 9112 §2.2: to be ignored before a request
_UPGRADE = re.compile(rb"\nupgrade(?=:)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[01]\r\n")
_MAY_BECOME_ONE = re.compile(rb"[!-~]*(?: [!-~]*(?: [!-~]*\r?)?)?")
# Chunks of one byte blow a body up sixfold, and we count what we keep, so the wire may carry this much more.
_CHUNKED_OVERHEAD = 8
_KEPT_HEADS = 512
_KEPT_BYTES = 1024  # of a head that is kept


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is all here."""

    request: Request
    keep_alive: bool
    is_old: bool = False  # HTTP/1.0: staying open must be said


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoiled:
    """No request will come of these bytes: give this answer and hang up."""

    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What a request's head says: the request without its body, and how that is framed."""

    whole: Whole
    body_bytes: int = 0
    is_chunked: bool = False
    expects: bool = False  # the caller waits for 100 Continue

    def with_body(self, body: bytes) -> Whole:
        bare = self.whole.request
        request = Request(method=bare.method, target=bare.target, headers=bare.headers, body=body)
        return Whole(request=request, keep_alive=self.whole.keep_alive, is_old=self.whole.is_old)


@dataclass(slots=True)
class _Message:
    """What httptools tells of the request it reads."""

    keeps_alive: Callable[[], bool] = bool  # the parser knows only until it has told of the request's end
    target: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = False
    has_head: bool = False
    is_whole: bool = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a chunked body is no header, and must not pass for one.
        if not self.has_head:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.has_head = True
        self.keep_alive = self.keeps_alive()
        self.keeps_alive = bool  # the parser holds us, and is gone sooner if we do not hold it

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True

    def value(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given == name), None)


class Intake:
    """The bytes of one connection on their way to becoming requests."""

    __slots__ = ("_body", "_buffer", "_expects", "_head", "_limits", "_scanned")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._scanned = 0
        self._head: _Head | None = None  # of a request that is not whole, and then its body
        self._body: _Sized | _Chunked | None = None
        self._expects = False

    @property
    def waiting(self) -> int:
        """How many bytes are not parsed yet."""
        return len(self._buffer)

    @property
    def is_partial(self) -> bool:
        """Whether a request has begun and is not whole."""
        return bool(self._buffer) or self._head is not None

    def wants_continue(self) -> bool:
        """True once per request whose caller waits for leave to send the body."""
        wants, self._expects = self._expects, False
        return wants

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Whole | Spoiled | None:
        """The next request; None: it is not whole yet."""
        try:
            if self._head is None or self._body is None:
                return self._take_head()
            return self._take_body(self._head, self._body)
        except (httptools.HttpParserError, ValueError):
            return Spoiled(response=malformed())

    def _take_head(self) -> Whole | Spoiled | None:
        if self._buffer.startswith((b"\r", b"\n")):
            self._cut(_empty_lines(self._buffer))
        end = self._buffer.find(_END_OF_HEAD, max(0, self._scanned - len(_END_OF_HEAD) + 1))
        self._scanned = len(self._buffer)
        size = self._scanned if end < 0 else end + len(_END_OF_HEAD)
        if size > self._limits.head_bytes:
            return Spoiled(response=malformed() if self._is_hopeless() else header_too_large())
        if end < 0:
            return Spoiled(response=malformed()) if self._is_hopeless() else None
        raw = self._cut(size)
        head = _known_head(raw) if size <= _KEPT_BYTES else _read_head(raw)
        if not isinstance(head, _Head):
            return head
        return self._begin_body(head, raw)

    def _begin_body(self, head: _Head, raw: bytes) -> Whole | Spoiled | None:
        most = self._limits.body_bytes
        if head.body_bytes > most:
            return Spoiled(response=too_large())
        if len(self._buffer) >= head.body_bytes > 0:
            return head.with_body(self._cut(head.body_bytes))
        body = _Chunked(raw, most) if head.is_chunked else _Sized(head.body_bytes)
        self._head, self._body, self._expects = head, body, head.expects
        return self._take_body(head, body)

    def _take_body(self, head: _Head, body: _Sized | _Chunked) -> Whole | Spoiled | None:
        self._expects = self._expects and not self._buffer
        while self._buffer and not body.is_over and not body.is_too_large:
            body.feed(self._cut(body.bytes_of(self._buffer)))
        if body.is_too_large:
            return Spoiled(response=too_large())
        if not body.is_over:
            return None
        self._head = self._body = None
        return head.with_body(bytes(body.so_far))

    def _is_hopeless(self) -> bool:
        """Whether what came so far can no longer begin a request: a caller that speaks TLS need not wait."""
        begins = _REQUEST_LINE.match if b"\n" in self._buffer else _MAY_BECOME_ONE.fullmatch
        return begins(self._buffer) is None

    def _cut(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return piece


class _Sized:
    """A body whose length was said."""

    __slots__ = ("_size", "so_far")

    is_too_large = False

    def __init__(self, size: int) -> None:
        self._size = size
        self.so_far = bytearray()

    @property
    def is_over(self) -> bool:
        return len(self.so_far) == self._size

    def bytes_of(self, buffer: bytearray) -> int:
        """How many bytes may be cut off for this."""
        return self._size - len(self.so_far)

    def feed(self, piece: bytes) -> None:
        self.so_far += piece


class _Chunked:
    """A body that comes in chunks."""

    __slots__ = ("_left", "_message", "_most", "_parser")

    def __init__(self, head: bytes, most: int) -> None:
        self._message, self._parser = _parsed(head)
        self._most, self._left = most, most * _CHUNKED_OVERHEAD

    @property
    def is_over(self) -> bool:
        return self._message.is_whole

    @property
    def is_too_large(self) -> bool:
        return len(self.so_far) > self._most or self._left < 0

    @property
    def so_far(self) -> bytearray:
        return self._message.body

    def bytes_of(self, buffer: bytearray) -> int:
        # The body ends with a line, so a line at a time never reaches into the next request.
        return buffer.find(b"\n") + 1 or len(buffer)

    def feed(self, piece: bytes) -> None:
        self._left -= len(piece)
        self._parser.feed_data(piece)


def _read_head(raw: bytes) -> _Head | Whole | Spoiled:
    """What the head says; whole requests need nothing more."""
    line = _REQUEST_LINE.match(raw)
    if line is None:
        return Spoiled(response=malformed())
    try:
        message, parser = _parsed(raw)
    except httptools.HttpParserInvalidMethodError:
        # A verb that the parser does not know is still a request, and told so like PUT is (spec §10).
        request = Request(method=line[1].decode("ascii"), target=line[2].decode("ascii"))
        return Whole(request=request, keep_alive=False)
    except (httptools.HttpParserError, ValueError):
        return Spoiled(response=malformed())
    request = Request(
        method=parser.get_method().decode("latin-1"),
        target=message.target.decode("latin-1"),
        headers=tuple(message.headers),
    )
    is_old = parser.get_http_version() == "1.0"
    whole = Whole(request=request, keep_alive=message.keep_alive, is_old=is_old)
    if message.is_whole:
        return whole
    expects = (message.value("expect") or "").lower() == "100-continue"
    return _Head(
        whole=whole,
        body_bytes=int(message.value("content-length") or 0),
        is_chunked=message.value("transfer-encoding") is not None,
        expects=expects and not is_old,
    )


_known_head = lru_cache(maxsize=_KEPT_HEADS)(_read_head)


def _parsed(head: bytes) -> tuple[_Message, httptools.HttpRequestParser]:
    message = _Message()
    parser = httptools.HttpRequestParser(message)
    message.keeps_alive = parser.should_keep_alive
    try:
        # RFC 9110 §7.8: an offer of another protocol may be ignored; the parser would drop the body for it.
        parser.feed_data(_UPGRADE.sub(b"\nignored", head))
    except httptools.HttpParserUpgrade:
        # CONNECT: what follows is not ours to understand.
        message.is_whole, message.keep_alive = True, False
    return message, parser


def _empty_lines(buffer: bytearray) -> int:
    found = _EMPTY_LINES.match(buffer)
    return found.end() if found else 0
