"""Whether a store's files are still where they were: SQLite goes on writing into files that nobody will find again."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

Identity = tuple[int, int]  # device and number: a file keeps them under any name


class Whereabouts:
    def __init__(self, path: Path) -> None:
        self._files = (path, path.with_name(path.name + "-wal"))
        self._known: dict[Path, Identity] = {}

    def check(self) -> None:
        """OperationalError: a file was taken away, or another one is in its place."""
        for file in self._files:
            found = _identity(file)
            known = self._known.get(file)
            if known is None and found is not None:
                self._known[file] = found  # the log comes with the first write
            elif found != known:
                raise sqlite3.OperationalError(f"{file.name} is not where it was: put it back, or start again")


def _identity(file: Path) -> Identity | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
