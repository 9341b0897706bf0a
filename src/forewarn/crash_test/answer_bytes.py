"""HTTP answers as bytes: reads the service's answer, and encodes a substitute. No I/O.

httptools parses; `AnswerReader` only finds the end of the head, so that interim answers (1xx) can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

import httptools

from forewarn.crash_test.answers import ServiceAnswer

_END_OF_HEAD = b"\r\n\r\n"
_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_SLOW_PIECES = 20
_CHUNK_BYTES = 256  # of a chunked body: small, so that a document needs several
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive"})


class InvalidAnswer(Exception):
    """The service's answer is not HTTP, is longer than the proxy reads, or ended too early."""


class AnswerReader:
    """Reads one HTTP answer of the service: `feed` it received bytes until `is_complete` is True.

    Call `end` when the service closes the connection: only that completes an answer without a length. Use a new reader
    for each request.
    """

    def __init__(self, *, is_head_request: bool = False) -> None:
        self.is_complete = False
        self._is_head_request = is_head_request  # the answer has no body, even with a Content-Length
        self._unread = bytearray()  # of an incomplete head
        self._parser: httptools.HttpResponseParser | None = None  # None: the head is not complete
        self._headers: list[tuple[str, str]] = []
        self._has_all_headers = False
        self._body = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Add the bytes that the service sent next, and return those to pass on to the client."""
        if self._parser is not None:
            self._feed_parser(self._parser, data)
            return data
        self._unread += data
        while (end := self._unread.find(_END_OF_HEAD)) >= 0:
            head = bytes(self._unread[: end + len(_END_OF_HEAD)])
            del self._unread[: len(head)]
            parser = httptools.HttpResponseParser(self)
            self._feed_parser(parser, head)
            if parser.get_status_code() >= HTTPStatus.OK:
                rest = bytes(self._unread)
                self._unread.clear()
                self._parser = parser
                self.is_complete = self.is_complete or self._is_head_request
                self._feed_parser(parser, rest)
                return head + rest
            self._headers, self._has_all_headers, self.is_complete = [], False, False  # of an interim answer
        if len(self._unread) > _MAX_HEAD_BYTES:
            raise InvalidAnswer("the head of the service's answer is too long")
        return b""

    def end(self) -> None:
        """Note that the service has closed the connection, which completes an answer without a length."""
        if self.is_complete:
            return
        if self._parser is None or self._has_length:
            raise InvalidAnswer("the service closed the connection before its answer was complete")
        self.is_complete = True

    @property
    def status(self) -> int | None:
        """The status of the final answer; None before its head is complete, and for interim answers (1xx)."""
        return None if self._parser is None else int(self._parser.get_status_code())

    @property
    def keeps_connection(self) -> bool:
        """Whether the service keeps the connection open after this answer. Valid once its head is complete."""
        is_closing = any(name.lower() == "connection" and value.lower() == "close" for name, value in self._headers)
        return not is_closing and (self._has_length or self.status == HTTPStatus.NOT_MODIFIED)

    @property
    def body(self) -> bytes:
        """The body of the answer as far as it was received, without the framing of chunks; a copy."""
        return bytes(self._body)

    @property
    def answer(self) -> ServiceAnswer:
        """The answer with status, headers and body, valid once it is complete."""
        headers = tuple((name, value) for name, value in self._headers if name.lower() not in _FRAMING)
        return ServiceAnswer(self.status or 0, headers, self.body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of the answer; only httptools, the parser, calls this, with the bytes as received."""
        if not self._has_all_headers:
            self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Note that all headers of the answer were read; only httptools, the parser, calls this."""
        self._has_all_headers = True

    def on_body(self, data: bytes) -> None:
        """Append a part of the answer's body, without the framing of chunks; only httptools calls this."""
        self._body += data

    def on_message_complete(self) -> None:
        """Note that the answer is complete (`is_complete`); only httptools, the parser, calls this."""
        self.is_complete = True

    @property
    def _has_length(self) -> bool:
        return any(name.lower() in ("content-length", "transfer-encoding") for name, _ in self._headers)

    def _feed_parser(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        if not data:
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise InvalidAnswer(f"the service's answer is not HTTP ({error})") from error
        if len(self._body) > _MAX_BODY_BYTES:
            raise InvalidAnswer(f"the body of the service's answer is longer than {_MAX_BODY_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedAnswer:
    """A substitute answer as the bytes to send: first `head`, then the pieces of the body in order."""

    head: bytes  # status line and headers, with the empty line at the end
    pieces: tuple[bytes, ...]  # of the body, with the framing of chunks; empty: there is no body
    keeps_connection: bool  # whether another request may follow; False too if the body ends too early


def encode_answer(
    answer: ServiceAnswer, *, keep_alive: bool, is_http10: bool, is_head_request: bool, is_slow: bool
) -> EncodedAnswer:
    """Encode an answer as the bytes for a client. `keep_alive`: both sides want to keep the connection."""
    is_bodyless = answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
    is_chunked = answer.header("Transfer-Encoding") is not None and not is_http10 and not is_bodyless
    declared = answer.header("Content-Length")
    is_cut = declared is not None and declared != str(len(answer.body))
    keeps_connection = keep_alive and not is_cut

    lines = [f"HTTP/1.1 {answer.status} {_reason_phrase(answer.status)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers if name.lower() not in _FRAMING]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
    elif not is_bodyless:
        lines.append(f"Content-Length: {len(answer.body) if declared is None else declared}")
    if not keeps_connection:
        lines.append("Connection: close")
    elif is_http10:
        lines.append("Connection: keep-alive")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    has_body = not is_bodyless and not is_head_request
    pieces = tuple(_pieces(answer.body, is_chunked=is_chunked, is_slow=is_slow)) if has_body else ()
    return EncodedAnswer(head=head, pieces=pieces, keeps_connection=keeps_connection)


def _pieces(body: bytes, *, is_chunked: bool, is_slow: bool) -> Iterator[bytes]:
    size = max(1, len(body))
    if is_chunked:
        size = _CHUNK_BYTES
    if is_slow:
        size = max(1, -(-len(body) // _MAX_SLOW_PIECES))
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        yield b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece
    if is_chunked:
        yield b"0\r\n\r\n"


def _reason_phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
