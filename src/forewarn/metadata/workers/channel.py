"""A channel between the owner process and one worker: messages both ways, with file descriptors.

Unsent messages wait under a key, and a newer one replaces an older one: a slow worker costs no more memory than the
fleet's state. Messages are sent in batches, so that other work on the event loop does not wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeAlias

from forewarn.metadata.request_counters import RequestTotals
from forewarn.metadata.workers import messages
from forewarn.metadata.workers.messages import FrameDecoder, encode_frame

MessageKey: TypeAlias = "str | tuple[str, str | int]"  # of two unsent messages with one key, the newer is sent
PEER_GONE = "the other process closed the channel"  # a reason that `on_lost` gets
_MAX_BATCH_BYTES = 256 * 1024
_MAX_BATCH_FDS = 64


class WorkerChannel:
    """One end of the channel between the owner process and a worker: sends and receives messages.

    Create it inside a running event loop; it owns `sock`. An error that `on_message` raises makes the channel fail.
    `on_lost` is called once, when the channel has failed and is closed, but not after `close`.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        for_worker: bool,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._sock, self._message_callback, self._lost_callback = sock, on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(for_worker=for_worker)
        self._queue: OrderedDict[MessageKey, tuple[bytes, socket.socket | None]] = OrderedDict()
        self._frame_number = 0
        self._unsent = b""
        self._outgoing_fds: list[int] = []  # duplicates, sent with the next batch
        self._received_fds: deque[int] = deque()  # received, but their messages are not handled yet
        self._is_closed = self._is_writing = False
        self.sent_count = 0  # messages given to `send`
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    @property
    def is_flushed(self) -> bool:
        """Whether the kernel has taken everything to be sent so far; the other process may not have read it."""
        return not self._queue and not self._unsent

    def send_latest(self, key: MessageKey, payload: bytes, sock: socket.socket | None = None) -> None:
        """Queue an encoded message, in place of an unsent one with the same key, with a socket if given.

        A message that replaces an unsent one takes its place in the order. The other process gets a copy of the socket;
        if the caller closes its own before the message is sent, the message is not sent either.
        """
        if self._is_closed:
            return
        self._queue[key] = (payload, sock)
        self._start_writing()

    def send(self, payload: bytes) -> None:
        """Queue an encoded message after those that wait; it replaces no other, and no other replaces it."""
        self.sent_count += 1
        self.send_latest(("message", self.sent_count), payload)

    def take_received_fd(self) -> int:
        """Return the descriptor of the message being handled; the caller must close it."""
        return self._received_fds.popleft()

    def close(self) -> None:
        """Close the channel: its socket and the received file descriptors that were not taken."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        _close_fds((*self._received_fds, *self._outgoing_fds))

    def _fail(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._lost_callback(why)

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _MAX_BATCH_BYTES, _MAX_BATCH_FDS)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))
            return
        self._received_fds.extend(fds)
        if not data:
            self._fail(PEER_GONE)
            return
        try:
            for message in self._decoder.feed(data):
                self._message_callback(message)
                if self._is_closed:
                    return
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _start_writing(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._sock.fileno(), self._write)

    def _write(self) -> None:
        """Send one batch; other work on the event loop runs before the next one."""
        if not self._unsent:
            self._unsent = self._next_batch()
        if not self._unsent:
            self._is_writing = False
            self._loop.remove_writer(self._sock.fileno())
            return
        try:
            sent = socket.send_fds(self._sock, [self._unsent], self._outgoing_fds)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(str(error))
            return
        self._unsent = self._unsent[sent:]
        _close_fds(self._outgoing_fds)
        self._outgoing_fds = []

    def _next_batch(self) -> bytes:
        frames, size = [], 0
        while self._queue and size < _MAX_BATCH_BYTES and len(self._outgoing_fds) < _MAX_BATCH_FDS:
            _, (payload, sock) = self._queue.popitem(last=False)
            if sock is not None:
                if sock.fileno() < 0:
                    continue  # closed before it was sent
                self._outgoing_fds.append(os.dup(sock.fileno()))
            self._frame_number += 1
            frames.append(encode_frame(self._frame_number, payload))
            size += len(payload)
        return b"".join(frames)


def _close_fds(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


# The owner's handle of one worker: its process, its channel, its listeners, and its lag.

_WORKER_MODULE = "forewarn.metadata.workers.worker"
SIGNALS_BLOCKED_AT_START = (signal.SIGTERM, signal.SIGHUP)  # a worker unblocks them once it can handle them
_PAYLOADS_PER_ECHO = 250  # shows progress of a worker that receives a whole fleet


class WorkerHandle:
    """The owner's handle of one worker process; creating the handle starts the process.

    Its events are `start_settled` (the worker is ready, or its channel is gone), `stopped_accepting` (the slot needs
    another worker) and `disconnected` (the channel is gone; the process may still run). The pool sets `is_ready` and
    `is_draining`.
    """

    def __init__(
        self,
        slot: int,
        *,
        fault_quota_fd: int,
        on_message: Callable[[WorkerHandle, Any], None],
        on_lost: Callable[[WorkerHandle], None],
    ) -> None:
        self.slot = slot
        self.is_ready = self.is_draining = False  # the pool sets them
        self.has_ever_answered = False
        self.missed_heartbeats = 0  # in a row since its last answer
        self.socket_ids: set[int] = set()  # the sockets that it accepts on
        self.lag_s = 0.0  # how long it took to answer the last echo or report request
        self.request_counts = RequestTotals()  # from its last report
        self.stopped_accepting = asyncio.Event()  # its slot needs another worker
        self.disconnected = asyncio.Event()  # its channel is gone; the process may still run
        self.start_settled = asyncio.Event()  # it is ready, or has failed
        self._message_callback, self._lost_callback = on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self._request_ids = count(1)
        self._latest_sent = 0
        self._pending: dict[int, tuple[asyncio.Future[None], float]] = {}
        self._process, sock = _launch_process(fault_quota_fd)
        self._channel = WorkerChannel(sock, for_worker=False, on_message=self._on_message, on_lost=self._on_disconnect)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_serving(self) -> bool:
        """Whether the worker is ready (has the complete state), connected and not draining."""
        return self.is_ready and not self.is_draining and not self.disconnected.is_set()

    def send_latest(self, key: MessageKey, payload: bytes, sock: socket.socket | None = None) -> None:
        """Queue an encoded message for the worker, in place of an unsent one with the same key.

        The caller must not close `sock` before the message is sent. Every 250th call also requests an echo, so that a
        worker that receives a whole fleet shows progress.
        """
        self._channel.send_latest(key, payload, sock)
        self._latest_sent += 1
        if self._latest_sent % _PAYLOADS_PER_ECHO == 0:
            self.request_echo()

    def send(self, message: messages.ToWorker) -> None:
        """Queue a message for the worker after those that wait; no newer message replaces it."""
        self._channel.send(messages.encode_message(message))

    def send_heartbeat(self) -> asyncio.Future[None]:
        """Send an echo request and add 1 to `missed_heartbeats`; return a future for the worker's answer."""
        self.missed_heartbeats += 1
        return self.request_echo()

    def request_echo(self) -> asyncio.Future[None]:
        """Send an echo request; the returned future is done when the worker has applied all sent so far."""
        return self._request(messages.EchoRequest)

    def request_report(self) -> asyncio.Future[None]:
        """Ask the worker for its observations; return a future that is done when they have arrived here.

        They cover at most 5,000 VMs; the others come with later reports.
        """
        return self._request(messages.ReportRequest)

    def silent_s(self) -> float:
        """Return for how many seconds the oldest unanswered echo or report request has waited; 0 if none has."""
        requested_at = next((at for _, at in self._pending.values()), None)
        return 0.0 if requested_at is None else self._loop.time() - requested_at

    def kill(self) -> None:
        """Send SIGKILL to the process, if it still runs; does not wait for its end."""
        if self._process.poll() is None:
            self._process.kill()

    async def wait_for_exit(self) -> None:
        """Wait, in a thread and without a time limit, until the process has exited; does not end it."""
        await asyncio.to_thread(self._process.wait)

    def _request(
        self, make_request: Callable[[int], messages.EchoRequest | messages.ReportRequest]
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self.disconnected.is_set():
            future.set_result(None)
            return future
        number = next(self._request_ids)
        self._pending[number] = (future, self._loop.time())
        self.send(make_request(number))
        return future

    def _on_message(self, message: Any) -> None:
        self._message_callback(self, message)
        if isinstance(message, messages.EchoReply | messages.ObservationReport) and message.id in self._pending:
            self.has_ever_answered, self.missed_heartbeats = True, 0
            future, requested_at = self._pending.pop(message.id)
            self.lag_s = self._loop.time() - requested_at
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


def _launch_process(fault_quota_fd: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    owner_end, worker_end = socket.socketpair()
    environment = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    # A signal to the whole process group is the owner's to handle until the worker can handle it itself.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_BLOCKED_AT_START)
    with worker_end:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", _WORKER_MODULE, str(worker_end.fileno()), str(fault_quota_fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=[worker_end.fileno(), fault_quota_fd],
            )
        except BaseException:
            owner_end.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child, owner_end
