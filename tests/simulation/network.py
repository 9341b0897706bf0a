"""Connections in memory between agents and the metadata server, with a delay, and without loss of order."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from typing import Any

from tests.simulation.virtual_loop import NETWORK_DELAY_S


class PipeTransport(asyncio.Transport):
    """One end of a connection. What is written arrives at the other end after NETWORK_DELAY_S.

    The protocol is called in the context of its process, so that its tasks belong to that process.
    """

    def __init__(self, protocol: asyncio.Protocol, context: Context) -> None:
        super().__init__()
        self._protocol, self._context = protocol, context
        self._loop = asyncio.get_running_loop()
        self._other: PipeTransport | None = None
        self._on_the_way: deque[bytes | None] = deque()  # to this end; None: the end of the stream
        self._arrived: deque[bytes | None] = deque()
        self._is_reading, self._is_closed = True, False

    def connect_to(self, other: PipeTransport) -> None:
        """Make a connection of these two ends."""
        self._other, other._other = other, self
        for end in (self, other):
            end._loop.call_soon(end._protocol.connection_made, end, context=end._context)

    def write(self, data: Any) -> None:
        if not self._is_closed:
            self._send(bytes(data))

    def write_eof(self) -> None:
        if not self._is_closed:
            self._send(None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Close this end; the other one reads what is on the way, then the end of the stream."""
        if not self._is_closed:
            self._send(None)
            self._lose(None)

    def abort(self) -> None:
        """Reset the connection: both ends lose it at once, with what is on the way."""
        for end in (self, self._other):
            if end is not None:
                end._on_the_way.clear()
                end._arrived.clear()
                end._lose(None if end is self else ConnectionResetError("the connection was reset"))

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._loop.call_soon(self._deliver, context=self._context)

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered: everything written is on its way at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *option: Any) -> None:
        """Accept SO_LINGER, which the server sets before it aborts."""

    def _send(self, data: bytes | None) -> None:
        assert self._other is not None
        self._other._on_the_way.append(data)  # in order, while timers of one instant may run in any order
        self._loop.call_later(NETWORK_DELAY_S, self._other._receive, context=self._other._context)

    def _receive(self) -> None:
        if self._on_the_way:
            self._arrived.append(self._on_the_way.popleft())
            self._deliver()

    def _deliver(self) -> None:
        while self._arrived and self._is_reading and not self._is_closed:
            data = self._arrived.popleft()
            if data is not None:
                self._protocol.data_received(data)
            elif not self._protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)
