"""The owner's handle of one worker: its process, its channel, its listeners, and its lag."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from forewarn.metadata.request_counters import RequestTotals
from forewarn.workers import messages
from forewarn.workers.channel import MessageKey, WorkerChannel

_WORKER_MODULE = "forewarn.workers.worker"
SIGNALS_BLOCKED_AT_START = (signal.SIGTERM, signal.SIGHUP)  # that a worker hears of once it can do something about them
_FACTS_PER_ECHO = 250  # so that one who is told a whole fleet can be seen to come on


class WorkerHandle:
    def __init__(
        self, slot: int, *, shared: int, hear: Callable[[WorkerHandle, Any], None], lost: Callable[[WorkerHandle], None]
    ) -> None:
        """Starts the process, which is given the file `shared`; OSError if there can be none now."""
        self.slot = slot
        self.is_ready = self.is_draining = False
        self.has_ever_answered = False  # ever
        self.missed_heartbeats = 0  # beats in a row since it last answered
        self.socket_ids: set[int] = set()  # sockets that it accepts on
        self.lag_s = 0.0  # how long what was said last took to be done there
        self.request_counts = RequestTotals()  # by this process, as far as it told
        self.stopped_accepting = asyncio.Event()  # it accepts nobody any more: another is to take its place
        self.disconnected = asyncio.Event()
        self.start_settled = asyncio.Event()  # it is ready, or will never be
        self._message_callback, self._lost_callback = hear, lost
        self._loop = asyncio.get_running_loop()
        self._request_ids = count(1)
        self._facts_sent = 0  # that it was told
        self._pending: dict[int, tuple[asyncio.Future[None], float]] = {}
        self._process, sock = _launch_process(shared)
        self._channel = WorkerChannel(sock, for_worker=False, hear=self._on_message, lost=self._on_disconnect)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_serving(self) -> bool:
        return self.is_ready and not self.is_draining and not self.disconnected.is_set()

    def send_fact(self, key: MessageKey, raw: bytes, sock: socket.socket | None = None) -> None:
        self._channel.send_latest(key, raw, sock)
        self._facts_sent += 1
        if self._facts_sent % _FACTS_PER_ECHO == 0:
            self.request_echo()

    def send(self, message: messages.ToWorker) -> None:
        self._channel.send(messages.encode_message(message))

    def send_heartbeat(self) -> asyncio.Future[None]:
        """As `echo`, and counted as missed until it answers anything."""
        self.missed_heartbeats += 1
        return self.request_echo()

    def request_echo(self) -> asyncio.Future[None]:
        """Done once all that was told until now is done there, or the worker is gone."""
        return self._request(messages.EchoRequest)

    def request_report(self) -> asyncio.Future[None]:
        """Done once what was seen there until now is told here, or the worker is gone."""
        return self._request(messages.ReportRequest)

    def silent_s(self) -> float:
        """For how long something it should have said is missing."""
        asked_at = next((at for _, at in self._pending.values()), None)
        return 0.0 if asked_at is None else self._loop.time() - asked_at

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    async def wait_for_exit(self) -> None:
        """Wait until nothing is left of the process."""
        await asyncio.to_thread(self._process.wait)

    def _request(self, asking: Callable[[int], messages.EchoRequest | messages.ReportRequest]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self.disconnected.is_set():
            future.set_result(None)
            return future
        number = next(self._request_ids)
        self._pending[number] = (future, self._loop.time())
        self.send(asking(number))
        return future

    def _on_message(self, message: Any) -> None:
        self._message_callback(self, message)
        if isinstance(message, messages.EchoReply | messages.ObservationReport) and message.id in self._pending:
            self.has_ever_answered, self.missed_heartbeats = True, 0
            future, asked_at = self._pending.pop(message.id)
            self.lag_s = self._loop.time() - asked_at
            _resolve(future)

    def _on_disconnect(self, why: str) -> None:
        self.disconnected.set()
        for future, _ in self._pending.values():
            _resolve(future)
        self._pending.clear()
        self.stopped_accepting.set()
        self.start_settled.set()
        self._lost_callback(self)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _launch_process(shared: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    surroundings = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    # Until it can do something about them: what ends the whole group is the owner's to answer, and ends it with us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_BLOCKED_AT_START)
    with theirs:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", _WORKER_MODULE, str(theirs.fileno()), str(shared)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=surroundings,
                pass_fds=[theirs.fileno(), shared],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child, ours
