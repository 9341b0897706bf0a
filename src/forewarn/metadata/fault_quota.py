"""How many requests a fault may still touch, where that is limited: counted here, or in a file that processes share."""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from forewarn.core.fault import Fault

_COUNT = struct.Struct("=Q")
_TRIES = 2000  # milliseconds at most: whoever has the lock has it for microseconds, unless it is stopped


class Allowance(Protocol):
    def begin(self, faults: Iterable[Fault]) -> None:
        """These, and no others, are on; each may have touched some requests before."""

    def is_left(self, fault: Fault) -> bool:
        """Whether it may touch one more."""

    def take(self, fault: Fault) -> bool:
        """Let it touch one more; False, and nothing changed: it may not."""


class OwnAllowance:
    """For one process."""

    def __init__(self) -> None:
        self._touched: dict[str, int] = {}

    def begin(self, faults: Iterable[Fault]) -> None:
        self._touched = {fault.id: max(self._touched.get(fault.id, 0), fault.touched) for fault in faults}

    def is_left(self, fault: Fault) -> bool:
        return fault.count is None or self._touched.get(fault.id, 0) < fault.count

    def take(self, fault: Fault) -> bool:
        if not self.is_left(fault):
            return False
        self._touched[fault.id] = self._touched.get(fault.id, 0) + 1
        return True


class SharedAllowance:
    """For several: what one takes, no other does. Whoever owns the file says where each fault has its place."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._next = _COUNT.size
        self.places: Mapping[str, int] = {}  # of faults that are limited

    @classmethod
    def new(cls) -> SharedAllowance:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("forewarn-allowance"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """The places of faults may still be asked for; nothing is written there."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    def lay_out(self, faults: Iterable[Fault]) -> Mapping[str, int]:
        """The places of these, for the others to adopt; one that is left is never given again."""
        limited = [fault for fault in faults if fault.count is not None]
        self.places = {fault.id: self.places.get(fault.id) or self._new_place(fault) for fault in limited}
        return self.places

    def begin(self, faults: Iterable[Fault]) -> None:
        pass  # the owner has

    def is_left(self, fault: Fault) -> bool:
        return fault.count is None or self._read(self.places[fault.id]) < fault.count

    def take(self, fault: Fault) -> bool:
        if fault.count is None:
            return True
        with self._alone() as is_alone:
            return is_alone and self._take_one(self.places[fault.id], fault.count)

    def _take_one(self, place: int, count: int) -> bool:
        touched = self._read(place)
        if touched < count:
            self._write(place, touched + 1)
        return touched < count

    def _new_place(self, fault: Fault) -> int:
        place, self._next = self._next, self._next + _COUNT.size
        if self.file >= 0:
            self._write(place, fault.touched)
        return place

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether nobody else takes meanwhile; False: somebody does and does not come to an end, and all VMs wait."""
        is_alone = self._lock()
        try:
            yield is_alone
        finally:
            if is_alone:
                fcntl.lockf(self.file, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        for _ in range(_TRIES):
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.sched_yield()
            else:
                return True
        return False

    def _read(self, place: int) -> int:
        count: int = _COUNT.unpack(os.pread(self.file, _COUNT.size, place))[0]
        return count

    def _write(self, place: int, count: int) -> None:
        os.pwrite(self.file, _COUNT.pack(count), place)
