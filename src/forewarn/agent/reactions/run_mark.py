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
    """The content of a mark, by which the next agent finds processes that this one left running."""

    run_id: str  # the random id of the run, which its processes carry; "" if the file is damaged
    command: ProcessInfo | None = None  # the command; None: not known to have started, or in an earlier boot


def mark_command_run(folder: Path) -> str:
    """Note in the step's folder that a command is about to run; return its new run id.

    The command must get the id as RUN_VARIABLE, and as standard input the file of `open_input_file`, so that its
    processes can be found.
    """
    run_id = secrets.token_hex(16)
    _write_mark(folder, run_id)
    return run_id


def open_input_file(folder: Path, run_id: str, content: bytes) -> BinaryIO:
    """Write a file with this content and the run id in its name, open it, and delete it from the folder."""
    path = folder / _input_file_name(run_id)
    path.write_bytes(content)
    try:
        return path.open("rb")
    finally:
        path.unlink()


def mark_command_process(folder: Path, pid: int) -> None:
    """Add the pid, start time and boot id of a started command to its mark."""
    mark, command = read_run_mark(folder), find_process(pid)
    if mark is not None and command is not None:
        _write_mark(folder, f"{mark.run_id} {command.pid} {command.start_ticks} {read_boot_id()}")


def remove_run_mark(folder: Path) -> None:
    """Remove the mark once the command has ended; signals no process."""
    (folder / _RUN_MARK_FILE).unlink(missing_ok=True)


def read_run_mark(folder: Path) -> RunMark | None:
    """Read the mark in a step's folder; its `command` is None if the process was marked before a reboot."""
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
    """End processes of an earlier command in this step's folder whose end no agent saw.

    They get SIGTERM, and SIGKILL after `grace_s` seconds. A process that does not end keeps the mark, and is logged.
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
    """End the processes that an earlier agent left running for any step; `root` contains EVENT/STEP."""
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
