"""Limits on what callers may use: bytes, time, connections, and requests per second of one VM.

All of them are in real time and real bytes, also in a lab (spec §8.5, §10, §12).
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

from forewarn.protocol.responses import MAX_BODY_BYTES, MAX_HEAD_BYTES

_RESERVED_FILES = 128  # for the store, listeners, and those who are to see what is going on
_MIN_VM_SHARES = 4  # no VM has more than one of so many shares of all connections


def _default_max_connections() -> int:
    """As many as this process may have open at once, and some to spare."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else max(_MIN_VM_SHARES, soft - _RESERVED_FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    head_bytes: int = MAX_HEAD_BYTES
    body_bytes: int = MAX_BODY_BYTES
    request_s: float = 10.0  # from a request's first byte to its last
    idle_s: float = 75.0  # with no request, or with answers that nobody reads
    linger_s: float = 2.0  # for a refused caller to stop sending and read why
    write_bytes: int = 64 * 1024  # answers that wait to be read; beyond it no request is taken
    connections_per_vm: int = 1000
    connections: int = field(default_factory=_default_max_connections)  # of all VMs and strangers
    requests_per_s: float | None = None  # per VM (spec §8.5); None: no limit

    @property
    def max_connections_per_vm(self) -> int:
        """How many connections one VM may have: whatever it does, there is room for others."""
        return min(self.connections_per_vm, self.connections // _MIN_VM_SHARES)


_MAX_BUCKETS = 10_000


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    filled_at: float


class VmRateLimiter:
    """Lets `requests_per_s` through, and as many at once; None lets everything through."""

    def __init__(self, requests_per_s: float | None) -> None:
        self._requests_per_s = requests_per_s
        self._buckets: dict[str, _TokenBucket] = {}

    @property
    def is_enabled(self) -> bool:
        return self._requests_per_s is not None

    def allows(self, vm: str, now: float) -> bool:
        if self._requests_per_s is None:
            return True
        most = max(1.0, self._requests_per_s)
        bucket = self._buckets.get(vm)
        if bucket is None:
            self._drop_full_buckets(now)
            bucket = self._buckets[vm] = _TokenBucket(most, now)
        bucket.tokens = min(most, bucket.tokens + (now - bucket.filled_at) * self._requests_per_s)
        bucket.filled_at = now
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def _drop_full_buckets(self, now: float) -> None:
        """A bucket that is full again is no different from a new one."""
        if len(self._buckets) < _MAX_BUCKETS or not self._requests_per_s:
            return
        rest_s = max(1.0, self._requests_per_s) / self._requests_per_s
        self._buckets = {vm: kept for vm, kept in self._buckets.items() if now - kept.filled_at < rest_s}
