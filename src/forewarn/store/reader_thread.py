"""The thread of a SQLite store for long reads, each on a connection of its own.

asyncio's threads are few, and others need them for quick work such as durable writes of small files: long reads there
would hold that up. One thread is enough, because the interpreter runs only one of several reads at a time anyway.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from forewarn.errors import Unavailable
from forewarn.store import sqlite_file

T = TypeVar("T")


class ReaderThread:
    """A thread that reads the store's file at `path`, one read after the other; the first read starts it."""

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._path = path
        self._check = check
        self._is_open = True
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"reader of {path}")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `read` returns, called on the thread with a new connection, which is closed afterwards."""
        self._require_open()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, read)

    async def close(self) -> None:
        """Wait for the read under way, and end the thread; reads that wait raise Unavailable."""
        self._is_open = False
        await asyncio.to_thread(self._executor.shutdown)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        self._require_open()
        with sqlite_file.file_errors_as_unavailable(self._path, "read"):
            self._check()
            db = sqlite_file.connect_reader(self._path)
        with closing(db):
            return read(db)

    def _require_open(self) -> None:
        if not self._is_open:
            raise Unavailable(f"the store {str(self._path)!r} is closed and cannot be read: open it again")
