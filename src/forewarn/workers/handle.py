"""One worker as the owner sees it: its process, its line, what it holds and how far behind it is."""

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

from forewarn.assembly.pipe import Key, Pipe
from forewarn.metadata import feed
from forewarn.metadata.counted import Counted

_MODULE = "forewarn.assembly.worker"
WAITING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # that a worker hears of once it can do something about them
_FACTS_PER_ECHO = 250  # so that one who is told a whole fleet can be seen to come on


class Member:
    def __init__(
        self, slot: int, *, shared: int, hear: Callable[[Member, Any], None], lost: Callable[[Member], None]
    ) -> None:
        """Starts the process, which is given the file `shared`; OSError if there can be none now."""
        self.slot = slot
        self.is_ready = self.is_leaving = False
        self.has_answered = False  # ever
        self.missed = 0  # beats in a row since it last answered
        self.holds: set[int] = set()  # sockets that it accepts on
        self.behind_s = 0.0  # how long what was said last took to be done there
        self.counted = Counted()  # by this process, as far as it told
        self.over = asyncio.Event()  # it accepts nobody any more: another is to take its place
        self.gone = asyncio.Event()
        self.is_clear = asyncio.Event()  # it is ready, or will never be
        self._hear, self._lost = hear, lost
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._facts = 0  # that it was told
        self._awaited: dict[int, tuple[asyncio.Future[None], float]] = {}
        self._child, sock = _launch(shared)
        self._pipe = Pipe(sock, for_worker=False, hear=self._listen, lost=self._lose)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_serving(self) -> bool:
        return self.is_ready and not self.is_leaving and not self.gone.is_set()

    def tell(self, key: Key, raw: bytes, sock: socket.socket | None = None) -> None:
        self._pipe.put(key, raw, sock)
        self._facts += 1
        if self._facts % _FACTS_PER_ECHO == 0:
            self.echo()

    def say(self, message: feed.ToWorker) -> None:
        self._pipe.say(feed.pack(message))

    def beat(self) -> asyncio.Future[None]:
        """As `echo`, and counted as missed until it answers anything."""
        self.missed += 1
        return self.echo()

    def echo(self) -> asyncio.Future[None]:
        """Done once all that was told until now is done there, or the worker is gone."""
        return self._await(feed.Echo)

    def report(self) -> asyncio.Future[None]:
        """Done once what was seen there until now is told here, or the worker is gone."""
        return self._await(feed.Report)

    def silent_s(self) -> float:
        """For how long something it should have said is missing."""
        asked_at = next((at for _, at in self._awaited.values()), None)
        return 0.0 if asked_at is None else self._loop.time() - asked_at

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()

    async def bury(self) -> None:
        """Wait until nothing is left of the process."""
        await asyncio.to_thread(self._child.wait)

    def _await(self, asking: Callable[[int], feed.Echo | feed.Report]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        if self.gone.is_set():
            future.set_result(None)
            return future
        number = next(self._numbers)
        self._awaited[number] = (future, self._loop.time())
        self.say(asking(number))
        return future

    def _listen(self, message: Any) -> None:
        self._hear(self, message)
        if isinstance(message, feed.Echoed | feed.Seen) and message.id in self._awaited:
            self.has_answered, self.missed = True, 0
            future, asked_at = self._awaited.pop(message.id)
            self.behind_s = self._loop.time() - asked_at
            _finish(future)

    def _lose(self, why: str) -> None:
        self.gone.set()
        for future, _ in self._awaited.values():
            _finish(future)
        self._awaited.clear()
        self.over.set()
        self.is_clear.set()
        self._lost(self)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _launch(shared: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    surroundings = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
    # Until it can do something about them: what ends the whole group is the owner's to answer, and ends it with us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITING_SIGNALS)
    with theirs:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(shared)],
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
