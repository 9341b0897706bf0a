"""The wire in memory behaves as a socket does, where tests rely on it."""

from __future__ import annotations

import asyncio

from tests.support.in_memory_transport import InMemoryTransport


class Echo(asyncio.Protocol):
    def __init__(self):
        self.told = []

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=4)

    def data_received(self, data):
        self.told.append(data)
        self.transport.write(data)

    def eof_received(self):
        self.told.append("eof")

    def pause_writing(self):
        self.told.append("pause")

    def resume_writing(self):
        self.told.append("resume")

    def connection_lost(self, exc):
        self.told.append("lost")


async def turns():
    for _ in range(3):
        await asyncio.sleep(0)


def test_packets_arrive_one_by_one_and_the_end_closes_the_wire():
    async def story():
        echo = Echo()
        wire = InMemoryTransport(echo)
        wire.send(b"one")
        wire.send(b"two")
        wire.send_eof()
        await turns()
        assert (wire.received, wire.is_closed) == (b"onetwo", True)
        assert echo.told == [b"one", b"two", "eof", "lost"]

    asyncio.run(story())


def test_what_is_not_read_is_kept_and_the_writer_told():
    async def story():
        echo = Echo()
        wire = InMemoryTransport(echo)
        wire.stop_reading()
        wire.send(b"three")
        assert (wire.received, wire.get_write_buffer_size()) == (b"", 5)
        wire.close()
        assert not wire.is_closed
        wire.continue_reading()
        await turns()
        assert (wire.received, wire.is_closed) == (b"three", True)
        assert echo.told == [b"three", "pause", "resume", "lost"]

    asyncio.run(story())


def test_while_reading_is_paused_packets_wait():
    async def story():
        echo = Echo()
        wire = InMemoryTransport(echo)
        wire.pause_reading()
        wire.send(b"one")
        assert echo.told == []
        wire.resume_reading()
        await turns()
        assert echo.told == [b"one"]

    asyncio.run(story())
