"""A small disk (tmpfs) for a data directory, which a test fills and empties."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType

_PIECE = b"\0" * 4096


@cache
def why_disks_are_unavailable() -> str:
    """Why this machine does not let tests mount such a disk; "" if it does."""
    if os.geteuid() != 0:
        return "a small disk needs root"
    with tempfile.TemporaryDirectory() as directory:
        try:
            with SmallDisk(Path(directory, "probe"), mib=1):
                return ""
        except (OSError, AssertionError) as error:
            return f"no disk can be mounted here: {error}"


class SmallDisk:
    """A file system of `mib` MiB at `path`, which is created. Leaving the block unmounts it, even if it is in use."""

    def __init__(self, path: Path, *, mib: int) -> None:
        self.path = path
        self._filler = path / "filler"
        path.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path))

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _run("umount", "--lazy", str(self.path))

    def fill(self, leave: int = 0) -> None:
        """Leave this many bytes of space; may be called again, for space that was freed meanwhile."""
        with self._filler.open("ab", buffering=0) as file:
            while self._free_bytes() > leave or not leave:
                try:
                    file.write(_PIECE)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def empty(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


def _run(*line: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"
