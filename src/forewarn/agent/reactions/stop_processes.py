"""Reaction `stop-processes`: ends processes that no systemd unit manages: SIGTERM, a delay, SIGKILL."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions import child_process
from forewarn.agent.reactions.options import CommandLine, ReactionKind
from forewarn.agent.reactions.processes import (
    ProcessInfo,
    find_processes,
    process_from_pid_file,
    remaining_processes,
    signal_and_wait,
)
from forewarn.agent.reactions.step_context import load_undo_notes, reserve_s, save_undo_notes
from forewarn.base.tomlfile import BadValue, RawTable, read_command_line, read_path, read_seconds, read_text, read_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProcessesOptions:
    # One of `pid_file`, `exe` and `command` is given: without any, all processes of that user would be ended.

    pid_file: Path | None = None  # contains the pid; None: use `exe`, `command` and `uid`
    exe: str = ""  # the exact path of the program file; "": any
    command: tuple[str, ...] = ()  # the exact words of the command line; (): any
    uid: int  # the user id of the processes; a `pid_file` ignores it
    grace_s: float = 10.0  # seconds between SIGTERM and SIGKILL, less if the step's time is short
    start: CommandLine = ()  # the command of the undo, which starts them again; (): nothing does


class StopProcessesReaction:
    """The reaction `stop-processes`: ends processes that the options describe."""

    # Its undo runs `start` only if `do` found processes to end and none is running again.

    def __init__(self, options: StopProcessesOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        targets = self._find_targets()
        if not targets:
            return StepOutcome(ok=True, text="no such process is running")
        save_undo_notes(context, {"stopped": " ".join(str(target.pid) for target in targets)})
        try:
            return await self._terminate(targets, context)
        except PermissionError:
            return StepOutcome(
                ok=False, text=f"{_process_list_text(targets)} cannot be ended: the agent's user lacks the permission"
            )

    async def _terminate(self, targets: list[ProcessInfo], context: StepContext) -> StepOutcome:
        grace_s = min(self._options.grace_s, max(context.left_s() - 2 * reserve_s(context), 0.0))
        if await signal_and_wait(targets, signal.SIGTERM, grace_s):
            return StepOutcome(ok=True, text=f"{_process_list_text(targets)} ended")
        rest = remaining_processes(targets)
        if await signal_and_wait(rest, signal.SIGKILL, max(context.left_s() - reserve_s(context) / 2, 0.1)):
            return StepOutcome(
                ok=True,
                text=(
                    f"{_process_list_text(targets)} ended, {_process_list_text(rest)} by SIGKILL after {grace_s:.1f} s"
                ),
            )
        return StepOutcome(
            ok=False, text=f"{_process_list_text(remaining_processes(targets))} did not end, not even after SIGKILL"
        )

    async def undo(self, context: StepContext) -> StepOutcome:
        if "stopped" not in load_undo_notes(context) or not self._options.start:
            return StepOutcome(ok=True, text="nothing to undo")
        if running := self._find_targets():
            verb = "is" if len(running) == 1 else "are"
            return StepOutcome(ok=True, text=f"{_process_list_text(running)} {verb} already running again")
        return await child_process.run_command(self._options.start, context)

    async def check(self, context: StepContext) -> bool | None:
        return not self._find_targets()

    def _find_targets(self) -> list[ProcessInfo]:
        options = self._options
        if options.pid_file:
            found = process_from_pid_file(options.pid_file)
            return [found] if found else []
        return find_processes(options.exe, options.command, options.uid)


def _process_list_text(targets: Iterable[ProcessInfo]) -> str:
    pids = [str(target.pid) for target in targets]
    return f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(pids)}"


def _read_options(raw: RawTable) -> StopProcessesOptions:
    pid_file, exe, command = read_path(raw, "pid_file"), read_path(raw, "exe"), read_texts(raw, "command")
    if not (pid_file or exe or command):
        raise BadValue("", "the processes are not specified", 'write pid_file = "/run/app.pid", or exe, or command')
    if pid_file and (exe or command or "user" in raw):
        raise BadValue("pid_file", "pid_file excludes exe, command and user", "remove those, or pid_file")
    return StopProcessesOptions(
        pid_file=pid_file,
        exe=str(exe) if exe else "",
        command=command,
        uid=_uid_of_user(read_text(raw, "user")),
        grace_s=read_seconds(raw, "grace", 10.0),
        start=read_command_line(raw, "start"),
    )


def _uid_of_user(user: str) -> int:
    if not user:
        return os.getuid()
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise BadValue("user", f"the user {user!r} does not exist", "write the name of an existing user") from None


STOP_PROCESSES_REACTION = ReactionKind(
    name="stop-processes",
    summary="ends processes by pid file, program or exact command",
    options=("pid_file", "exe", "command", "user", "grace", "start"),
    read=_read_options,
    make=StopProcessesReaction,
)
