"""A child process of a reaction's: in a session of its own, with the event at hand, and gone when its time is over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from forewarn.agent.reaction.leftover import end_leftovers, marked, unmark
from forewarn.agent.reaction.option import Line
from forewarn.agent.reaction.patience import spare_s
from forewarn.agent.value import Case, Outcome

GRACE_S = 5.0  # between SIGTERM and SIGKILL, if the time allows
_HASTE_S = 1.0  # the same if nobody wants it to go on
_REST_S = 1.0
LONGEST_LOG = 1024 * 1024
_LONGEST_VARIABLE = 100_000  # Linux starts no program with one of more than 128 KiB
_NOTHING: Mapping[str, str] = {}


async def run(line: Line, case: Case, *, log: str = "", more: Mapping[str, str] = _NOTHING) -> Outcome:
    """Success is exit status 0. What it writes is in LOG.log of the case's folder, up to a limit."""
    log = log or case.phase
    try:
        status = await status_of(line, case, log=log, more=more)
    except TimeoutError:
        return Outcome(ok=False, text=f"{line[0]!r} was ended: its time was over")
    except OSError as error:
        return Outcome(ok=False, text=f"{line[0]!r} cannot be run: {error.strerror}")
    if status < 0:
        return Outcome(ok=False, text=f"{line[0]!r} was ended by {_signal_name(-status)}")
    hint = f"; what it wrote is in {case.folder / log}.log" if status else ""
    return Outcome(ok=status == 0, text=f"exit status {status}{hint}")


async def status_of(line: Line, case: Case, *, log: str, more: Mapping[str, str] = _NOTHING) -> int:
    """The exit status, negative if a signal ended it. Raises TimeoutError when its time was over."""
    grace_s = min(GRACE_S, max(case.left_s(), 0.0) * 0.1)
    await end_leftovers(case.folder, grace_s)
    patience_s = case.left_s() - grace_s - spare_s(case)
    with (case.folder / f"{log}.log").open("wb") as file:
        child, reading = await _start(line, case, file, more)
        try:
            async with asyncio.timeout(max(patience_s, 0.0)):
                status = await child.wait()
            await asyncio.wait({reading}, timeout=_REST_S)  # somebody it left behind may hold the pipe for ever
            return status
        except asyncio.CancelledError:
            grace_s = min(grace_s, _HASTE_S)
            raise
        finally:
            if child.returncode is None:
                await _end(child, grace_s)
                await end_leftovers(case.folder, 0.0)  # who has left its group
            unmark(case.folder)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _start(
    line: Line, case: Case, log: BinaryIO, more: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    """The pipe is our own: one of asyncio's would keep `wait` from returning while anybody holds its other end."""
    named = variables(case) | dict(more) | marked(case.folder)
    ours, theirs = os.pipe()
    try:
        with _as_file(case).open("rb") as facts:
            child = await asyncio.create_subprocess_exec(
                *line,
                stdin=facts,
                stdout=theirs,
                stderr=theirs,
                env=os.environ | {name: _plain(text) for name, text in named.items()},
                start_new_session=True,
            )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return child, asyncio.create_task(_keep(ours, log))


async def _keep(pipe: int, log: BinaryIO) -> None:
    """Read all, so that nobody is stopped by a full pipe; keep so much of it."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", 0))
    room = LONGEST_LOG
    try:
        while data := await reader.read(64 * 1024):
            log.write(data[:room])
            log.flush()
            room -= min(room, len(data))
    finally:
        transport.close()


async def _end(child: asyncio.subprocess.Process, grace_s: float) -> None:
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


def _as_file(case: Case) -> Path:
    path = case.folder / "event.json"
    path.write_text(json.dumps(facts_of(case), indent=1), encoding="utf-8")
    return path


def facts_of(case: Case) -> dict[str, object]:
    """The event as its document had it, and what the agent adds."""
    event = case.event
    return dict(event.raw) | {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.kind,
        "Resources": list(event.resources),
        "NotBefore": event.not_before_text,
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_s,
        "Vm": case.vm,
        "Step": case.step.name,
        "Phase": str(case.phase),
    }


def variables(case: Case) -> dict[str, str]:
    """The same for programs that read no JSON."""
    event = case.event
    return {
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_KIND": event.kind,
        "FOREWARN_STATUS": event.status,
        "FOREWARN_SOURCE": event.source,
        "FOREWARN_DESCRIPTION": event.description,
        "FOREWARN_DURATION_S": "" if event.duration_s is None else str(event.duration_s),
        "FOREWARN_RESOURCES": ",".join(event.resources),
        "FOREWARN_NOT_BEFORE": event.not_before_text,
        "FOREWARN_LEFT_S": f"{max(case.left_s(), 0.0):.0f}",
        "FOREWARN_VM": case.vm,
        "FOREWARN_STEP": case.step.name,
        "FOREWARN_PHASE": str(case.phase),
        "FOREWARN_FOLDER": str(case.folder),
    }


def _plain(text: str) -> str:
    """Fit for an environment, whatever a server sends."""
    return text.replace("\0", "").encode("utf-8", "replace")[:_LONGEST_VARIABLE].decode("utf-8", "ignore")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
