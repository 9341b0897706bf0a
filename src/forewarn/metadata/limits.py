"""How much a caller may ask of us. Everything here is real time and real bytes (spec §10, §12)."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.protocol.exchange import MAX_BODY, MAX_HEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    head_bytes: int = MAX_HEAD
    body_bytes: int = MAX_BODY
    request_s: float = 10.0  # from a request's first byte to its last
    idle_s: float = 75.0  # with no request, or with answers that nobody reads
    linger_s: float = 2.0  # for a refused caller to stop sending and read why
    write_bytes: int = 64 * 1024  # answers that wait to be read; beyond it no request is taken
    connections_per_vm: int = 1000
    requests_per_s: float | None = None  # per VM (spec §8.5); None: no limit
