"""Runs a command for a step: in its own session, with the event as input, ended when its time is over.

A command that outlives a killed agent is ended by the next agent before the step continues. It is found by a mark in
its environment, which its children inherit and no other process has.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.event_text import event_facts, event_variables
from forewarn.agent.reactions.options import CommandLine
from forewarn.agent.reactions.processes import ProcessInfo, other_processes, signal_and_wait
from forewarn.agent.reactions.step_context import reserve_s

TERMINATE_GRACE_S = 5.0  # between SIGTERM and SIGKILL, if the time allows
_CANCELLED_GRACE_S = 1.0  # the same if nobody wants it to go on
_OUTPUT_DRAIN_S = 1.0
MAX_LOG_BYTES = 1024 * 1024
_MAX_VARIABLE_BYTES = 100_000  # Linux starts no program with one of more than 128 KiB
_NO_VARIABLES: Mapping[str, str] = {}


async def run_command(
    line: CommandLine, case: StepContext, *, log: str = "", more: Mapping[str, str] = _NO_VARIABLES
) -> StepOutcome:
    """Success is exit status 0. What it writes is in LOG.log of the case's folder, up to a limit."""
    log = log or case.phase
    try:
        status = await exit_status_of(line, case, log=log, more=more)
    except TimeoutError:
        return StepOutcome(ok=False, text=f"{line[0]!r} was ended: its time was over")
    except OSError as error:
        return StepOutcome(ok=False, text=f"{line[0]!r} cannot be run: {error.strerror}")
    if status < 0:
        return StepOutcome(ok=False, text=f"{line[0]!r} was ended by {_signal_name(-status)}")
    hint = f"; what it wrote is in {case.folder / log}.log" if status else ""
    return StepOutcome(ok=status == 0, text=f"exit status {status}{hint}")


async def exit_status_of(
    line: CommandLine, case: StepContext, *, log: str, more: Mapping[str, str] = _NO_VARIABLES
) -> int:
    """The exit status, negative if a signal ended it. Raises TimeoutError when its time was over."""
    grace_s = min(TERMINATE_GRACE_S, max(case.left_s(), 0.0) * 0.1)
    await end_orphan_processes(case.folder, grace_s)
    patience_s = case.left_s() - grace_s - reserve_s(case)
    with (case.folder / f"{log}.log").open("wb") as file:
        child, reading = await _start_command(line, case, file, more)
        try:
            async with asyncio.timeout(max(patience_s, 0.0)):
                status = await child.wait()
            await asyncio.wait({reading}, timeout=_OUTPUT_DRAIN_S)  # somebody it left behind may hold the pipe for ever
            return status
        except asyncio.CancelledError:
            grace_s = min(grace_s, _CANCELLED_GRACE_S)
            raise
        finally:
            if child.returncode is None:
                await _terminate(child, grace_s)
                await end_orphan_processes(case.folder, 0.0)  # who has left its group
            remove_run_mark(case.folder)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _start_command(
    line: CommandLine, case: StepContext, log: BinaryIO, more: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    """The pipe is our own: one of asyncio's would keep `wait` from returning while anybody holds its other end."""
    named = event_variables(case) | dict(more) | mark_command_run(case.folder)
    ours, theirs = os.pipe()
    try:
        with _write_event_file(case).open("rb") as facts:
            child = await asyncio.create_subprocess_exec(
                *line,
                stdin=facts,
                stdout=theirs,
                stderr=theirs,
                env=os.environ | {name: _environment_safe(text) for name, text in named.items()},
                start_new_session=True,
            )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return child, asyncio.create_task(_copy_output(ours, log))


async def _copy_output(pipe: int, log: BinaryIO) -> None:
    """Read all, so that nobody is stopped by a full pipe; keep so much of it."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", 0))
    room = MAX_LOG_BYTES
    try:
        while data := await reader.read(64 * 1024):
            log.write(data[:room])
            log.flush()
            room -= min(room, len(data))
    finally:
        transport.close()


async def _terminate(child: asyncio.subprocess.Process, grace_s: float) -> None:
    """The whole group: SIGTERM, so that it can tidy up, and SIGKILL for what is still there."""
    _signal_group(child.pid, signal.SIGTERM)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await child.wait()
    finally:
        _signal_group(child.pid, signal.SIGKILL)
    await child.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _write_event_file(case: StepContext) -> Path:
    path = case.folder / "event.json"
    path.write_text(json.dumps(event_facts(case), indent=1), encoding="utf-8")
    return path


def _environment_safe(text: str) -> str:
    """Fit for an environment, whatever a server sends."""
    return text.replace("\0", "").encode("utf-8", "replace")[:_MAX_VARIABLE_BYTES].decode("utf-8", "ignore")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


RUN_VARIABLE = "FOREWARN_RUN"
_RUN_MARK_FILE = "running"
_KILL_TIMEOUT_S = 2.0


def mark_command_run(folder: Path) -> dict[str, str]:
    """The mark for a command that is about to be run, written down before it is."""
    mark = secrets.token_hex(16)
    (folder / _RUN_MARK_FILE).write_text(mark, encoding="ascii")
    return {RUN_VARIABLE: mark}


def remove_run_mark(folder: Path) -> None:
    """It has ended; what it leaves running is meant to."""
    (folder / _RUN_MARK_FILE).unlink(missing_ok=True)


async def end_orphan_processes(folder: Path, grace_s: float) -> None:
    """SIGTERM and, after a while, SIGKILL for what was run in this folder and whose end nobody saw."""
    try:
        mark = (folder / _RUN_MARK_FILE).read_bytes()
    except FileNotFoundError:
        return
    if not await signal_and_wait(_processes_with_mark(mark), signal.SIGTERM, grace_s):
        await signal_and_wait(_processes_with_mark(mark), signal.SIGKILL, _KILL_TIMEOUT_S)
    remove_run_mark(folder)


def _processes_with_mark(mark: bytes) -> list[ProcessInfo]:
    wanted = os.fsencode(RUN_VARIABLE) + b"=" + mark
    return [each for each in other_processes() if mark and wanted in _process_environment(each.pid)]


def _process_environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or none of our business
        return []
