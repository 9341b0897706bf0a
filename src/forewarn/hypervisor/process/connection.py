"""The line to one keeper: what it says is taken off its socket as it comes, answers to acts are kept by their ids."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable
from forewarn.hypervisor.line import LONGEST_LINE, Exit, Hello, Offer, Said, order_for, read_line, write_line

log = logging.getLogger(__name__)
_CHUNK = 64 * 1024
_MOST_FDS = 16
_GOES_DOWN = frozenset({Verb.EVICT, Verb.DELETE, Verb.POWER_OFF, Verb.DEALLOCATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Something other than an answer."""

    hello: Hello | None = None
    listener: Offer | None = None
    exited: Exit | None = None
    fds: tuple[int, ...] = ()


class Link:
    """Built inside a running loop, on a connected unix socket, which is the link's from then on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._heard: asyncio.Queue[Heard | None] = asyncio.Queue()
        self._answers: dict[str, Said] = {}
        self._verbs: dict[str, Verb] = {}
        self._changed = asyncio.Event()
        self.hello = Hello(vm="", pid=0, started="")
        self.boot_id = ""
        self.state = ""
        self.is_closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    @property
    def pid(self) -> int:
        return self.hello.pid

    @property
    def program(self) -> tuple[str, ...] | None:
        return self.hello.program

    def meet(self, hello: Hello) -> None:
        """From here on it is known whose line this is, and what its keeper has done already."""
        self.hello, self.boot_id, self.state = hello, hello.boot_id, hello.state
        known = ((act, Said(act=act, ok=told.ok, note=told.note)) for act, told in hello.known.items())
        self._answers.update(known)

    async def hear(self) -> Heard | None:
        """The next thing said that is no answer; None: the keeper has hung up."""
        return await self._heard.get()

    def discard(self) -> None:
        """Let go of what was said and will not be listened to."""
        while not self._heard.empty():
            heard = self._heard.get_nowait()
            for fd in heard.fds if heard else ():
                os.close(fd)

    def say(self, message: dict[str, Any]) -> None:
        """Lines are short: a keeper that leaves no room for one has stopped reading, and is hung up on."""
        if self.is_closed:
            return
        line = write_line(message)
        try:
            whole = self._sock.send(line) == len(line)
        except OSError:
            whole = False
        if not whole:
            self.close()

    def order(self, act: Act, duration_s: float) -> None:
        """Say what is to be done; said again, a keeper answers again and does nothing twice."""
        if (old := self._answers.get(act.id)) is not None and not old.is_final:
            del self._answers[act.id]
        self._verbs[act.id] = act.verb
        self.say(order_for(act, duration_s))

    def thaw(self, act_id: str) -> None:
        self.say({"thaw": act_id})

    def outcome_of(self, act_id: str) -> Said | None:
        """The final answer, if it is known."""
        said = self._answers.get(act_id)
        return said if said is not None and said.is_final else None

    async def answer(self, act_id: str, *, within_s: float, final: bool) -> Said | None:
        """The answer to an act, or with `final` how it ended; None: there was none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (said := self._answers.get(act_id)) is None or (final and not said.is_final):
                    if self.is_closed:
                        raise Unavailable(f"the keeper of VM {self.hello.vm!r} has hung up: ask again when it is back")
                    await self._changed.wait()
        return said

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())
        self._heard.put_nowait(None)
        self._tell()

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK, _MOST_FDS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        for fd in fds:
            os.set_inheritable(fd, False)  # else an operator's command would have a VM's socket, and keep it after us
        self._fds.extend(fds)
        self._buffer += data
        if not data:
            self.close()
            return
        try:
            self._take_lines()
        except Rejected as error:
            log.warning("the keeper of VM %r is hung up on: %s", self.hello.vm, error)
            self.say({"refused": str(error)})
            self.close()

    def _take_lines(self) -> None:
        *lines, rest = self._buffer.split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise Rejected(f"this line is longer than {LONGEST_LINE} bytes: {bytes(rest[:200])!r}")
        self._buffer = rest
        for line in lines:
            self._take(read_line(bytes(line)))
        if len(self._fds) > _MOST_FDS:
            raise Rejected(f'{len(self._fds)} file descriptors came that no line announced: announce them with "fds"')

    def _take(self, said: Said) -> None:
        if len(self._fds) < said.fds:
            raise Rejected(f"{said.fds} file descriptors were announced, {len(self._fds)} came")
        fds = tuple(self._fds.popleft() for _ in range(said.fds))
        if said.listener is None:
            for fd in fds:
                os.close(fd)
            fds = ()
        if said.act:
            self._note(said)
        else:
            self._heard.put_nowait(Heard(hello=said.hello, listener=said.listener, exited=said.exited, fds=fds))

    def _note(self, said: Said) -> None:
        verb = self._verbs.get(said.act)
        if verb in (Verb.FREEZE, Verb.MIGRATE):
            self.state = "running" if said.is_final else "frozen"
        elif said.ok and verb is not None and verb is not Verb.REAPPLY:
            self.state = "down" if verb in _GOES_DOWN else "running"
        self.state = said.state or self.state
        self.boot_id = said.boot_id or self.boot_id
        if said.is_final:
            self._verbs.pop(said.act, None)
        self._answers[said.act] = said
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
