"""What reactions do with their step context: wait within its time, and keep notes for their undo.

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


def reserve_s(case: StepContext) -> float:
    """What of its time a reaction leaves over, so that it is the one who says what it was still waiting for."""
    return min(_MAX_RESERVE_S, max(case.left_s(), 0.0) * 0.1)


async def wait_until(case: StepContext, ask: Callable[[], Awaitable[T]], every_s: float = 0.25) -> T:
    """What `ask` gives once that is true, or at the end of the time; it is asked at least once."""
    end_s = reserve_s(case)
    while not (given := await ask()) and (left_s := case.left_s() - end_s) > 0:
        await asyncio.sleep(min(every_s, left_s))
    return given


_NOTES_FILE = "found.json"
UndoNotes = dict[str, str]


def save_undo_notes(case: StepContext, found: Mapping[str, str]) -> None:
    """Durable when this returns; what was remembered under these names before is forgotten."""
    data = json.dumps(load_undo_notes(case) | dict(found)).encode()
    fresh = case.folder / f"{_NOTES_FILE}.new"
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(case.folder / _NOTES_FILE)
    for folder in (case.folder, *case.folder.parents[:2]):  # all of which may be new
        _fsync_folder(folder)


def load_undo_notes(case: StepContext) -> UndoNotes:
    """Nothing if nothing was found, or nothing that can be read."""
    try:
        found = json.loads((case.folder / _NOTES_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _fsync_folder(folder: Path) -> None:
    target = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(target)
    finally:
        os.close(target)


def delete_undo_notes(case: StepContext) -> None:
    (case.folder / _NOTES_FILE).unlink(missing_ok=True)
