"""A supervisor without a VM: speaks the supervisor protocol and counts the effects it would have.

    supervisor = FakeSupervisor("web-0")
    await supervisor.connect(data / "forewarn.vms")

Its journal keeps what it did: connected again, or created anew with the same journal, it repeats nothing.
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


@dataclass(slots=True)
class FakeSupervisorJournal:
    """What outlives a supervisor: known outcomes and effects."""

    known: dict[str, dict[str, Any]] = field(default_factory=dict)  # act → ok and note
    effects: list[tuple[str, str]] = field(default_factory=list)  # act and verb, in the order they took effect
    thaws_at: dict[str, float] = field(default_factory=dict)  # act → loop time


class FakeSupervisor:
    """A supervisor of one VM; `pid` is the process that it claims to be, by default the test's own."""

    def __init__(self, vm: str, *, pid: int = 0, journal: FakeSupervisorJournal | None = None) -> None:
        self.vm = vm
        self.pid = pid or os.getpid()
        self.journal = journal or FakeSupervisorJournal()
        self.program: list[str] | None = ["sleep", "60"]
        self.state = "running"
        self.welcome: dict[str, Any] | None = None
        self.refusal = ""
        self.listener: socket.socket | None = None  # passed to the service after each welcome
        self.port = 0  # of the listener that was passed last
        self.ignores_orders = False  # does not react to orders
        self.sends_no_outcomes = False  # carries orders out, but reports nothing
        self.failure_note = ""  # if set, every act fails with this note
        self.orders: list[dict[str, Any]] = []  # in the order received
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
        await self.disconnect()
        self.welcome, self.refusal = None, ""
        self._sock, self._changed = sock, asyncio.Event()
        sock.setblocking(False)
        self.send({"hello": self.hello()})
        self._task = asyncio.create_task(self._serve(sock))
        await self.wait_until(lambda: self.welcome is not None or bool(self.refusal) or not self.is_connected)

    def hello(self) -> dict[str, Any]:
        return {
            "vm": self.vm,
            "pid": self.pid,
            "started": process_start_time(self.pid),
            "boot_id": f"boot-{sum(verb == 'reboot' for _, verb in self.journal.effects)}",
            "program": self.program,
            "state": self.state,
            "known": self.journal.known,
        }

    @property
    def is_connected(self) -> bool:
        return self._sock is not None

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        if self._sock is None:
            return
        line = json.dumps(message).encode() + b"\n"
        with suppress(OSError):
            socket.send_fds(self._sock, [line], list(fds)) if fds else self._sock.sendall(line)

    async def wait_until(self, condition: Any) -> None:
        while not condition():
            await self._changed.wait()

    async def disconnect(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def effect_count(self, act: str) -> int:
        return sum(done == act for done, _ in self.journal.effects)

    async def _serve(self, sock: socket.socket) -> None:
        buffer = b""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(sock, 65536):
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._handle_message(json.loads(line))
                    self._signal_change()
        except OSError:
            pass  # the service hung up
        finally:
            sock.close()
            self._sock = None if self._sock is sock else self._sock
            self._signal_change()

    def _signal_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _handle_message(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.refusal = message["refused"]
        elif "welcome" in message:
            self.welcome = message["welcome"]["vm"]
            if self.listener is not None:
                address, self.port = self.listener.getsockname()[:2]
                offer = {"listener": {"address": address, "port": self.port}, "fds": 1}
                self.send(offer, (self.listener.fileno(),))
        elif "listening" in message and self.listener is not None:
            self.listener.close()
            self.listener = None
        elif "order" in message:
            self.orders.append(message["order"])
            if not self.ignores_orders:
                self._carry_out_order(message["order"])
        elif "thaw" in message:
            self._thaw(message["thaw"])

    def _carry_out_order(self, order: dict[str, Any]) -> None:
        act, verb = order["act"], order["verb"]
        now = asyncio.get_running_loop().time()
        if act in self.journal.known:
            self._send_outcome(act)
        elif act in self.journal.thaws_at:
            self._report_progress(act, now)
        elif order["effect"] == "pause":
            self.journal.effects.append((act, verb))
            self.journal.thaws_at[act] = now + order["duration_s"]
            self.state = "frozen"
            self._report_progress(act, now)
        else:
            self.journal.effects.append((act, verb))
            self._finish_act(act)

    def _report_progress(self, act: str, now: float) -> None:
        left_s = self.journal.thaws_at[act] - now
        if left_s <= 0:
            self._finish_act(act)
        elif not self.sends_no_outcomes:
            self.send({"act": act, "until": left_s})

    def _thaw(self, act: str) -> None:
        if act in self.journal.known:
            self._send_outcome(act)
        else:
            self._finish_act(act)

    def _finish_act(self, act: str) -> None:
        self.journal.thaws_at.pop(act, None)
        self.state = "running"
        self.journal.known[act] = {"ok": not self.failure_note, "note": self.failure_note or "done by a fake"}
        self._send_outcome(act)

    def _send_outcome(self, act: str) -> None:
        if not self.sends_no_outcomes:
            self.send({"act": act, **self.journal.known[act]})


def process_start_time(pid: int) -> str:
    """The start time that a supervisor sends in its hello: field 22 of /proc/PID/stat."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[19]
