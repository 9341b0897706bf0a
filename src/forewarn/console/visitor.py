"""One connection to the console: bounded in what it says before it is known, and in how long that takes.

Strangers get this far. What they could fill up here would be missing where VMs are told of their events.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 60.0  # real time, from when a request could begin to its last byte
READING_S = 60.0  # real time, for the part of an answer that we hold back until somebody reads


class Visitor(H11Protocol):
    """h11 and not what is faster: it alone bounds the head of a request."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.gone = asyncio.Event()
        self._overdue: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)
        self.gone.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(READING_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _await_request(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self._overdue = self.loop.call_later(REQUEST_S, self._look)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _look(self) -> None:
        """Whoever has said all waits for us, and not we for them."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()
