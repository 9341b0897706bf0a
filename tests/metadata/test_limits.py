"""How much a caller may ask of us (spec §10, last row; §5.2)."""

from __future__ import annotations

import pytest

from forewarn.metadata import Limits

SHORT = Limits(request_s=0.2, linger_s=0.2)
HEAD_BYTES, BODY_BYTES = 16 * 1024, 64 * 1024


def padded(request_bytes, size):
    """A poll whose header block has exactly this many bytes."""
    bare = len(request_bytes(X_Padding=""))
    return request_bytes(X_Padding="x" * (size - bare))


def test_a_header_block_of_16_kib_is_served_and_a_byte_more_gets_431(play, request_bytes):
    async def story(world):
        client = await world.connect()
        client.send(padded(request_bytes, HEAD_BYTES))
        assert (await client.reply()).status == 200
        client.send(padded(request_bytes, HEAD_BYTES + 1))
        assert (await client.reply()).status == 431
        assert await client.is_closed()

    play(story)


def test_a_header_block_that_never_ends_gets_431(play):
    async def story(world):
        client = await world.connect()
        client.send(b"GET / HTTP/1.1\r\n" + b"X-Header: x\r\n" * 20_000)
        assert (await client.reply()).status == 431
        assert await client.is_closed()

    play(story)


def approval(size):
    body = b'{"StartRequests":[]}'
    return body + b" " * (size - len(body))


def chunked(request_bytes, body, chunk=1000, trailer=b""):
    pieces = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    head = request_bytes(method="POST", Transfer_Encoding="chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"


def test_a_body_of_64_kib_is_served_and_a_byte_more_gets_413(play, request_bytes):
    """Spec §5.2."""

    async def story(world):
        client = await world.connect()
        assert (await client.ask(method="POST", body=approval(BODY_BYTES))).status == 200
        client.send(request_bytes(method="POST", body=approval(BODY_BYTES + 1)))
        assert (await client.reply()).status == 413
        assert await client.is_closed()

    play(story)


@pytest.mark.parametrize("chunk", [1, 7, 5000, 65_536])
def test_a_chunked_body_is_served_up_to_64_kib(play, request_bytes, chunk):
    """Spec §5.2: what counts is the body, however it is cut."""

    async def story(world):
        client = await world.connect()
        client.send(chunked(request_bytes, approval(BODY_BYTES), chunk))
        assert (await client.reply()).status == 200
        client.send(chunked(request_bytes, approval(BODY_BYTES + 1), chunk))
        assert (await client.reply()).status == 413
        assert await client.is_closed()

    play(story)


def test_a_chunked_body_of_frills_alone_gets_413(play, request_bytes):
    """Chunk extensions and trailers are bytes too."""

    async def story(world):
        client = await world.connect()
        client.send(request_bytes(method="POST", Transfer_Encoding="chunked") + b"0\r\n")
        client.send(b"X-Trailer: x\r\n" * 60_000)
        assert (await client.reply()).status in (400, 413)
        assert await client.is_closed()

    play(story)


def test_what_follows_a_chunked_body_is_no_header(play):
    """Spec §2.2: a Metadata header must be a header."""

    async def story(world):
        client = await world.connect()
        client.send(
            b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'14\r\n{"StartRequests":[]}\r\n0\r\nMetadata: true\r\n\r\n'
        )
        reply = await client.reply()
        assert reply.status == 400
        assert b"Required metadata header not specified" in reply.body

    play(story)


@pytest.mark.parametrize(
    "begun",
    [
        b"G",
        b"GET /metadata/scheduledevents HTTP/1.1\r\nMetadata:",
        b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nContent-Length: 5\r\n\r\n{",
    ],
    ids=["first byte", "headers", "body"],
)
def test_a_request_that_is_not_whole_in_time_gets_408(play, begun):
    async def story(world):
        client = await world.connect()
        assert (await client.ask()).status == 200
        client.send(begun)
        assert (await client.reply()).status == 408
        assert await client.is_closed()

    play(story, limits=SHORT)


def test_a_dripping_request_gets_408_too(play):
    """Each byte buys no more time."""

    async def story(world):
        client = await world.connect()
        client.send(b"GET / HTTP/1.1\r\nX: ")
        while not world.server.counters.responses_by_status[408]:
            client.send(b"x")
            await world.pause()
        assert (await client.reply()).status == 408

    play(story, limits=SHORT)


def test_a_caller_that_says_nothing_is_hung_up_on(play):
    async def story(world):
        silent, served = await world.connect(), await world.connect()
        assert (await served.ask()).status == 200
        assert await silent.is_closed()
        assert await served.is_closed()

    play(story, limits=Limits(idle_s=0.5))


def test_empty_lines_buy_no_time(play):
    """They may stand before a request, and are not one."""

    async def story(world):
        client = await world.connect()
        client.send(b"\r\n\r\n")
        assert (await client.ask()).status == 200
        while world.server.connection_count:
            client.send(b"\r\n")
            await world.pause()

    play(story, limits=Limits(idle_s=0.5))


def test_a_slow_answer_is_not_idle(play, request_bytes):
    async def story(world):
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=b'{"StartRequests":[]}'))
        await world.until(lambda: world.backend.waiting == 1)
        silent = await world.connect()
        assert await silent.is_closed()
        world.backend.is_open.set()
        assert (await client.reply()).status == 200

    play(story, limits=Limits(idle_s=0.5))


def test_a_vm_may_have_so_many_connections_and_its_neighbour_as_many(play):
    async def story(world):
        for _ in range(3):
            assert (await world.ask(vm="a")).status == 200
        assert await (await world.connect("a")).is_closed()
        assert world.server.counters.refused == 1
        assert (await world.ask(vm="b")).status == 200
        world.clients[0].close()
        await world.until(lambda: world.server.connection_count == 3)
        assert (await world.ask(vm="a")).status == 200

    play(story, limits=Limits(connections_per_vm=3))


def test_whatever_one_vm_opens_there_is_room_for_others_and_never_more_than_there_are_files(play):
    """Spec §7.4: strangers and one greedy VM keep no other from its document."""

    async def story(world):
        for _ in range(2):
            assert (await world.ask(vm="a")).status == 200
        assert await (await world.connect("a")).is_closed()
        for _ in range(2):
            assert (await world.ask(vm="b")).status == 200
        assert world.server.connection_count == 4

    play(story, limits=Limits(connections=8))


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n",
        b"GET / HTTP/1.1\n\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
    ],
    ids=[
        "TLS",
        "greeting",
        "bare line feeds",
        "HTTP/0.9",
        "no colon",
        "HTTP/2",
        "two lengths",
        "length and chunks",
        "negative length",
        "no chunk size",
    ],
)
def test_what_is_not_http_gets_400_at_once_and_the_next_caller_is_served(play, junk):
    async def story(world):
        client = await world.connect()
        client.send(junk)
        assert (await client.reply()).status == 400
        assert await client.is_closed()
        assert (await world.ask()).status == 200

    play(story)
