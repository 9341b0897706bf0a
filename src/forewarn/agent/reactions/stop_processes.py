"""Processes that no unit keeps are ended: SIGTERM to their groups, a while, SIGKILL."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.reaction import child
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Line, Raw, line, path, seconds, text, texts
from forewarn.agent.reaction.patience import spare_s
from forewarn.agent.reaction.process import Process, have_ended, process_in, processes_like, still_there
from forewarn.agent.value import Case, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pid_file: Path | None = None
    exe: str = ""  # exactly this file
    command: tuple[str, ...] = ()  # exactly these words
    uid: int
    grace_s: float = 10.0
    start: Line = ()


class StopProcesses:
    """`start` is run afterwards only if something was stopped and nothing of the kind runs again."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        targets = self._targets()
        if not targets:
            return Outcome(ok=True, text="none runs")
        remember(case, {"stopped": " ".join(str(target.pid) for target in targets)})
        try:
            return await self._end(targets, case)
        except PermissionError:
            return Outcome(ok=False, text=f"{_told(targets)} may not be ended by the agent's user")

    async def _end(self, targets: list[Process], case: Case) -> Outcome:
        grace_s = min(self._options.grace_s, max(case.left_s() - 2 * spare_s(case), 0.0))
        if await have_ended(targets, signal.SIGTERM, grace_s):
            return Outcome(ok=True, text=f"{_told(targets)} ended")
        rest = still_there(targets)
        if await have_ended(rest, signal.SIGKILL, max(case.left_s() - spare_s(case) / 2, 0.1)):
            return Outcome(ok=True, text=f"{_told(targets)} ended, {_told(rest)} by SIGKILL after {grace_s:.1f} s")
        return Outcome(ok=False, text=f"{_told(still_there(targets))} did not end, not even by SIGKILL")

    async def undo(self, case: Case) -> Outcome:
        if "stopped" not in recall(case) or not self._options.start:
            return Outcome(ok=True, text="nothing to undo")
        if running := self._targets():
            return Outcome(ok=True, text=f"{_told(running)} runs again already")
        return await child.run(self._options.start, case)

    async def check(self, case: Case) -> bool | None:
        return not self._targets()

    def _targets(self) -> list[Process]:
        options = self._options
        if options.pid_file:
            found = process_in(options.pid_file)
            return [found] if found else []
        return processes_like(options.exe, options.command, options.uid)


def _told(targets: Iterable[Process]) -> str:
    pids = [str(target.pid) for target in targets]
    return f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(pids)}"


def read_options(raw: Raw) -> Options:
    pid_file, exe, command = path(raw, "pid_file"), path(raw, "exe"), texts(raw, "command")
    if not (pid_file or exe or command):
        raise BadOption("", "nothing says which processes", 'write pid_file = "/run/app.pid", or exe, or command')
    if pid_file and (exe or command or "user" in raw):
        raise BadOption("pid_file", "pid_file says it all", "leave exe, command and user out")
    return Options(
        pid_file=pid_file,
        exe=str(exe) if exe else "",
        command=command,
        uid=_uid(text(raw, "user")),
        grace_s=seconds(raw, "grace", 10.0),
        start=line(raw, "start"),
    )


def _uid(user: str) -> int:
    if not user:
        return os.getuid()
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise BadOption("user", f"there is no user {user!r} here", "write the name of one that is") from None


STOP_PROCESSES = ReactionKind(
    name="stop-processes",
    summary="ends processes by pid file, program or exact command",
    options=("pid_file", "exe", "command", "user", "grace", "start"),
    read=read_options,
    make=StopProcesses,
)
