"""A response that goes out in drips (spec §11, slow body): its head at once, its body a piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_STEPS = 20  # pieces of a body, at most


class Pour:
    def __init__(self, *, write: Callable[[bytes], None], raw: bytes, take_s: float, done: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._write, self._done = write, done
        head = raw.index(b"\r\n\r\n") + 4
        self._rest = raw[head:]
        self._size = max(1, -(-len(self._rest) // _STEPS))
        self._every_s = take_s / max(1, -(-len(self._rest) // self._size))
        write(raw[:head])
        self._timer = self._loop.call_later(self._every_s, self._drip)

    def finish(self) -> None:
        """The rest at once."""
        self.stop()
        rest, self._rest = self._rest, b""
        self._write(rest)
        self._done()

    def stop(self) -> None:
        self._timer.cancel()

    def _drip(self) -> None:
        if len(self._rest) <= self._size:
            self.finish()
            return
        piece, self._rest = self._rest[: self._size], self._rest[self._size :]
        self._write(piece)
        self._timer = self._loop.call_later(self._every_s, self._drip)
