"""What a reaction must know to undo itself, in a file of its folder, written before it acts: a note that is handed over
at the end would be lost with the agent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from forewarn.agent.value import Case

_NAME = "found.json"
Found = dict[str, str]


def remember(case: Case, found: Mapping[str, str]) -> None:
    """Durable when this returns; what was remembered under these names before is forgotten."""
    data = json.dumps(recall(case) | dict(found)).encode()
    fresh = case.folder / f"{_NAME}.new"
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(case.folder / _NAME)
    for folder in (case.folder, *case.folder.parents[:2]):  # all of which may be new
        _sync(folder)


def recall(case: Case) -> Found:
    """Nothing if nothing was found, or nothing that can be read."""
    try:
        found = json.loads((case.folder / _NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _sync(folder: Path) -> None:
    target = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(target)
    finally:
        os.close(target)


def forget(case: Case) -> None:
    (case.folder / _NAME).unlink(missing_ok=True)
