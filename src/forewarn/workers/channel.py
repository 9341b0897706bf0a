"""A line between the owner and one worker: messages both ways, sockets along with them.

What waits to be sent waits under a key, and what is newer takes the place of what was not sent yet: a worker that is
slow costs no more than the fleet, whatever happens meanwhile. It is sent in batches, so that nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from forewarn.metadata.feed import Frames, frame

Key: TypeAlias = "str | tuple[str, str | int]"
GONE = "the other side is gone"
_BATCH_BYTES = 256 * 1024
_BATCH_FILES = 64


class Pipe:
    def __init__(
        self, sock: socket.socket, *, for_worker: bool, hear: Callable[[Any], None], lost: Callable[[str], None]
    ) -> None:
        """`for_worker`: what comes in is what workers are told. `lost` is called once, with why it is over."""
        self._sock, self._hear, self._lost = sock, hear, lost
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(for_worker=for_worker)
        self._waiting: OrderedDict[Key, tuple[bytes, socket.socket | None]] = OrderedDict()
        self._number = 0
        self._unsent = b""
        self._going: list[int] = []  # descriptors that go with what is not sent yet; copies of our own
        self._files: deque[int] = deque()  # that came, and whose message has not been read
        self._is_closed = self._is_writing = False
        self.size = 0  # messages that were ever put
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    @property
    def is_quiet(self) -> bool:
        """Whether all that was put is with the kernel."""
        return not self._waiting and not self._unsent

    def put(self, key: Key, payload: bytes, sock: socket.socket | None = None) -> None:
        """Send this, with the socket, after what waits already; or in the place of what waits under the same key."""
        if self._is_closed:
            return
        self._waiting[key] = (payload, sock)
        self._start_writing()

    def say(self, payload: bytes) -> None:
        """As `put`, for what nothing newer makes needless."""
        self.size += 1
        self.put(("say", self.size), payload)

    def take_file(self) -> int:
        """The descriptor that came with the message which is heard now."""
        return self._files.popleft()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        _close((*self._files, *self._going))

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._lost(why)

    def _read(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._sock, _BATCH_BYTES, _BATCH_FILES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
            return
        self._files.extend(files)
        if not data:
            self._end(GONE)
            return
        try:
            for message in self._frames.feed(data):
                self._hear(message)
                if self._is_closed:
                    return
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")

    def _start_writing(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._sock.fileno(), self._write)

    def _write(self) -> None:
        """One batch, if there is room for it; whoever else has something to do is next."""
        if not self._unsent:
            self._unsent = self._batch()
        if not self._unsent:
            self._is_writing = False
            self._loop.remove_writer(self._sock.fileno())
            return
        try:
            sent = socket.send_fds(self._sock, [self._unsent], self._going)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
            return
        self._unsent = self._unsent[sent:]
        _close(self._going)
        self._going = []

    def _batch(self) -> bytes:
        frames, size = [], 0
        while self._waiting and size < _BATCH_BYTES and len(self._going) < _BATCH_FILES:
            _, (payload, sock) = self._waiting.popitem(last=False)
            if sock is not None:
                if sock.fileno() < 0:
                    continue  # closed before anybody was handed it
                self._going.append(os.dup(sock.fileno()))
            self._number += 1
            frames.append(frame(self._number, payload))
            size += len(payload)
        return b"".join(frames)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)
