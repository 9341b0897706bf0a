"""Encoding of requests, and incremental parsing of responses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.client.effects import IncompleteResponse
from forewarn.client.endpoint import Endpoint
from forewarn.client.http1 import MAX_BODY_BYTES, MAX_HEAD_BYTES, ResponseReader, encode_request
from forewarn.client.requests import approval_request, poll_request
from forewarn.protocol.http_message import HttpResponse

HERE = Endpoint(host="127.0.0.1", port=8254)
PLAIN = b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\nETag: "1"\r\n\r\nbody'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=1\r\nbo\r\n2\r\ndy\r\n0\r\nTrailer: x\r\n\r\n"
BARE = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 40\r\n\r\n"
HINTED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


def read(*pieces: bytes) -> tuple[HttpResponse, ResponseReader]:
    incoming = ResponseReader()
    for piece in pieces:
        response = incoming.feed(piece)
        if response is not None:
            return response, incoming
    raise AssertionError("not whole")


def test_a_poll_has_a_host_and_no_header_that_services_reject() -> None:
    """Spec §2.2, §2.3."""
    lines = encode_request(poll_request(tag='"1-2"', hold_s=10), HERE).decode().split("\r\n")
    assert lines[0] == "GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1"
    assert {"host: 127.0.0.1:8254", "metadata: true", 'if-none-match: "1-2"', "prefer: wait=10"} <= set(lines)
    assert lines[-2:] == ["", ""]
    assert not [line for line in lines if line.startswith(("origin", "x-forwarded-for", "content-length"))]


def test_an_approval_has_a_content_length() -> None:
    request = approval_request(["A"])
    raw = encode_request(request, Endpoint(host="::1"))
    assert raw.endswith(b"\r\n\r\n" + request.body)
    assert f"content-length: {len(request.body)}\r\n".encode() in raw
    assert b"host: [::1]\r\n" in raw


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [(PLAIN, 200, b"body"), (CHUNKED, 200, b"body"), (BARE, 304, b""), (HINTED, 200, b"body")],
    ids=["length", "chunked", "no body", "after a hint"],
)
def test_a_response_is_parsed_the_same_in_any_pieces(raw: bytes, status: int, body: bytes) -> None:
    whole, incoming = read(raw)
    assert (whole.status, whole.body, incoming.can_keep_alive) == (status, body, True)
    assert read(*(raw[at : at + 1] for at in range(len(raw))))[0] == whole


def test_without_a_length_the_end_of_the_connection_ends_the_response() -> None:
    response, incoming = read(b"HTTP/1.0 200 OK\r\n\r\nbo", b"dy", b"")
    assert (response.body, incoming.can_keep_alive) == (b"body", False)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True),
    ],
)
def test_a_connection_is_kept_as_the_server_asks(head: bytes, keeps: bool) -> None:
    assert read(head + b"\r\nContent-Length: 0\r\n\r\n")[1].can_keep_alive is keeps


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b""], "closed before the answer began"),
        ([PLAIN[:-1], b""], "closed in the middle"),
        ([CHUNKED[:-4], b""], "closed in the middle"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "the answer is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n"], "gives its length as '-4'"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"], f"longer than {MAX_BODY_BYTES}"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "gives its length as 'zz'"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"x" * (MAX_BODY_BYTES + 1)], f"longer than {MAX_BODY_BYTES}"),
        ([b"H" * (MAX_HEAD_BYTES + 1)], "head of the answer is too long"),
        ([b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n"], "the answer is not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000], "how long its chunks are"),
    ],
    ids=[
        *("nothing", "short", "short chunks", "ssh", "negative", "huge", "bad chunk", "endless", "long head"),
        *("long status", "long size"),
    ],
)
def test_an_invalid_response_raises_an_error(pieces: list[bytes], reason: str) -> None:
    with pytest.raises(IncompleteResponse, match=reason):
        read(*pieces)


@pytest.mark.timeout(60)  # it takes a fraction of a second; parsing from the start each time would take ten minutes
def test_chunks_are_not_parsed_again_with_each_piece() -> None:
    raw = CHUNKED.replace(b"2;x=1\r\nbo\r\n", b"1\r\nx\r\n" * 20_000)
    response, _ = read(*(raw[at : at + 1] for at in range(len(raw))))
    assert response.body == b"x" * 20_000 + b"dy"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED[:60], PLAIN[:30]]))
def test_any_bytes_are_parsed_or_rejected(noise: bytes, start: bytes) -> None:
    incoming = ResponseReader()
    try:
        any(incoming.feed(piece) for piece in (start + noise, noise, b""))
    except IncompleteResponse:
        pass
