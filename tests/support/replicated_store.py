"""Opens replicated stores for tests: takes the lease, without threads that renew it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forewarn.cluster.record import LeaseRow, MustStop, SharedRecord
from forewarn.cluster.replicated_store import LeaseGuard, ReplicatedStore


class AlwaysHeld(LeaseGuard):
    """A guard that lets every write pass: only the fence of the record decides."""

    def __init__(self) -> None:
        self.renewals = 0
        self.deposed_because: str | None = None

    def check(self) -> None:
        pass

    def renewed(self, sent_at: float) -> None:
        self.renewals += 1

    def deposed(self, reason: str) -> None:
        self.deposed_because = reason


class RecordedStops:
    """Collects what `on_stop` was called with."""

    def __init__(self) -> None:
        self.errors: list[MustStop] = []

    def __call__(self, error: MustStop) -> None:
        self.errors.append(error)


def take(record: SharedRecord, name: str = "c1") -> LeaseRow:
    """Take the lease, which must be free."""
    lease = record.take_lease(name, f"https://{name}.example")
    assert lease is not None
    return lease


def open_replicated(
    path: Path,
    record: SharedRecord,
    lease: LeaseRow | None = None,
    *,
    guard: LeaseGuard | None = None,
    on_stop: Callable[[MustStop], None] = lambda error: None,
) -> ReplicatedStore:
    """Return the store of a node that has just taken the lease, or has this one."""
    return ReplicatedStore.open_copy(
        path, record, lease or take(record), guard=guard or AlwaysHeld(), clock=lambda: 1000.0, on_stop=on_stop
    )
