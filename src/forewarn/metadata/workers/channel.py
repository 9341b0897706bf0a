"""A channel between the owner process and one worker: messages both ways, with file descriptors.

Unsent messages wait under a key, and a newer one replaces an older one: a slow worker costs no more memory than the
fleet's state. Messages are sent in batches, so that other work on the event loop does not wait.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

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
