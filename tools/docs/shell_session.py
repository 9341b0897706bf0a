"""A shell in a terminal that runs the commands of a page one by one, as a reader would type them.

    with ShellSession(directory, environment) as shell:
        print(shell.run("forewarn status").output)

The commands share one shell: variables, the current directory and `$?` last from one to the next. Their output goes to
a terminal, so that programs print what a person would see; with TERM=dumb it is plain text.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

COLUMNS = 100
_ROWS = 50
_END = re.compile(rb"\x1e(\d+)\n")  # printed after each command, with its exit status
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command printed to stdout and stderr, and its exit status."""

    output: str
    status: int


class ShellSession:
    """Bash with its output in a terminal of COLUMNS columns; leaving the block ends it and its background processes.

    `environment` is the whole environment of the shell; `scratch` is a directory for the session's own file.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], *, scratch: Path) -> None:
        self._step = scratch / "step.sh"
        self._terminal, inside = os.openpty()
        _set_up(inside)
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)

    def __enter__(self) -> ShellSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()
        os.close(self._terminal)

    def run(self, command: str, timeout_s: float = 120.0) -> CommandResult:
        """Run one command, or several lines of them, and return once it has ended.

        Raises TimeoutError, with the output so far, if it has not ended after `timeout_s` seconds.
        """
        self._step.write_text(f"{command}\n", encoding="utf-8")
        assert self._bash.stdin is not None
        # Sourced from a file: a command that reads its standard input must not read the next command.
        line = f"source '{self._step}' </dev/null; __status=$?; printf '\\036%s\\n' $__status; (exit $__status)\n"
        self._bash.stdin.write(line.encode())
        self._bash.stdin.flush()
        return self._read_result(command, time.monotonic() + timeout_s)

    def _read_result(self, command: str, deadline: float) -> CommandResult:
        printed = b""
        while not (end := _END.search(printed)):
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            chunk = _read_chunk(self._terminal) if ready else b""
            if not chunk:
                why = "the shell has ended" if ready else "it has not ended in time"
                raise TimeoutError(f"$ {command}\n{printed.decode(errors='replace')}\n({why})")
            printed += chunk
        return CommandResult(printed[: end.start()].decode(errors="replace"), int(end[1]))


def _set_up(terminal: int) -> None:
    """Set the size, and let line feeds through as they are."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))


def _read_chunk(terminal: int) -> bytes:
    """Return what was printed; nothing if every program that could print has ended."""
    try:
        return os.read(terminal, _CHUNK)
    except OSError:  # Linux: EIO
        return b""
