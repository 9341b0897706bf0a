"""What a command has left running that outlived its agent: a killed agent cannot end it, so the next one does, before
the step goes on. It is known by a mark in its environment, which its children inherit and no other process has.
"""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

from forewarn.agent.reaction.process import Process, have_ended, processes

VARIABLE = "FOREWARN_RUN"
_NAME = "running"
_KILLED_S = 2.0


def marked(folder: Path) -> dict[str, str]:
    """The mark for a command that is about to be run, written down before it is."""
    mark = secrets.token_hex(16)
    (folder / _NAME).write_text(mark, encoding="ascii")
    return {VARIABLE: mark}


def unmark(folder: Path) -> None:
    """It has ended; what it leaves running is meant to."""
    (folder / _NAME).unlink(missing_ok=True)


async def end_leftovers(folder: Path, grace_s: float) -> None:
    """SIGTERM and, after a while, SIGKILL for what was run in this folder and whose end nobody saw."""
    try:
        mark = (folder / _NAME).read_bytes()
    except FileNotFoundError:
        return
    if not await have_ended(_with(mark), signal.SIGTERM, grace_s):
        await have_ended(_with(mark), signal.SIGKILL, _KILLED_S)
    unmark(folder)


def _with(mark: bytes) -> list[Process]:
    wanted = os.fsencode(VARIABLE) + b"=" + mark
    return [each for each in processes() if mark and wanted in _environment(each.pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or none of our business
        return []
