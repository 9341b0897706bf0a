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
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        os.close(self.file)

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
        place = self.places[fault.id]
        with self._alone():
            touched = self._read(place)
            if touched >= fault.count:
                return False
            self._write(place, touched + 1)
            return True

    def _new_place(self, fault: Fault) -> int:
        place, self._next = self._next, self._next + _COUNT.size
        self._write(place, fault.touched)
        return place

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)

    def _read(self, place: int) -> int:
        count: int = _COUNT.unpack(os.pread(self.file, _COUNT.size, place))[0]
        return count

    def _write(self, place: int, count: int) -> None:
        os.pwrite(self.file, _COUNT.pack(count), place)
