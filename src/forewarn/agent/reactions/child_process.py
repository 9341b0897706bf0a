"""Runs a command for a step: in its own session, with the event as input, ended when its time is over.

A command that outlives a killed agent is ended by the next agent before it judges any step (`end_orphan_processes`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import BinaryIO

from forewarn.agent.model import StepContext, StepOutcome
from forewarn.agent.reactions.options import CommandLine
from forewarn.agent.reactions.processes import (
    RUN_VARIABLE,
    end_orphan_processes,
    mark_command_process,
    mark_command_run,
    open_input_file,
    remove_run_mark,
)
from forewarn.agent.reactions.step_context import event_facts, event_variables, reserve_s

TERMINATE_GRACE_S = 5.0  # between SIGTERM and SIGKILL, if the time allows
_CANCELLED_GRACE_S = 1.0  # the same after a cancellation
_OUTPUT_DRAIN_S = 1.0
MAX_LOG_BYTES = 1024 * 1024  # of each log file
_MAX_VARIABLE_BYTES = 100_000  # Linux refuses variables over 128 KiB
_NO_VARIABLES: Mapping[str, str] = {}


async def run_command(
    command: CommandLine, context: StepContext, *, log: str = "", variables: Mapping[str, str] = _NO_VARIABLES
) -> StepOutcome:
    """Run a command for a step and wait for it; the outcome is a success if its exit status is 0."""
    # It first ends what an earlier command in the step's folder left running. The command is ended, with its children,
    # when the call is cancelled or shortly before the step's time is over; if it exits by itself, its background
    # processes stay.
    log = log or context.phase
    try:
        status = await exit_status_of(command, context, log=log, variables=variables)
    except TimeoutError:
        return StepOutcome(ok=False, text=f"{command[0]!r} was terminated: its time was over")
    except OSError as error:
        return StepOutcome(ok=False, text=f"{command[0]!r} cannot be run: {error.strerror}")
    if status < 0:
        return StepOutcome(ok=False, text=f"{command[0]!r} was terminated by {_signal_name(-status)}")
    hint = f"; its output is in {context.folder / log}.log" if status else ""
    return StepOutcome(ok=status == 0, text=f"exit status {status}{hint}")


async def exit_status_of(
    command: CommandLine, context: StepContext, *, log: str, variables: Mapping[str, str] = _NO_VARIABLES
) -> int:
    """Run a command for a step and wait; return its exit status, or minus the signal that ended it."""
    grace_s = min(TERMINATE_GRACE_S, max(context.left_s(), 0.0) * 0.1)
    await end_orphan_processes(context.folder, grace_s)
    timeout_s = context.left_s() - grace_s - reserve_s(context)
    with (context.folder / f"{log}.log").open("wb") as file:
        child, output_task = await _start_command(command, context, file, variables)
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                status = await child.wait()
            await asyncio.wait({output_task}, timeout=_OUTPUT_DRAIN_S)  # a background process may keep the pipe open
            return status
        except asyncio.CancelledError:
            grace_s = min(grace_s, _CANCELLED_GRACE_S)
            raise
        finally:
            if child.returncode is None:
                await _terminate(child, grace_s)
                await end_orphan_processes(context.folder, 0.0)  # processes that left the group
            else:
                remove_run_mark(context.folder)
            output_task.cancel()
            await asyncio.gather(output_task, return_exceptions=True)


async def _start_command(
    command: CommandLine, context: StepContext, log: BinaryIO, variables: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    # It uses a pipe of its own: with asyncio's, `wait` would not return while a background process holds the other end.
    run_id = mark_command_run(context.folder)
    all_variables = event_variables(context) | dict(variables) | {RUN_VARIABLE: run_id}
    read_end, write_end = os.pipe()
    try:
        with open_input_file(context.folder, run_id, json.dumps(event_facts(context), indent=1).encode()) as facts:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=facts,
                stdout=write_end,
                stderr=write_end,
                env=os.environ | {name: _environment_safe(text) for name, text in all_variables.items()},
                start_new_session=True,
            )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    mark_command_process(context.folder, child.pid)
    return child, asyncio.create_task(_copy_output(read_end, log))


async def _copy_output(pipe: int, log: BinaryIO) -> None:
    """Reads all output, so that the command never blocks, and keeps the first MAX_LOG_BYTES."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", 0))
    remaining = MAX_LOG_BYTES
    try:
        while data := await reader.read(64 * 1024):
            log.write(data[:remaining])
            log.flush()
            remaining -= min(remaining, len(data))
    finally:
        transport.close()


async def _terminate(child: asyncio.subprocess.Process, grace_s: float) -> None:
    """Ends the command's whole process group: SIGTERM, the grace period, then SIGKILL."""
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


def _environment_safe(text: str) -> str:
    """The text without what an environment cannot hold: a server may send anything."""
    return text.replace("\0", "").encode("utf-8", "replace")[:_MAX_VARIABLE_BYTES].decode("utf-8", "ignore")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
