"""Starting the VM's program: same user, same directory, a process group of its own, in the terminal's foreground."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Mapping
from typing import NoReturn

from forewarn.vm.blueprint import Blueprint

_FAILURE = struct.Struct("i")


def start(plan: Blueprint, changes: Mapping[str, str]) -> int:
    """The pid of the program once it really runs; OSError where it cannot be executed."""
    report, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(plan, {**plan.environment, **changes}, tell)
    os.close(tell)
    with os.fdopen(report, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number = _FAILURE.unpack(failure)[0]
        raise OSError(number, os.strerror(number), plan.argv[0])
    return pid


def _become(plan: Blueprint, environment: dict[str, str], tell: int) -> NoReturn:
    """In the new process: give up everything of ours, and execute. The pipe closes itself when that works."""
    try:
        os.setpgid(0, 0)
        if plan.owns_terminal:
            os.tcsetpgrp(0, os.getpid())  # the first process ignores SIGTTOU, and so do we still
        if plan.output is not None:
            _redirect(plan.output)
        _reset_signals()
        os.execvpe(plan.argv[0], plan.argv, environment)
    except OSError as error:
        os.write(tell, _FAILURE.pack(error.errno or 1))
    finally:
        os._exit(127)


def _redirect(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
