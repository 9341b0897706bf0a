"""A server of somebody else's as a child process, for tests with real ones: up when entered, gone when left.

with Daemon([haproxy, "-f", "haproxy.cfg"], log=tmp_path / "haproxy.log", is_up=lambda: port_answers(port)):
    ...
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from forewarn.testing.process import eventually

NOBODY = 65534
_STOP_S = 30.0
_NOTHING: Mapping[str, str] = {}


class Daemon:
    """It leads a group of its own, and that ends with it. SIGTERM first, so that it can end what it has started."""

    def __init__(
        self,
        line: Sequence[str | Path],
        *,
        log: Path,
        is_up: Callable[[], bool],
        environment: Mapping[str, str] = _NOTHING,
    ) -> None:
        self._line = [str(word) for word in line]
        self._log, self._is_up = log, is_up
        self._environment = os.environ | dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._line,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        try:
            eventually(self._is_up_or_gone, within_s=60)
            if self._child.poll() is not None:
                raise AssertionError(f"{self._line[0]} did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
        except BaseException:
            self.stop()
            raise

    def _is_up_or_gone(self) -> bool:
        assert self._child is not None
        return self._child.poll() is not None or self._is_up()

    def stop(self) -> None:
        if self._child is None:
            return
        group = self._child.pid
        self._child.terminate()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._child = None


def as_nobody(line: Sequence[str | Path]) -> list[str | Path]:
    """For servers that refuse to be root: as nobody, who may still read what root may. As it is for anybody else."""
    if os.getuid() != 0:
        return list(line)
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv of util-linux is needed to run servers as somebody else"
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [setpriv, *ids, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *line]


def give_to_nobody(folder: Path) -> None:
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def port_answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
