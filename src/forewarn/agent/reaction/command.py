"""A command of the user's, with the event in its environment and as JSON on its standard input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.value import Case, Outcome

Line = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    run: Line
    undo: Line = ()
    check: Line = ()


class Command:
    """Exit status 0 is success; `check` says with it that `run` was done."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        return await self._outcome(self._options.run, case)

    async def undo(self, case: Case) -> Outcome:
        if not self._options.undo:
            return Outcome(ok=True, text="nothing to undo")
        return await self._outcome(self._options.undo, case)

    async def check(self, case: Case) -> bool | None:
        if not self._options.check:
            return None
        return await _status(self._options.check, case) == 0

    async def _outcome(self, line: Line, case: Case) -> Outcome:
        try:
            status = await _status(line, case)
        except OSError as error:
            return Outcome(ok=False, text=f"{line[0]!r} cannot be run: {error.strerror}")
        return Outcome(ok=status == 0, text=f"exit status {status}")


async def _status(line: Line, case: Case) -> int:
    with (case.folder / f"{case.phase}.log").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            *line,
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | _variables(case),
            start_new_session=True,
        )
    try:
        await child.communicate(json.dumps(_facts(case)).encode())
        return child.returncode or 0
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


def _facts(case: Case) -> dict[str, object]:
    event = case.event
    return {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.kind,
        "Resources": list(event.resources),
        "NotBefore": event.not_before_text,
        "Phase": case.phase,
        "Vm": case.vm,
    }


def _variables(case: Case) -> dict[str, str]:
    event = case.event
    return {
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_KIND": event.kind,
        "FOREWARN_STATUS": event.status,
        "FOREWARN_RESOURCES": ",".join(event.resources),
        "FOREWARN_NOT_BEFORE": event.not_before_text,
        "FOREWARN_LEFT_S": f"{case.left_s():.0f}",
        "FOREWARN_VM": case.vm,
        "FOREWARN_PHASE": case.phase,
        "FOREWARN_FOLDER": str(case.folder),
    }


def read_options(raw: Mapping[str, Any]) -> Options:
    if "run" not in raw:
        raise BadOption("", "a command has no run", 'write run = ["/usr/local/bin/prepare"]')
    return Options(run=_line(raw, "run"), undo=_line(raw, "undo"), check=_line(raw, "check"))


def _line(raw: Mapping[str, Any], key: str) -> Line:
    value = raw.get(key, [])
    if isinstance(value, str) and value:
        return ("/bin/sh", "-c", value)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value) or (key in raw and not value):
        raise BadOption(key, f"{key} = {value!r} is no command", f'write {key} = ["program", "argument"]')
    return tuple(value)


COMMAND = ReactionKind(
    name="command",
    summary="runs a command of yours",
    options=("run", "undo", "check"),
    read=read_options,
    make=Command,
)
