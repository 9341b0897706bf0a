"""How many more requests a limited fault may affect, counted in one process or in a shared file.

Workers share one file, so that a fault limited to N requests affects N requests over all processes.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from forewarn.core.faults import Fault

_COUNTER_FORMAT = struct.Struct("=Q")
_MAX_LOCK_ATTEMPTS = 2000  # milliseconds at most: whoever has the lock has it for microseconds, unless it is stopped


class FaultQuota(Protocol):
    def set_active(self, faults: Iterable[Fault]) -> None:
        """These, and no others, are on; each may have touched some requests before."""

    def has_remaining(self, fault: Fault) -> bool:
        """Whether it may touch one more."""

    def consume(self, fault: Fault) -> bool:
        """Let it touch one more; False, and nothing changed: it may not."""


class LocalFaultQuota:
    """For one process."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def set_active(self, faults: Iterable[Fault]) -> None:
        self._used = {fault.id: max(self._used.get(fault.id, 0), fault.touched) for fault in faults}

    def has_remaining(self, fault: Fault) -> bool:
        return fault.count is None or self._used.get(fault.id, 0) < fault.count

    def consume(self, fault: Fault) -> bool:
        if not self.has_remaining(fault):
            return False
        self._used[fault.id] = self._used.get(fault.id, 0) + 1
        return True


class SharedFaultQuota:
    """For several: what one takes, no other does. Whoever owns the file says where each fault has its place."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._next_offset = _COUNTER_FORMAT.size
        self.offsets: Mapping[str, int] = {}  # of faults that are limited

    @classmethod
    def create(cls) -> SharedFaultQuota:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("forewarn-allowance"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """The places of faults may still be asked for; nothing is written there."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    def assign_offsets(self, faults: Iterable[Fault]) -> Mapping[str, int]:
        """The places of these, for the others to adopt; one that is left is never given again."""
        limited = [fault for fault in faults if fault.count is not None]
        self.offsets = {fault.id: self.offsets.get(fault.id) or self._allocate_offset(fault) for fault in limited}
        return self.offsets

    def set_active(self, faults: Iterable[Fault]) -> None:
        pass  # the owner has

    def has_remaining(self, fault: Fault) -> bool:
        return fault.count is None or self._read_count(self.offsets[fault.id]) < fault.count

    def consume(self, fault: Fault) -> bool:
        if fault.count is None:
            return True
        with self._locked() as is_alone:
            return is_alone and self._consume_one(self.offsets[fault.id], fault.count)

    def _consume_one(self, place: int, count: int) -> bool:
        touched = self._read_count(place)
        if touched < count:
            self._write_count(place, touched + 1)
        return touched < count

    def _allocate_offset(self, fault: Fault) -> int:
        place, self._next_offset = self._next_offset, self._next_offset + _COUNTER_FORMAT.size
        if self.file >= 0:
            self._write_count(place, fault.touched)
        return place

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether nobody else takes meanwhile; False: somebody does and does not come to an end, and all VMs wait."""
        is_alone = self._acquire_lock()
        try:
            yield is_alone
        finally:
            if is_alone:
                fcntl.lockf(self.file, fcntl.LOCK_UN)

    def _acquire_lock(self) -> bool:
        for _ in range(_MAX_LOCK_ATTEMPTS):
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.sched_yield()
            else:
                return True
        return False

    def _read_count(self, place: int) -> int:
        count: int = _COUNTER_FORMAT.unpack(os.pread(self.file, _COUNTER_FORMAT.size, place))[0]
        return count

    def _write_count(self, place: int, count: int) -> None:
        os.pwrite(self.file, _COUNTER_FORMAT.pack(count), place)
