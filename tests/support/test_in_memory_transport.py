"""The in-memory transport behaves as a socket does, where tests rely on it."""

from __future__ import annotations

import asyncio

from tests.support.in_memory_transport import InMemoryTransport


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, InMemoryTransport)
        self.transport = transport
        transport.set_write_buffer_limits(high=4)

    def data_received(self, data: bytes) -> None:
        self.told.append(data)
        self.transport.write(data)

    def eof_received(self) -> None:
        self.told.append("eof")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_packets_arrive_one_by_one_and_eof_closes_the_transport() -> None:
    async def scenario() -> None:
        echo = Echo()
        wire = InMemoryTransport(echo)
        wire.send(b"one")
        wire.send(b"two")
        wire.send_eof()
        await turns()
        assert (wire.received, wire.is_closed) == (b"onetwo", True)
        assert echo.told == [b"one", b"two", "eof", "lost"]

    asyncio.run(scenario())


def test_unread_data_is_buffered_and_pauses_the_writer() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_packets_wait_while_reading_is_paused() -> None:
    async def scenario() -> None:
        echo = Echo()
        wire = InMemoryTransport(echo)
        wire.pause_reading()
        wire.send(b"one")
        assert echo.told == []
        wire.resume_reading()
        await turns()
        assert echo.told == [b"one"]

    asyncio.run(scenario())
