"""A keeper without a VM: it says on the line what a real one says, and counts what it would have done.

    keeper = FakeKeeper("web-0")
    await keeper.connect(data / "forewarn.vms")

What it did it keeps in its journal: connected again, or made anew with the same journal, it does nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PAUSES = ("freeze", "migrate")


@dataclass(slots=True)
class Journal:
    """What outlives a keeper."""

    known: dict[str, dict[str, Any]] = field(default_factory=dict)  # act → ok and note
    effects: list[tuple[str, str]] = field(default_factory=list)  # act and verb, in the order they took effect
    thaws_at: dict[str, float] = field(default_factory=dict)  # act → loop time


class FakeKeeper:
    """Its process is the one that is named; by default the test's own."""

    def __init__(self, vm: str, *, pid: int = 0, journal: Journal | None = None) -> None:
        self.vm = vm
        self.pid = pid or os.getpid()
        self.journal = journal or Journal()
        self.program: list[str] | None = ["sleep", "60"]
        self.state = "running"
        self.welcome: dict[str, Any] | None = None
        self.refusal = ""
        self.listener: socket.socket | None = None  # handed over with every hello
        self.port = 0  # of the listener that was handed over last
        self.is_deaf = False  # orders go unheard
        self.is_mute = False  # orders are carried out, and nothing is said about them
        self.fails = ""  # the note of every act, if they are to fail
        self.orders: list[dict[str, Any]] = []  # as they came in
        self._sock: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def connect(self, path: Path) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        await self.attach(sock)

    async def attach(self, sock: socket.socket) -> None:
        """Say hello on this socket, and return once the service has answered."""
        await self.hang_up()
        self.welcome, self.refusal = None, ""
        self._sock, self._changed = sock, asyncio.Event()
        sock.setblocking(False)
        self.say({"hello": self.hello()})
        self._task = asyncio.create_task(self._serve(sock))
        await self.until(lambda: self.welcome is not None or bool(self.refusal) or not self.is_connected)

    def hello(self) -> dict[str, Any]:
        return {
            "vm": self.vm,
            "pid": self.pid,
            "started": started_of(self.pid),
            "boot_id": f"boot-{sum(verb == 'reboot' for _, verb in self.journal.effects)}",
            "program": self.program,
            "state": self.state,
            "known": self.journal.known,
        }

    @property
    def is_connected(self) -> bool:
        return self._sock is not None

    def say(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        if self._sock is None:
            return
        line = json.dumps(message).encode() + b"\n"
        with suppress(OSError):
            socket.send_fds(self._sock, [line], list(fds)) if fds else self._sock.sendall(line)

    async def until(self, is_so: Any) -> None:
        while not is_so():
            await self._changed.wait()

    async def hang_up(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def effects_of(self, act: str) -> int:
        return sum(done == act for done, _ in self.journal.effects)

    async def _serve(self, sock: socket.socket) -> None:
        buffer = b""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(sock, 65536):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
                    self._tell()
        except OSError:
            pass  # hung up on, with a line unread
        finally:
            sock.close()
            self._sock = None if self._sock is sock else self._sock
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _take(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.refusal = message["refused"]
        elif "welcome" in message:
            self.welcome = message["welcome"]["vm"]
            if self.listener is not None:
                address, self.port = self.listener.getsockname()[:2]
                offer = {"listener": {"address": address, "port": self.port}, "fds": 1}
                self.say(offer, (self.listener.fileno(),))
        elif "listening" in message and self.listener is not None:
            self.listener.close()
            self.listener = None
        elif "order" in message:
            self.orders.append(message["order"])
            if not self.is_deaf:
                self._obey(message["order"])
        elif "thaw" in message:
            self._thaw(message["thaw"])

    def _obey(self, order: dict[str, Any]) -> None:
        act, verb = order["act"], order["verb"]
        now = asyncio.get_running_loop().time()
        if act in self.journal.known:
            self._answer(act)
        elif act in self.journal.thaws_at:
            self._go_on(act, now)
        elif verb in _PAUSES:
            self.journal.effects.append((act, verb))
            self.journal.thaws_at[act] = now + order["duration_s"]
            self.state = "frozen"
            self._go_on(act, now)
        else:
            self.journal.effects.append((act, verb))
            self._end(act)

    def _go_on(self, act: str, now: float) -> None:
        left_s = self.journal.thaws_at[act] - now
        if left_s <= 0:
            self._end(act)
        elif not self.is_mute:
            self.say({"act": act, "until": left_s})

    def _thaw(self, act: str) -> None:
        if act in self.journal.known:
            self._answer(act)
        else:
            self._end(act)

    def _end(self, act: str) -> None:
        self.journal.thaws_at.pop(act, None)
        self.state = "running"
        self.journal.known[act] = {"ok": not self.fails, "note": self.fails or "done by a fake"}
        self._answer(act)

    def _answer(self, act: str) -> None:
        if not self.is_mute:
            self.say({"act": act, **self.journal.known[act]})


def started_of(pid: int) -> str:
    """As a keeper says it in its hello: field 22 of /proc/PID/stat."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[19]
