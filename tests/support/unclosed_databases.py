"""Makes Python before 3.13 warn about SQLite connections that were never closed, as Python 3.13 does by itself.

The warning appears when the connection is deallocated, perhaps in a later test. Warnings are errors here, so a leak
fails a test with every version of Python.
"""

from __future__ import annotations

import sqlite3
import sys
import warnings
from functools import partial
from typing import Any


class _TrackedConnection(sqlite3.Connection):
    """A connection that warns if it is deallocated while it is open."""

    _is_open = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_open = True

    def close(self) -> None:
        super().close()
        self._is_open = False

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=1, source=self)


def warn_of_unclosed_databases() -> None:
    """Let `sqlite3.connect` return connections that warn; does nothing where Python has the warning."""
    if sys.version_info < (3, 13):
        setattr(sqlite3, "connect", partial(sqlite3.connect, factory=_TrackedConnection))  # noqa: B010 (mypy)
