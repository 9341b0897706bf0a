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
_MAX_LOCK_ATTEMPTS = 2000  # a few milliseconds; a process holds the lock for microseconds, unless it is stopped


class FaultQuota(Protocol):
    """Counts the requests that each transport fault has affected, up to its limit `Fault.count` (None: no limit)."""

    def set_active(self, faults: Iterable[Fault]) -> None:
        """Replace the active faults, and forget the counts of all others."""

    def has_remaining(self, fault: Fault) -> bool:
        """Return whether the fault may affect one more request; counts nothing."""

    def consume(self, fault: Fault) -> bool:
        """Count one more affected request and return True; False, uncounted, if the fault is at its limit.

        A quota that processes share may also return False because the request cannot be counted now.
        """


class LocalFaultQuota:
    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def set_active(self, faults: Iterable[Fault]) -> None:
        self._used = {fault.id: max(self._used.get(fault.id, 0), fault.applied) for fault in faults}

    def has_remaining(self, fault: Fault) -> bool:
        return fault.count is None or self._used.get(fault.id, 0) < fault.count

    def consume(self, fault: Fault) -> bool:
        if not self.has_remaining(fault):
            return False
        self._used[fault.id] = self._used.get(fault.id, 0) + 1
        return True


class SharedFaultQuota:
    """A `FaultQuota` in a file that several processes share, with one counter per fault that has a limit.

    The process that created the file assigns the offsets of the counters; the others get them in messages and set
    `offsets`.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._next_offset = _COUNTER_FORMAT.size
        self.offsets: Mapping[str, int] = {}  # fault id → offset of its counter; only faults with a limit

    @classmethod
    def create(cls) -> SharedFaultQuota:
        """Create the shared file, and return a quota without counters, which the caller closes."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("forewarn-allowance"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """Close the file; may be called twice."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    def assign_offsets(self, faults: Iterable[Fault]) -> Mapping[str, int]:
        """Give each fault that has a limit a counter; return where each counter is in the file, by fault id."""
        limited = [fault for fault in faults if fault.count is not None]
        self.offsets = {fault.id: self.offsets.get(fault.id) or self._allocate_offset(fault) for fault in limited}
        return self.offsets

    def set_active(self, faults: Iterable[Fault]) -> None: ...

    def has_remaining(self, fault: Fault) -> bool:
        return fault.count is None or self._read_count(self.offsets[fault.id]) < fault.count

    def consume(self, fault: Fault) -> bool:
        if fault.count is None:
            return True
        with self._locked() as has_lock:
            return has_lock and self._consume_one(self.offsets[fault.id], fault.count)

    def _consume_one(self, offset: int, limit: int) -> bool:
        used = self._read_count(offset)
        if used < limit:
            self._write_count(offset, used + 1)
        return used < limit

    def _allocate_offset(self, fault: Fault) -> int:
        offset, self._next_offset = self._next_offset, self._next_offset + _COUNTER_FORMAT.size
        if self.file >= 0:
            self._write_count(offset, fault.applied)
        return offset

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Yield whether the lock was acquired. Waiting for a stopped process would block all VMs."""
        has_lock = self._acquire_lock()
        try:
            yield has_lock
        finally:
            if has_lock:
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

    def _read_count(self, offset: int) -> int:
        count: int = _COUNTER_FORMAT.unpack(os.pread(self.file, _COUNTER_FORMAT.size, offset))[0]
        return count

    def _write_count(self, offset: int, count: int) -> None:
        os.pwrite(self.file, _COUNTER_FORMAT.pack(count), offset)
