"""What makes files durable."""

from __future__ import annotations

import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Flush a file to disk (fsync), or the names in a directory, after one was renamed, created or deleted."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
