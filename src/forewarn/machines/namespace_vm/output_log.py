"""The log of a detached program: output from a pipe, kept in two files of bounded size.

The program does not write to the file itself, because then nothing could limit it. When `output.log` is full it
becomes `output.log.1`, in place of an older one.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 8 * 1024 * 1024  # of each of the two files
_PIPE_BYTES = 64 * 1024  # what a pipe of Linux holds
_TAIL_BYTES = 4096


class OutputLog:
    """Copies the output of a VM's program from a pipe to a file, and keeps the end of it in memory."""

    # Output that cannot be written, as on a full disk, is dropped: the program must not wait for it.

    def __init__(self, path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = _open_for_appending(path)
        self._read_end, self.write_end = os.pipe()  # `write_end` is for the program
        os.set_blocking(self._read_end, False)
        self._is_write_end_open = True
        self._tail = b""

    def close_write_end(self) -> None:
        """Close this process's copy of `write_end`, once the VM has its own; may be called twice."""
        if self._is_write_end_open:
            self._is_write_end_open = False
            os.close(self.write_end)

    def watch(self) -> None:
        """Have the running event loop copy output to the file, until nobody can write any more."""
        asyncio.get_running_loop().add_reader(self._read_end, self._on_readable)

    def tail(self) -> str:
        """Copy what is in the pipe to the file, and return the last 4096 bytes of the output as text."""
        self._copy_available()
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        """Copy what is in the pipe, and close everything. Call it once, after the event loop and the VM ended."""
        self.close_write_end()
        self._copy_available()
        os.close(self._read_end)
        os.close(self._file)

    def _on_readable(self) -> None:
        if not self._copy_available():
            asyncio.get_running_loop().remove_reader(self._read_end)  # nobody can write any more

    def _copy_available(self) -> bool:
        try:
            data = os.read(self._read_end, _PIPE_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        with suppress(OSError):
            self._write(data)
        return bool(data)

    def _write(self, data: bytes) -> None:
        if os.fstat(self._file).st_size + len(data) > self._max_bytes:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            full, self._file = self._file, _open_for_appending(self._path)
            os.close(full)
        os.write(self._file, data)


def _open_for_appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
