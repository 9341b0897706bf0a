"""The proxy between a handler and the service: observes every request and gives substitute answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Callable
from functools import partial

from forewarn.crash_test.answers import SpoiledAnswer
from forewarn.crash_test.proxy_connection import ActiveSubstitute, AskPrepared, ObservedEndpoint, ProxyConnection
from forewarn.crash_test.timeline import ConnectionOpened, Observation, Poller

_log = logging.getLogger(__name__)

_BACKLOG = 128
_MAX_CONNECTIONS = 256  # open at a time; each needs two descriptors
_ACCEPT_PAUSE_S = 0.1  # after accepting has failed, such as without free descriptors


class Proxy:
    """An HTTP proxy in front of the metadata endpoint of one VM, which observes one client's requests.

    It passes on the bytes of requests and answers as they are, and keeps connections alive. A request is recorded when
    its answer was sent or the client has left, with the time at which it arrived. `ask_prepared` is awaited with the
    time of each approval before the approval is passed on.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        upstream: tuple[str, int],
        vm: str,
        by: Poller,
        now: Callable[[], float],
        record: Callable[[Observation], None],
        ask_prepared: AskPrepared | None = None,
    ) -> None:
        self._listener = listener
        self._address = listener.getsockname()
        self._endpoint = ObservedEndpoint(
            upstream=upstream, vm=vm, by=by, now=now, record=record, ask_prepared=ask_prepared
        )
        self._substitutes = ActiveSubstitute()
        self._connections: set[asyncio.Task[None]] = set()
        self._is_started = self._is_closed = False
        self._is_accepting = False  # the event loop watches the listener
        self._is_refusing = False  # the listener does not listen
        self._resets_connections = False  # instead of refusing them, where the listener cannot stop listening
        self._resume_timer: asyncio.TimerHandle | None = None

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open now."""
        return len(self._connections)

    @property
    def substitute_times_left(self) -> int | None:
        """How often the substitute answer may still be given (0: no more); None: no limit, or none is set."""
        return self._substitutes.times_left

    async def start(self) -> None:
        """Begin to accept connections, unless a substitute that refuses them is set; returns at once."""
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._is_started = True
        if self._must_refuse:
            self._refuse()
        else:
            self._accept_connections()

    async def close(self) -> None:
        """Close the listener and every connection; may be called twice."""
        self._is_closed = True
        self._stop_accepting()
        self._listener.close()
        await self._close_connections()

    def substitute(self, answer: SpoiledAnswer | None, times: int | None = None) -> None:
        """Give this answer in place of the service's from now on; None: the service's own.

        Which answer a request gets is decided when the service has answered it, so that a long poll that is held now
        gets the new one too; only `withholds_request` applies from the next request on. An edit that leaves an answer
        as it is does not count.

        `refuses_connections` lasts until the next call, ignoring `times`. Open connections close, and the listener
        stops listening (shutdown), so that the system refuses new ones; then the same socket listens again, even one of
        another network namespace. Where the system does not allow that, new connections are accepted and reset.
        """
        self._substitutes.answer, self._substitutes.times_left = answer, times
        if not self._is_started or self._is_closed:
            return
        if self._must_refuse and not self._is_refusing and not self._resets_connections:
            self._refuse()
        elif not self._must_refuse:
            self._listen_again()

    @property
    def _must_refuse(self) -> bool:
        answer = self._substitutes.answer
        return answer is not None and answer.refuses_connections

    def _refuse(self) -> None:
        self._stop_accepting()
        for connection in self._connections:
            connection.cancel()
        try:
            # On Linux this ends listening and keeps the socket, with its namespace, for another listen().
            self._listener.shutdown(socket.SHUT_RD)
        except OSError:
            self._resets_connections = True
            self._accept_connections()
            return
        self._is_refusing = True
        try:
            self._listener.bind(self._address)  # Linux has freed the port if it had chosen it itself
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is bound still
                raise

    def _listen_again(self) -> None:
        self._resets_connections = False
        if self._is_refusing:
            self._is_refusing = False
            self._listener.listen(_BACKLOG)
            self._accept_connections()

    def _accept_connections(self) -> None:
        self._resume_timer = None
        if not self._is_accepting and not self._is_refusing and not self._is_closed:
            self._is_accepting = True
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_accepting(self) -> None:
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        if self._is_accepting:
            self._is_accepting = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("the proxy of VM %s cannot accept a connection: %s", self._endpoint.vm, error)
            self._stop_accepting()
            loop = asyncio.get_running_loop()
            self._resume_timer = loop.call_later(_ACCEPT_PAUSE_S, self._accept_connections)
            return
        opened = ConnectionOpened(at=self._endpoint.now(), vm=self._endpoint.vm, by=self._endpoint.by)
        self._endpoint.record(opened)
        if self._resets_connections or len(self._connections) >= _MAX_CONNECTIONS:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        client.setblocking(False)
        connection = ProxyConnection(self._endpoint, self._substitutes, client)
        task = asyncio.get_running_loop().create_task(connection.run())
        self._connections.add(task)
        task.add_done_callback(partial(self._forget_connection, client))

    def _forget_connection(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        client.close()  # open still if the task was cancelled before it ran

    async def _close_connections(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
