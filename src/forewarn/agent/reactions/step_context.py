"""What reactions do with their step context: wait within its time, and keep notes for the undo.

Undo notes are written to the step's folder before the reaction acts: notes returned at the end would be lost if the
agent died.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from forewarn.agent.model import StepContext

T = TypeVar("T")
_MAX_RESERVE_S = 0.5


def reserve_s(context: StepContext) -> float:
    """Return the seconds of its budget that a reaction keeps, to be able to say what it waited for."""
    return min(_MAX_RESERVE_S, max(context.left_s(), 0.0) * 0.1)


async def wait_until(context: StepContext, poll: Callable[[], Awaitable[T]], every_s: float = 0.25) -> T:
    """Call `poll` every `every_s` seconds, at least once, until its result is true or the time is over.

    The time is over `reserve_s` before the end of the step's budget; a `poll` that runs then is not cancelled.
    """
    reserved_s = reserve_s(context)
    while not (result := await poll()) and (left_s := context.left_s() - reserved_s) > 0:
        await asyncio.sleep(min(every_s, left_s))
    return result


_NOTES_FILE = "found.json"
UndoNotes = dict[str, str]  # the original state, by names that the reaction chooses


def save_undo_notes(context: StepContext, notes: Mapping[str, str]) -> None:
    """Add notes for the undo to a file in the step's folder, durably: call it before acting."""
    data = json.dumps(load_undo_notes(context) | dict(notes)).encode()
    new_file = context.folder / f"{_NOTES_FILE}.new"
    with new_file.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new_file.replace(context.folder / _NOTES_FILE)
    for folder in (context.folder, *context.folder.parents[:2]):  # each may be new
        _fsync_folder(folder)


def load_undo_notes(context: StepContext) -> UndoNotes:
    try:
        notes = json.loads((context.folder / _NOTES_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in notes.items()} if isinstance(notes, dict) else {}


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def delete_undo_notes(context: StepContext) -> None:
    """Delete all notes that `save_undo_notes` wrote to the step's folder, if any. Raises OSError."""
    (context.folder / _NOTES_FILE).unlink(missing_ok=True)
