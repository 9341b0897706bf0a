"""Marks the processes of a command, so that the next agent finds and ends them if this one is killed.

The mark is a file in the step's folder, written before the command starts. It has a random id, which the command and
its children carry in their environment and in the name of their standard input; no other process has the id. Once the
command runs, the mark also has its pid, start time and boot id, because a command may change its environment and its
standard input; a later process with the same pid has another start time. The mark is removed when a command ends
while the agent runs, so processes that the command leaves behind on purpose are not ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from forewarn.agent.reactions.processes import ProcessInfo, find_process, other_processes, signal_and_wait
from forewarn.client.cursor import read_boot_id

LOG = logging.getLogger("forewarn.agent")
RUN_VARIABLE = "FOREWARN_RUN"  # marks the processes of one run in their environment
_RUN_MARK_FILE = "running"
_KILL_TIMEOUT_S = 2.0
_ORPHAN_GRACE_S = 5.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """The content of a mark: the random id of the run, and its command if that is known to have started."""

    run_id: str
    command: ProcessInfo | None = None  # of this boot


def mark_command_run(folder: Path) -> str:
    """Writes a mark with a new random run id to the folder, over an earlier one; call it before the start.

    Returns the id, which the command must get as RUN_VARIABLE, and by `open_input_file` as its standard input.
    """
    run_id = secrets.token_hex(16)
    _write_mark(folder, run_id)
    return run_id


def open_input_file(folder: Path, run_id: str, content: bytes) -> BinaryIO:
    """Opens a file with this content, whose name has the run id; nothing else can open it afterwards."""
    path = folder / _input_file_name(run_id)
    path.write_bytes(content)
    try:
        return path.open("rb")
    finally:
        path.unlink()


def mark_command_process(folder: Path, pid: int) -> None:
    """Adds the command's process to the mark, if it has not ended yet; call it after the start."""
    mark, command = read_run_mark(folder), find_process(pid)
    if mark is not None and command is not None:
        _write_mark(folder, f"{mark.run_id} {command.pid} {command.start_ticks} {read_boot_id()}")


def remove_run_mark(folder: Path) -> None:
    """Removes the mark, if any, after the command has ended; processes that it left behind keep running."""
    (folder / _RUN_MARK_FILE).unlink(missing_ok=True)


def read_run_mark(folder: Path) -> RunMark | None:
    """The mark in this folder; None if there is none. The command is None after a reboot."""
    try:
        words = (folder / _RUN_MARK_FILE).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    run_id = words[0] if words else ""
    if len(words) != 4 or not (words[1].isdigit() and words[2].isdigit()) or words[3] != read_boot_id():
        return RunMark(run_id=run_id)
    pid = int(words[1])
    return RunMark(run_id=run_id, command=ProcessInfo(pid=pid, group=pid, start_ticks=int(words[2])))


async def end_orphan_processes(folder: Path, grace_s: float) -> None:
    """Ends processes of an earlier run in this folder whose end no agent saw: SIGTERM, then SIGKILL.

    SIGKILL follows after `grace_s` seconds. Removes the mark afterwards; does nothing without one. Logs an error and
    keeps the mark if a process cannot be ended.
    """
    mark = read_run_mark(folder)
    if mark is None:
        return
    try:
        has_ended = await signal_and_wait(_marked_processes(mark), signal.SIGTERM, grace_s)
        has_ended = has_ended or await signal_and_wait(_marked_processes(mark), signal.SIGKILL, _KILL_TIMEOUT_S)
    except PermissionError:
        has_ended = False
    if has_ended:
        remove_run_mark(folder)
    else:
        pids = ", ".join(str(each.pid) for each in _marked_processes(mark))
        LOG.error(
            "processes of an earlier run of step %s cannot be ended: end them by hand (pids %s)", folder.name, pids
        )


async def end_all_orphan_processes(root: Path) -> None:
    """Ends what an earlier agent left running in any step's folder below `root`; in all folders at once."""
    folders = [mark.parent for mark in root.glob(f"*/*/{_RUN_MARK_FILE}")]
    for folder in folders:
        mark = read_run_mark(folder)
        if mark is not None and _marked_processes(mark):
            LOG.warning("a command of step %s outlived the agent that ran it: it is ended now", folder.name)
    await asyncio.gather(*(end_orphan_processes(folder, _ORPHAN_GRACE_S) for folder in folders))


def _marked_processes(mark: RunMark) -> list[ProcessInfo]:
    found = [each for each in other_processes() if mark.run_id and _carries_run_id(each.pid, mark.run_id)]
    is_running = mark.command is not None and find_process(mark.command.pid) == mark.command
    return [*found, mark.command] if mark.command is not None and is_running and mark.command not in found else found


def _carries_run_id(pid: int, run_id: str) -> bool:
    """Whether the process has this id; False if it has ended or belongs to another user."""
    with suppress(OSError):
        if f"{RUN_VARIABLE}={run_id}".encode("ascii") in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/fd/0")).name.removesuffix(" (deleted)") == _input_file_name(run_id)
    return False


def _input_file_name(run_id: str) -> str:
    return f"event.{run_id}.json"


def _write_mark(folder: Path, text: str) -> None:
    new_file = folder / f"{_RUN_MARK_FILE}.new"
    new_file.write_text(text, encoding="ascii")
    os.replace(new_file, folder / _RUN_MARK_FILE)  # a kill leaves the old mark or the new one
