"""Answers as bytes: the service's answer is read in any pieces, and a substitute is encoded as a client needs it."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.client.http1 import ResponseReader
from forewarn.crash_test.answers import AnswerReader, InvalidAnswer, ServiceAnswer, encode_answer
from forewarn.protocol.http_message import HttpResponse

OK = b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nETag: "1"\r\nContent-Length: 5\r\nDate: now\r\n\r\nhello'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY = bytes(range(256)) * 5


def read(raw: bytes, piece: int, **options: Any) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader(**options)
    passed = b"".join(reader.feed(raw[start : start + piece]) for start in range(0, len(raw), piece))
    return reader, passed


@pytest.mark.parametrize("piece", [1, 7, 1000])
@pytest.mark.parametrize("interim", [b"", CONTINUE, CONTINUE * 2])
def test_an_answer_is_passed_on_as_it_is_without_interim_answers(piece: int, interim: bytes) -> None:
    reader, passed = read(interim + OK, piece)
    assert passed == OK
    assert reader.is_complete
    assert reader.keeps_connection
    assert reader.status == 200
    expected = (("Content-Type", "text/plain"), ("ETag", '"1"'), ("Date", "now"))
    assert reader.answer == ServiceAnswer(200, expected, b"hello")


def test_an_interim_answer_alone_is_not_complete() -> None:
    reader, passed = read(CONTINUE, 1000)
    assert (passed, reader.is_complete, reader.status) == (b"", False, None)


def test_an_answer_to_head_ends_with_its_head() -> None:
    reader, _ = read(OK[:-5], 3, is_head_request=True)
    assert reader.is_complete
    assert reader.keeps_connection


def test_a_not_modified_answer_has_no_body_and_keeps_the_connection() -> None:
    reader, _ = read(b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n', 4)
    assert reader.is_complete
    assert reader.keeps_connection


def test_a_chunked_answer_is_read_without_its_framing_and_trailers() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
    reader, passed = read(raw, 2)
    assert passed == raw
    assert reader.answer == ServiceAnswer(200, (), b"hello")


def test_an_answer_that_announces_the_end_of_the_connection_does_not_keep_it() -> None:
    reader, _ = read(OK.replace(b"Date: now", b"Connection: close"), 1000)
    assert reader.is_complete
    assert not reader.keeps_connection


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader, _ = read(b"HTTP/1.1 200 OK\r\n\r\nhello", 5)
    assert not reader.is_complete
    reader.end()
    assert reader.is_complete
    assert reader.body == b"hello"
    assert not reader.keeps_connection


@pytest.mark.parametrize("raw", [b"", OK[:20], OK[:-1]])
def test_an_answer_that_ends_too_early_is_invalid(raw: bytes) -> None:
    reader, _ = read(raw, 1000)
    with pytest.raises(InvalidAnswer):
        reader.end()


@pytest.mark.parametrize("raw", [b"SSH-2.0\r\n\r\n", b"x" * 70_000])
def test_bytes_that_are_not_http_are_invalid(raw: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        AnswerReader().feed(raw)


def encode(answer: ServiceAnswer, **changes: bool) -> Any:
    options = {"keep_alive": True, "is_http10": False, "is_head_request": False, "is_slow": False} | changes
    return encode_answer(answer, **options)


def decoded(answer: ServiceAnswer, **changes: bool) -> HttpResponse:
    encoded = encode(answer, **changes)
    response = ResponseReader().feed(encoded.head + b"".join(encoded.pieces))
    assert response is not None
    return response


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("headers", [(), (("Transfer-Encoding", "chunked"),)], ids=["length", "chunked"])
@pytest.mark.parametrize("body", [b"", b"x", BODY], ids=["empty", "short", "long"])
def test_an_encoded_body_is_decoded_to_the_same_bytes(
    headers: tuple[tuple[str, str], ...], body: bytes, is_slow: bool
) -> None:
    response = decoded(ServiceAnswer(201, (("A", "b"), *headers), body), is_slow=is_slow)
    assert (response.status, response.body) == (201, body)
    assert ("a", "b") in response.headers


def test_a_slow_body_has_twenty_pieces() -> None:
    assert len(encode(ServiceAnswer(200, (), BODY), is_slow=True).pieces) == 20
    assert encode(ServiceAnswer(200, (), BODY)).pieces == (BODY,)


def test_a_chunked_body_has_several_chunks_but_none_for_http_1_0() -> None:
    answer = ServiceAnswer(200, (("Transfer-Encoding", "chunked"),), BODY)
    assert len(encode(answer).pieces) == 6
    old = encode(answer, is_http10=True)
    assert old.pieces == (BODY,)
    assert b"chunked" not in old.head
    assert b"Content-Length: 1280\r\n" in old.head


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, None),
        ({"keep_alive": False}, b"Connection: close\r\n"),
        ({"is_http10": True}, b"Connection: keep-alive\r\n"),
    ],
)
def test_the_connection_header_says_whether_another_request_may_follow(
    changes: dict[str, bool], line: bytes | None
) -> None:
    encoded = encode(ServiceAnswer(200, (), b"x"), **changes)
    assert (line in encoded.head) if line else (b"Connection" not in encoded.head)
    assert encoded.keeps_connection is changes.get("keep_alive", True)


def test_a_wrong_length_is_sent_and_ends_the_connection() -> None:
    encoded = encode(ServiceAnswer(200, (("Content-Length", "9"),), b"1234"))
    assert b"Content-Length: 9\r\nConnection: close\r\n" in encoded.head
    assert (encoded.pieces, encoded.keeps_connection) == ((b"1234",), False)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_has_no_length(status: int) -> None:
    encoded = encode(ServiceAnswer(status, (("Transfer-Encoding", "chunked"),), b"x"))
    assert encoded.pieces == ()
    assert b"Content-Length" not in encoded.head
    assert b"chunked" not in encoded.head


def test_an_answer_to_head_has_the_length_of_the_body_and_no_body() -> None:
    encoded = encode(ServiceAnswer(200, (), b"12345"), is_head_request=True)
    assert b"Content-Length: 5\r\n" in encoded.head
    assert encoded.pieces == ()


def test_an_unknown_status_has_a_reason_phrase_too() -> None:
    assert encode(ServiceAnswer(599, (), b"")).head.startswith(b"HTTP/1.1 599 Unknown\r\n")
