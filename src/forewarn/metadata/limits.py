"""How much a caller may ask of us. Everything here is real time and real bytes (spec §10, §12)."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

from forewarn.protocol.exchange import MAX_BODY, MAX_HEAD

_SPARE_FILES = 128  # for the store, listeners, and those who are to see what is going on
_SHARES = 4  # no VM has more than one of so many shares of all connections


def _most_connections() -> int:
    """As many as this process may have open at once, and some to spare."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else max(_SHARES, soft - _SPARE_FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    head_bytes: int = MAX_HEAD
    body_bytes: int = MAX_BODY
    request_s: float = 10.0  # from a request's first byte to its last
    idle_s: float = 75.0  # with no request, or with answers that nobody reads
    linger_s: float = 2.0  # for a refused caller to stop sending and read why
    write_bytes: int = 64 * 1024  # answers that wait to be read; beyond it no request is taken
    connections_per_vm: int = 1000
    connections: int = field(default_factory=_most_connections)  # of all VMs and strangers
    requests_per_s: float | None = None  # per VM (spec §8.5); None: no limit

    @property
    def share(self) -> int:
        """How many connections one VM may have: whatever it does, there is room for others."""
        return min(self.connections_per_vm, self.connections // _SHARES)
