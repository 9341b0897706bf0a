"""A third-party server as a child process: started on entry, ended with its process group on exit.

with ExternalServer([haproxy, "-f", "haproxy.cfg"], log=tmp_path / "haproxy.log", is_up=lambda: port_answers(port)):
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

from tests.support.service_process import eventually

NOBODY_ID = 65534
_STOP_TIMEOUT_S = 30.0
_NO_VARIABLES: Mapping[str, str] = {}


class ExternalServer:
    """A server in its own process group; it gets SIGTERM first, then the group gets SIGKILL."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        is_up: Callable[[], bool],
        environment: Mapping[str, str] = _NO_VARIABLES,
    ) -> None:
        self._command_line = [str(argument) for argument in command]
        self._log, self._is_up = log, is_up
        self._environment = os.environ | dict(environment)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def __enter__(self) -> ExternalServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command_line,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
        try:
            eventually(self._is_up_or_ended, within_s=60)
            if self._child.poll() is not None:
                raise AssertionError(
                    f"{self._command_line[0]} did not start:\n{self._log.read_text(errors='replace')[-4000:]}"
                )
        except BaseException:
            self.stop()
            raise

    def _is_up_or_ended(self) -> bool:
        assert self._child is not None
        return self._child.poll() is not None or self._is_up()

    def stop(self) -> None:
        if self._child is None:
            return
        group = self._child.pid
        self._child.terminate()
        try:
            self._child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(_STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._child = None


def as_nobody(command: Sequence[str | Path]) -> list[str | Path]:
    """The command run as user nobody if root runs the tests, for servers that refuse to run as root."""
    if os.getuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv of util-linux is needed to run servers as another user"
    ids = [f"--reuid={NOBODY_ID}", f"--regid={NOBODY_ID}", "--clear-groups"]
    return [setpriv, *ids, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *command]


def give_to_nobody(folder: Path) -> None:
    """Make user nobody the owner of a folder, if root runs the tests."""
    if os.getuid() == 0:
        os.chown(folder, NOBODY_ID, NOBODY_ID)


def port_answers(port: int) -> bool:
    """Whether something accepts connections on this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
