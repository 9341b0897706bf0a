"""QEMU for benchmarks: processes with a monitor (QMP) of their own, and a client that waits for their events.

QEMU adds the time to each event itself, so a slow client measures the same.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.vms.hosts import GUEST

OBSERVER = "observer.qmp"  # the benchmark's own monitor, in the directory of a VM's host
# Before QEMU's command: it gets this monitor beside that of the service. Linux may schedule by sessions (autogroup),
# and QEMU has its own on both sides: it gets the niceness that the benchmark was started with.
_KEEP_NICENESS = "{ nice > /proc/self/autogroup; } 2>/dev/null"
WITH_OBSERVER = ("sh", "-c", f'{_KEEP_NICENESS}; exec "$@" -qmp unix:{OBSERVER},server=on,wait=off', "qemu")
MEMORY_MIB = 96
_TIMEOUT_S = 120.0
_CONNECT_INTERVAL_S = 0.002


def guest_command() -> list[str]:
    """Return QEMU's command for an idle guest without disks and network."""
    words = "console=ttyS0 quiet panic=-1 fw_name=bench fw_address=10.0.0.4 fw_ticks=1 fw_poll=3600"
    return [
        *("qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-m", str(MEMORY_MIB), "-nodefaults"),
        *("-no-user-config", "-display", "none", "-serial", "file:console.log"),
        *("-kernel", str(GUEST / "vmlinux"), "-initrd", str(GUEST / "initramfs"), "-append", words),
    ]


class QmpClient:
    """A connection to a monitor; events are kept until somebody waits for them."""

    def __init__(self, path: Path) -> None:
        self._socket = _connect(path)
        self._lines = self._socket.makefile("r")
        self._events: deque[dict[str, Any]] = deque()
        self._read()
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: object) -> Any:
        """Return QEMU's answer. AssertionError if it is an error."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while "event" in (message := self._read()):
            self._events.append(message)
        assert "return" in message, f"{command}: {message}"
        return message["return"]

    def wait_for(self, event: str, **data: object) -> float:
        """Wait for the next event of this name with these data; returns when it happened, in real time."""
        while True:
            message = self._events.popleft() if self._events else self._read()
            if message.get("event") == event and data.items() <= message.get("data", {}).items():
                at = message["timestamp"]
                return float(at["seconds"] + at["microseconds"] / 1e6)

    def transfer_s(self) -> float:
        """Wait for the end of a live migration from here; returns how long QEMU took to transfer the guest."""
        begin = self.wait_for("MIGRATION", status="setup")
        return self.wait_for("MIGRATION", status="completed") - begin

    def forget_events(self) -> None:
        """Forget the events that nobody has waited for, up to now."""
        self.execute("query-status")
        self._events.clear()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, "QEMU has closed its monitor"
        message: dict[str, Any] = json.loads(line)
        return message


def _connect(path: Path) -> socket.socket:
    """Connect to a monitor as soon as QEMU has opened it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(_TIMEOUT_S)
        try:
            client.connect(str(path))
            return client
        except (FileNotFoundError, ConnectionRefusedError):
            client.close()
            assert time.monotonic() < deadline, f"QEMU does not open {path}"
            time.sleep(_CONNECT_INTERVAL_S)


class TimedMigration(NamedTuple):
    """How long a live migration took, in seconds."""

    took_s: float  # until the guest was resumed
    transfer_s: float  # of that, QEMU's own transfer of the guest

    @property
    def beside_transfer_s(self) -> float:
        """What the one who migrates adds: the destination's start, the order to send, and the order to resume."""
        return self.took_s - self.transfer_s


class BareVm:
    """A VM that only this benchmark acts on: two directories, as for two hosts, and the QEMU process in one of them."""

    def __init__(self, directory: Path) -> None:
        self._directories = [directory / name for name in ("here", "there")]
        for path in self._directories:
            path.mkdir(parents=True)
        self._process = self._start()
        self.monitor = QmpClient(self._directories[0] / OBSERVER)

    @property
    def console(self) -> Path:
        """What the guest prints."""
        return self._directories[0] / "console.log"

    def freeze(self) -> float:
        """Stop the guest with QMP; returns the seconds until it is stopped, and lets it go on."""
        self.monitor.forget_events()
        begin = time.time()
        self.monitor.execute("stop")
        took_s = self.monitor.wait_for("STOP") - begin
        self.monitor.execute("cont")
        return took_s

    def migrate(self) -> TimedMigration:
        """Migrate the guest live with QMP to a new QEMU process; returns the times until it runs there."""
        begin = time.time()
        self._directories.reverse()
        there = self._directories[0]
        arriving = self._start("-incoming", "defer", "-S")
        try:
            target = QmpClient(there / OBSERVER)
            resumed_at, transfer_s = self._send(target, f"unix:{there / 'migrate'}")
        except BaseException:
            arriving.kill()
            arriving.wait(timeout=_TIMEOUT_S)
            raise
        self.close()
        self._process, self.monitor = arriving, target
        return TimedMigration(resumed_at - begin, transfer_s)

    def _send(self, target: QmpClient, uri: str) -> tuple[float, float]:
        """Migrate to a QEMU process that waits, and resume the guest there; returns when, and the transfer's time."""
        target.execute("migrate-set-capabilities", capabilities=_capability("late-block-activate"))
        target.execute("migrate-incoming", uri=uri)
        for name in ("events", "return-path"):
            self.monitor.execute("migrate-set-capabilities", capabilities=_capability(name))
        self.monitor.forget_events()
        self.monitor.execute("migrate", uri=uri)
        transfer_s = self.monitor.transfer_s()
        while target.execute("query-status")["status"] != "paused":
            time.sleep(_CONNECT_INTERVAL_S)
        target.execute("cont")
        return target.wait_for("RESUME"), transfer_s

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        directory = self._directories[0]
        (directory / OBSERVER).unlink(missing_ok=True)
        return subprocess.Popen([*WITH_OBSERVER, *guest_command(), *options], cwd=directory, start_new_session=True)

    def close(self) -> None:
        self.monitor.close()
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=_TIMEOUT_S)


def _capability(name: str) -> list[dict[str, object]]:
    return [{"capability": name, "state": True}]
