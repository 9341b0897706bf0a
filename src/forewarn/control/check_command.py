"""A program that runs the command of a health check, and ends all processes that it has started.

`HealthProber` runs this file by its path, so it imports nothing of forewarn: STATUS-FILE PROGRAM ARGUMENT… It is the
subreaper of the command: a process that leaves the command's session, or whose parent ends, stays below this one.
So to kill its own children until there are none ends all of them, even those without the command's environment.
Where there are no subreapers (macOS), it ends only the command's process group. SIGTERM ends the command early. The
status file then has the exit status, minus the number of a signal, or a text: why the command could not be started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)


def main(status_file: str, *command: str) -> None:
    """Run the command until it ends or SIGTERM comes, kill what it leaves behind, and write the status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # each is taken by `sigwait`
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)  # a killed service leaves nothing behind
    # Python itself may have added LC_CTYPE, which the command must not see.
    environment = {name: os.environ[name] for name in ("PATH", "FOREWARN_CHECK")}
    default = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores
    try:
        pid = os.posix_spawnp(command[0], command, environment, setsid=True, setsigdef=default, setsigmask=())
    except (OSError, ValueError) as error:
        Path(status_file).write_text(error.strerror or "" if isinstance(error, OSError) else str(error))
        return
    status = _wait(pid)
    if sys.platform == "linux":
        _kill_children()
    else:  # there are no subreapers: what has left the command's process group goes on
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    if status is not None:
        Path(status_file).write_text(str(os.waitstatus_to_exitcode(status)))


def _wait(command_pid: int) -> int | None:
    while True:
        pid = -1
        while pid != 0:  # one SIGCHLD may stand for several children
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == command_pid:
                return status
        if signal.sigwait(_SIGNALS) == signal.SIGTERM:
            return None


def _kill_children() -> None:
    with suppress(ChildProcessError):  # none is left
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            for pid in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)  # its children, if it had any, are now ours


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(name))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
