"""How VMs are answered, and limits on what they may use: bytes, time, connections, and requests per second.

All limits are in real time and real bytes, also in a lab (spec §8.5, §10, §12).
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field

from forewarn.protocol.exchange import EndpointRules
from forewarn.protocol.responses import MAX_BODY_BYTES, MAX_HEAD_BYTES

_RESERVED_FILES = 128  # for the store, listeners and operators
_OPEN_FILE_LIMIT = 65_536
_MIN_VM_SHARES = 4  # one VM may use at most 1/4 of all connections


def raise_open_file_limit() -> None:
    """Raise this process's soft limit of open files to 65,536, or to its hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _default_max_connections() -> int:
    """The limit of open files of this process, less a reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else max(_MIN_VM_SHARES, soft - _RESERVED_FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a metadata server allows its clients: sizes, times (real time), connections and request rate.

    A request beyond a limit is refused: 431 (head), 413 (body), 408 (`request_s`) or 429 (rate). A connection beyond
    the limits on connections, or idle for too long, is closed without a response.
    """

    head_bytes: int = MAX_HEAD_BYTES  # request line and headers
    body_bytes: int = MAX_BODY_BYTES  # decoded, if it is chunked
    request_s: float = 10.0  # from the first byte of a request to the last
    idle_s: float = 75.0  # without a request, or with responses that the client does not read
    linger_s: float = 2.0  # lingering close: time for a refused client to read the error
    write_bytes: int = 64 * 1024  # unread responses; above this no further request is processed
    connections_per_vm: int = 1000  # open at a time, at most a quarter of `connections`; unknown callers are one VM
    connections: int = 0  # open at a time, of all VMs and unknown callers; 0: what this process may have open
    requests_per_s: float | None = None  # per VM, of one process (spec §8.5); None: no limit

    @property
    def max_connections(self) -> int:
        """How many connections may be open at a time in this process."""
        return self.connections or _default_max_connections()

    @property
    def max_connections_per_vm(self) -> int:
        """How many connections one VM may have open at a time, at most a quarter of `max_connections`."""
        # So one VM cannot keep the others from connecting. All unknown callers together count as one VM.
        return min(self.connections_per_vm, self.max_connections // _MIN_VM_SHARES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """How VMs are answered. It reaches every process that answers them: workers, and host nodes on other machines."""

    rules: EndpointRules = EndpointRules()  # what the endpoint accepts
    rules_by_location: Mapping[str, EndpointRules] = field(default_factory=dict)  # only locations with their own
    first_answer_delay_s: float = 0.0  # for how long (real time) responses wait after a scope was enabled (spec §8.1)
    limits: Limits = Limits()

    def rules_for(self, location: str) -> EndpointRules:
        """Return the endpoint rules for VMs of this location: its own, or the general `rules`."""
        return self.rules_by_location.get(location, self.rules)


_MAX_BUCKETS = 10_000


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    filled_at: float


class VmRateLimiter:
    """Limits the requests of each VM with a token bucket: `requests_per_s` on average, and as many at once."""

    def __init__(self, requests_per_s: float | None) -> None:
        self._requests_per_s = requests_per_s
        self._buckets: dict[str, _TokenBucket] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether there is a limit (`requests_per_s` is not None), so that `allows` may return False."""
        return self._requests_per_s is not None

    def allows(self, vm: str, now: float) -> bool:
        """Count one request of the VM (its key) at `now` (event loop time) and return True."""
        if self._requests_per_s is None:
            return True
        capacity = max(1.0, self._requests_per_s)
        bucket = self._buckets.get(vm)
        if bucket is None:
            self._drop_full_buckets(now)
            bucket = self._buckets[vm] = _TokenBucket(capacity, now)
        bucket.tokens = min(capacity, bucket.tokens + (now - bucket.filled_at) * self._requests_per_s)
        bucket.filled_at = now
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def _drop_full_buckets(self, now: float) -> None:
        """Drop buckets that are full again: a new one is equal."""
        if len(self._buckets) < _MAX_BUCKETS or not self._requests_per_s:
            return
        refill_s = max(1.0, self._requests_per_s) / self._requests_per_s
        self._buckets = {vm: bucket for vm, bucket in self._buckets.items() if now - bucket.filled_at < refill_s}
