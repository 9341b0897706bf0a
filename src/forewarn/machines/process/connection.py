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

from forewarn.core.cause import VmEffect
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.process.messages import (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorNotification:
    """A message of a supervisor that is not an answer to an order; one of the first three fields is set."""

    hello: SupervisorHello | None = None  # the first message of each connection: which VM it holds
    listener: ListenerOffer | None = None  # a socket to serve metadata on
    exited: ProgramExitMessage | None = None  # the program inside the VM has ended
    fds: tuple[int, ...] = ()  # of a listener; the receiver closes them


class SupervisorConnection:
    """The service's connection to one supervisor, the process that holds a namespace VM."""

    # It reads from its connected unix socket as soon as it is made, in a running event loop, and owns the socket. An
    # error, an invalid message or the supervisor's end closes it, and sets `is_closed`.

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._received: asyncio.Queue[SupervisorNotification | None] = asyncio.Queue()
        self._answers: dict[str, SupervisorMessage] = {}
        self._effects: dict[str, VmEffect] = {}  # by act id
        self._changed = asyncio.Event()
        self.hello = SupervisorHello(vm="", pid=0, started="")  # empty until `identify`
        self.boot_id = ""  # changes with each boot of the VM
        self.state = ""  # "running", "frozen", "down" or "ended"; "" until `identify`
        self.is_closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    @property
    def pid(self) -> int:
        """The process id of the supervisor; 0 until `identify`."""
        return self.hello.pid

    @property
    def program(self) -> tuple[str, ...] | None:
        """The program inside the VM, with its arguments; None if it has none or before `identify`."""
        return self.hello.program

    def identify(self, hello: SupervisorHello) -> None:
        """Record the hello. The caller has checked it, and sends the welcome."""
        self.hello, self.boot_id, self.state = hello, hello.boot_id, hello.state
        known = (
            (act, SupervisorMessage(act=act, ok=outcome.ok, note=outcome.note)) for act, outcome in hello.known.items()
        )
        self._answers.update(known)

    async def receive(self) -> SupervisorNotification | None:
        """Wait for the next message that is not an answer; None once the connection is closed and all were received.

        The caller closes the file descriptors in `fds`. Only one caller at a time.
        """
        notification = await self._received.get()
        if notification is None:
            self._received.put_nowait(None)  # for the next call
        return notification

    def discard_received(self) -> None:
        """Discard the messages that `receive` has not returned yet, and close their file descriptors."""
        while not self._received.empty():
            notification = self._received.get_nowait()
            for fd in notification.fds if notification else ():
                os.close(fd)
        if self.is_closed:
            self._received.put_nowait(None)  # `receive` still reports the end

    def send(self, message: dict[str, Any]) -> None:
        """Send a message without waiting. A supervisor that has stopped reading loses its connection."""
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
        """Send the order to perform an act. A repeated order gets the same answer and has no second effect."""
        if (previous := self._answers.get(act.id)) is not None and not previous.is_final:
            del self._answers[act.id]
        self._effects[act.id] = act.verb.rules.effect
        self.send(order_message(act, duration_s))

    def send_thaw(self, act_id: str) -> None:
        """Send the order to end the pause (freeze or migration) of this act now; does not wait."""
        self.send({"thaw": act_id})

    def final_answer(self, act_id: str) -> SupervisorMessage | None:
        """Return the final answer to this act, even one from the hello; None if it has not arrived."""
        message = self._answers.get(act_id)
        return message if message is not None and message.is_final else None

    async def wait_for_answer(self, act_id: str, *, within_s: float, final: bool) -> SupervisorMessage | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (message := self._answers.get(act_id)) is None or (final and not message.is_final):
                    if self.is_closed:
                        raise Unavailable(
                            f"the supervisor of VM {self.hello.vm!r} has disconnected: try again when it is back"
                        )
                    await self._changed.wait()
        return message

    def close(self) -> None:
        """Close the connection and its socket; may be called twice. The VM runs on."""
        # Messages that were not received keep their file descriptors: `discard_received` closes them.
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
            os.set_inheritable(fd, False)  # an operator's command must not inherit the socket of a VM
        self._fds.extend(fds)
        self._buffer += data
        if not data:
            self.close()
            return
        try:
            self._parse_lines()
        except Rejected as error:
            log.warning("the connection to the supervisor of VM %r is closed: %s", self.hello.vm, error)
            self.send({"refused": str(error)})
            self.close()

    def _parse_lines(self) -> None:
        *lines, rest = self._buffer.split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise Rejected(f"the message is longer than {MAX_LINE_BYTES} bytes: {bytes(rest[:200])!r}")
        self._buffer = rest
        for line in lines:
            self._handle_message(decode_message(bytes(line)))
        if len(self._fds) > _MAX_PENDING_FDS:
            raise Rejected(
                f'{len(self._fds)} file descriptors arrived that no message announced: announce them with "fds"'
            )

    def _handle_message(self, message: SupervisorMessage) -> None:
        if len(self._fds) < message.fds:
            raise Rejected(f"{message.fds} file descriptors were announced, but {len(self._fds)} arrived")
        fds = tuple(self._fds.popleft() for _ in range(message.fds))
        if message.listener is None:
            for fd in fds:
                os.close(fd)
            fds = ()
        if message.act:
            self._record_answer(message)
        else:
            self._received.put_nowait(
                SupervisorNotification(hello=message.hello, listener=message.listener, exited=message.exited, fds=fds)
            )

    def _record_answer(self, message: SupervisorMessage) -> None:
        effect = self._effects.get(message.act, VmEffect.NONE)
        if effect is VmEffect.PAUSE:
            self.state = "running" if message.is_final else "frozen"
        elif message.ok and effect is not VmEffect.NONE:
            self.state = "down" if effect is VmEffect.SHUT_DOWN else "running"
        self.state = message.state or self.state
        self.boot_id = message.boot_id or self.boot_id
        if message.is_final:
            self._effects.pop(message.act, None)
        self._answers[message.act] = message
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
