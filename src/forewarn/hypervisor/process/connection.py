"""The service's connection to one supervisor: sends orders, and keeps answers by act id.

Messages are read from the socket as they arrive. Messages that are no answers wait in a queue for `receive`.
"""

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
from forewarn.hypervisor.process.messages import (
    MAX_LINE_BYTES,
    ListenerOffer,
    ProgramExitMessage,
    SupervisorHello,
    SupervisorMessage,
    decode_message,
    encode_message,
    order_message,
)

log = logging.getLogger(__name__)
_READ_BYTES = 64 * 1024
_MAX_PENDING_FDS = 16
_SHUTDOWN_VERBS = frozenset({Verb.EVICT, Verb.DELETE, Verb.POWER_OFF, Verb.DEALLOCATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorNotification:
    """Something other than an answer."""

    hello: SupervisorHello | None = None
    listener: ListenerOffer | None = None
    exited: ProgramExitMessage | None = None
    fds: tuple[int, ...] = ()


class SupervisorConnection:
    """Built inside a running loop, on a connected unix socket, which is the link's from then on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._received: asyncio.Queue[SupervisorNotification | None] = asyncio.Queue()
        self._answers: dict[str, SupervisorMessage] = {}
        self._verbs: dict[str, Verb] = {}
        self._changed = asyncio.Event()
        self.hello = SupervisorHello(vm="", pid=0, started="")
        self.boot_id = ""
        self.state = ""
        self.is_closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def pid(self) -> int:
        return self.hello.pid

    @property
    def program(self) -> tuple[str, ...] | None:
        return self.hello.program

    def identify(self, hello: SupervisorHello) -> None:
        """From here on it is known whose line this is, and what its keeper has done already."""
        self.hello, self.boot_id, self.state = hello, hello.boot_id, hello.state
        known = ((act, SupervisorMessage(act=act, ok=told.ok, note=told.note)) for act, told in hello.known.items())
        self._answers.update(known)

    async def receive(self) -> SupervisorNotification | None:
        """The next thing said that is no answer; None: the keeper has hung up."""
        return await self._received.get()

    def discard_received(self) -> None:
        """Let go of what was said and will not be listened to."""
        while not self._received.empty():
            heard = self._received.get_nowait()
            for fd in heard.fds if heard else ():
                os.close(fd)

    def send(self, message: dict[str, Any]) -> None:
        """Lines are short: a keeper that leaves no room for one has stopped reading, and is hung up on."""
        if self.is_closed:
            return
        line = encode_message(message)
        try:
            whole = self._sock.send(line) == len(line)
        except OSError:
            whole = False
        if not whole:
            self.close()

    def send_order(self, act: Act, duration_s: float) -> None:
        """Say what is to be done; said again, a keeper answers again and does nothing twice."""
        if (old := self._answers.get(act.id)) is not None and not old.is_final:
            del self._answers[act.id]
        self._verbs[act.id] = act.verb
        self.send(order_message(act, duration_s))

    def send_thaw(self, act_id: str) -> None:
        self.send({"thaw": act_id})

    def final_answer(self, act_id: str) -> SupervisorMessage | None:
        """The final answer, if it is known."""
        said = self._answers.get(act_id)
        return said if said is not None and said.is_final else None

    async def wait_for_answer(self, act_id: str, *, within_s: float, final: bool) -> SupervisorMessage | None:
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
        self._received.put_nowait(None)
        self._notify_waiters()

    def _on_readable(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _MAX_PENDING_FDS)
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
            self._parse_lines()
        except Rejected as error:
            log.warning("the keeper of VM %r is hung up on: %s", self.hello.vm, error)
            self.send({"refused": str(error)})
            self.close()

    def _parse_lines(self) -> None:
        *lines, rest = self._buffer.split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise Rejected(f"this line is longer than {MAX_LINE_BYTES} bytes: {bytes(rest[:200])!r}")
        self._buffer = rest
        for line in lines:
            self._handle_message(decode_message(bytes(line)))
        if len(self._fds) > _MAX_PENDING_FDS:
            raise Rejected(f'{len(self._fds)} file descriptors came that no line announced: announce them with "fds"')

    def _handle_message(self, said: SupervisorMessage) -> None:
        if len(self._fds) < said.fds:
            raise Rejected(f"{said.fds} file descriptors were announced, {len(self._fds)} came")
        fds = tuple(self._fds.popleft() for _ in range(said.fds))
        if said.listener is None:
            for fd in fds:
                os.close(fd)
            fds = ()
        if said.act:
            self._record_answer(said)
        else:
            self._received.put_nowait(
                SupervisorNotification(hello=said.hello, listener=said.listener, exited=said.exited, fds=fds)
            )

    def _record_answer(self, said: SupervisorMessage) -> None:
        verb = self._verbs.get(said.act)
        if verb in (Verb.FREEZE, Verb.MIGRATE):
            self.state = "running" if said.is_final else "frozen"
        elif said.ok and verb is not None and verb is not Verb.REAPPLY:
            self.state = "down" if verb in _SHUTDOWN_VERBS else "running"
        self.state = said.state or self.state
        self.boot_id = said.boot_id or self.boot_id
        if said.is_final:
            self._verbs.pop(said.act, None)
        self._answers[said.act] = said
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
