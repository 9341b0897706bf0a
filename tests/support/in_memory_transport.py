"""An asyncio transport in memory between a protocol and a test, without delays."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class InMemoryTransport(asyncio.Transport):
    """Delivers the test's packets at once; buffers what the test does not read, as a kernel does."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.received = b""  # everything that the protocol wrote and the test has read
        self.is_closed = False
        self.was_reset = False
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._packets: deque[bytes | None] = deque()  # None: end of the stream
        self._unread = bytearray()
        self._high_water = 64 * 1024
        self._test_reads, self._protocol_reads, self._is_closing, self._is_full = True, True, False, False
        protocol.connection_made(self)

    def send(self, packet: bytes) -> None:
        if packet:
            self._packets.append(packet)
            self._deliver()

    def send_eof(self) -> None:
        self._packets.append(None)
        self._deliver()

    def stop_reading(self) -> None:
        self._test_reads = False

    def continue_reading(self) -> None:
        self._test_reads = True
        self.received += self._unread
        self._unread.clear()
        if self._is_full and not self.is_closed:
            self._is_full = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._lose_connection()

    def _deliver(self) -> None:
        while self._packets and self._protocol_reads and not (self._is_closing or self.is_closed):
            packet = self._packets.popleft()
            if packet is not None:
                self._protocol.data_received(packet)
            elif not self._protocol.eof_received():
                self.close()

    def _lose_connection(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    # The methods of asyncio.Transport that the protocol calls.

    def write(self, data: Any) -> None:
        if self.is_closed or self._is_closing:
            return
        if self._test_reads:
            self.received += bytes(data)
            return
        self._unread += data
        if len(self._unread) > self._high_water and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        self._is_closing = True
        if not self._unread:
            self._lose_connection()

    def abort(self) -> None:
        self._unread.clear()
        self._lose_connection()

    def pause_reading(self) -> None:
        self._protocol_reads = False

    def resume_reading(self) -> None:
        self._protocol_reads = True
        self._loop.call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = high if high is not None else self._high_water

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *option: Any) -> None:
        """Record a reset: the only option that is ever set is SO_LINGER."""
        self.was_reset = True
