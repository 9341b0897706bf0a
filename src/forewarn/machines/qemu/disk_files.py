"""Creates and replaces the files of disks, in threads that do not outlive the act that needs them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from forewarn.errors import Refused
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.qemu.instance import file_error, sync_directory

_CHUNK_BYTES = 1 << 22
_ZEROS = bytes(_CHUNK_BYTES)


class DiskFileJobs:
    """Creates and replaces disk files, each in a thread."""

    # A job whose caller is cancelled stops at once, and the caller waits for it: otherwise it could replace the disk of
    # a VM that has been booted meanwhile.

    def __init__(self) -> None:
        self._running: dict[asyncio.Future[None], threading.Event] = {}
        self._is_closed = False

    async def make_empty_disk(self, path: Path, size_mib: int) -> None:
        """Replace the file with an empty raw disk of `size_mib` MiB, atomically and durably."""
        await self._run(lambda stop: _make_empty_disk(path, size_mib, stop))

    async def copy_disk(self, image: Path, disk: Path) -> None:
        """Replace the disk's file with a copy of the image, atomically and durably."""
        await self._run(lambda stop: _copy_disk(image, disk, stop))

    async def close(self) -> None:
        """Stop all jobs, which leave their files as they were, and wait until they have ended."""
        self._is_closed = True
        for stop in self._running.values():
            stop.set()
        if self._running:
            await asyncio.wait(set(self._running))

    async def _run(self, work: Callable[[threading.Event], None]) -> None:
        if self._is_closed:
            raise HostUnreachable("the driver of QEMU is closed")
        stop = threading.Event()
        job = asyncio.get_running_loop().run_in_executor(None, work, stop)
        self._running[job] = stop
        job.add_done_callback(self._running.pop)
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            stop.set()
            while not job.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({job})
            job.exception()  # seen
            raise


def _make_empty_disk(path: Path, size_mib: int, stop: threading.Event) -> None:
    def fill(file: IO[bytes]) -> None:
        file.truncate(size_mib * 1024 * 1024)

    try:
        _replace(path, fill, stop)
    except OSError as error:
        raise file_error(f"disk {str(path)!r} cannot be created", error) from error


def _copy_disk(image: Path, disk: Path, stop: threading.Event) -> None:
    if disk.exists() and not disk.is_file():
        raise Refused(f"disk {str(disk)!r} is not a file: an image can only be copied over a file")

    def fill(file: IO[bytes]) -> None:
        with image.open("rb", buffering=0) as source:
            while (chunk := source.read(_CHUNK_BYTES)) and not stop.is_set():
                if chunk == _ZEROS[: len(chunk)]:
                    file.seek(len(chunk), os.SEEK_CUR)  # leaves a hole
                else:
                    file.write(chunk)
            file.truncate(file.tell())

    try:
        _replace(disk, fill, stop)
    except OSError as error:
        raise file_error(f"image {str(image)!r} cannot be copied to {str(disk)!r}", error) from error


def _replace(path: Path, fill: Callable[[IO[bytes]], None], stop: threading.Event) -> None:
    """Replace the file with one that `fill` writes; leaves it as it is after `stop`, or if `fill` raises."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("wb") as file:
            fill(file)
            if stop.is_set():
                raise HostUnreachable(f"disk {str(path)!r} was left as it is, because the act has ended")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
