"""Bytes in, whole requests out, one at a time: httptools parses, we frame and keep the limits (spec §10). No I/O.

The parser is never given more than one request's bytes, so however many requests a caller sends at once, only the
one being answered has been parsed; the rest waits as the bytes it came in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from forewarn.metadata.limits import Limits
from forewarn.protocol.exchange import Request, Response, header_too_large, malformed, too_large

_END_OF_HEAD = b"\r\n\r\n"
_EMPTY_LINES = re.compile(rb"[\r\n]*")  # RFC 9112 §2.2: to be ignored before a request
_UPGRADE = re.compile(rb"\nupgrade(?=:)", re.IGNORECASE)
_REQUEST_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/1\.[01]\r\n")
_MAY_BECOME_ONE = re.compile(rb"[!-~]*(?: [!-~]*(?: [!-~]*\r?)?)?")
# Chunks of one byte blow a body up sixfold, and we count what we keep, so the wire may carry this much more.
_CHUNKED_OVERHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A request that is all here."""

    request: Request
    keep_alive: bool
    is_old: bool = False  # HTTP/1.0: staying open must be said


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoiled:
    """No request will come of these bytes: give this answer and hang up."""

    response: Response


@dataclass(slots=True)
class _Message:
    """What httptools tells of the request it reads."""

    keeps_alive: Callable[[], bool]  # the parser knows only until it has told of the request's end
    target: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    has_head: bool = False
    is_whole: bool = False

    # What we read off its head to frame the rest.
    head: bytes = b""
    keep_alive: bool = False
    is_chunked: bool = False
    expects: bool = False  # the caller waits for 100 Continue
    body_left: int = 0

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a chunked body is no header, and must not pass for one.
        if not self.has_head:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.has_head = True
        self.keep_alive = self.keeps_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True

    def value(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given == name), None)


class Intake:
    """The bytes of one connection on their way to becoming requests."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._scanned = 0
        self._start_over()

    @property
    def waiting(self) -> int:
        """How many bytes are not parsed yet."""
        return len(self._buffer)

    @property
    def is_partial(self) -> bool:
        """Whether a request has begun and is not whole."""
        return bool(self._buffer) or self._message.has_head

    def wants_continue(self) -> bool:
        """True once per request whose caller waits for leave to send the body."""
        wants = self._message.expects and not self._message.body
        self._message.expects = False
        return wants

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Whole | Spoiled | None:
        """The next request; None: it is not whole yet."""
        try:
            return self._take()
        except httptools.HttpParserUpgrade:
            # CONNECT: what follows is not ours to understand.
            return self._whole(keep_alive=False)
        except httptools.HttpParserInvalidMethodError:
            return self._odd_verb()
        except (httptools.HttpParserError, ValueError):
            return Spoiled(response=malformed())

    def _take(self) -> Whole | Spoiled | None:
        if not self._message.has_head:
            spoiled = self._take_head()
            if spoiled is not None:
                return spoiled
        if self._message.has_head:
            self._take_body()
            if self._is_too_large():
                return Spoiled(response=too_large())
        return self._whole(keep_alive=self._message.keep_alive) if self._message.is_whole else None

    def _take_head(self) -> Spoiled | None:
        if self._buffer.startswith((b"\r", b"\n")):
            self._cut(_empty_lines(self._buffer))
        end = self._buffer.find(_END_OF_HEAD, max(0, self._scanned - len(_END_OF_HEAD) + 1))
        self._scanned = len(self._buffer)
        size = self._scanned if end < 0 else end + len(_END_OF_HEAD)
        if self._is_hopeless():
            return Spoiled(response=malformed())
        if size > self._limits.head_bytes:
            return Spoiled(response=header_too_large())
        if end < 0:
            return None
        # RFC 9110 §7.8: an offer of another protocol may be ignored; the parser would drop the body for it.
        self._message.head = _UPGRADE.sub(b"\nignored", self._cut(size))
        self._parser.feed_data(self._message.head)
        return self._look_at_head()

    def _look_at_head(self) -> Spoiled | None:
        self._message.is_chunked = self._message.value("transfer-encoding") is not None
        length = int(self._message.value("content-length") or 0)
        if length > self._limits.body_bytes:
            return Spoiled(response=too_large())
        self._message.body_left = self._limits.body_bytes * _CHUNKED_OVERHEAD if self._message.is_chunked else length
        expects = (self._message.value("expect") or "").lower() == "100-continue"
        self._message.expects = expects and self._parser.get_http_version() == "1.1"
        return None

    def _take_body(self) -> None:
        while self._buffer and not self._message.is_whole and not self._is_too_large():
            # A chunked body ends with a line, so a line at a time never reaches into the next request.
            size = self._buffer.find(b"\n") + 1 if self._message.is_chunked else self._message.body_left
            piece = self._cut(size or len(self._buffer))
            self._message.body_left -= len(piece)
            self._parser.feed_data(piece)

    def _is_too_large(self) -> bool:
        return len(self._message.body) > self._limits.body_bytes or self._message.body_left < 0

    def _whole(self, *, keep_alive: bool) -> Whole:
        message = self._message
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            target=message.target.decode("latin-1"),
            headers=tuple(message.headers),
            body=bytes(message.body),
        )
        is_old = self._parser.get_http_version() == "1.0"
        self._start_over()
        return Whole(request=request, keep_alive=keep_alive, is_old=is_old)

    def _odd_verb(self) -> Whole:
        """A verb that the parser does not know is still a request, and told so like PUT is (spec §10)."""
        line = _REQUEST_LINE.match(self._message.head)
        assert line is not None
        request = Request(method=line[1].decode("ascii"), target=line[2].decode("ascii"))
        return Whole(request=request, keep_alive=False)

    def _is_hopeless(self) -> bool:
        """Whether what came so far can no longer begin a request: a caller that speaks TLS need not wait."""
        begins = _REQUEST_LINE.match if b"\n" in self._buffer else _MAY_BECOME_ONE.fullmatch
        return begins(self._buffer) is None

    def _cut(self, size: int) -> bytes:
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return piece

    def _start_over(self) -> None:
        self._message = _Message(keeps_alive=lambda: self._parser.should_keep_alive())
        self._parser = httptools.HttpRequestParser(self._message)


def _empty_lines(buffer: bytearray) -> int:
    found = _EMPTY_LINES.match(buffer)
    return found.end() if found else 0
