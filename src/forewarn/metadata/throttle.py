"""How often one VM may ask (spec §8.5): a bucket of tokens per VM, refilled in real time."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_VMS = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class Throttle:
    """Lets `requests_per_s` through, and as many at once; None lets everything through."""

    def __init__(self, requests_per_s: float | None) -> None:
        self._rate = requests_per_s
        self._buckets: dict[str, _Bucket] = {}

    @property
    def is_on(self) -> bool:
        return self._rate is not None

    def admits(self, vm: str, now: float) -> bool:
        if self._rate is None:
            return True
        most = max(1.0, self._rate)
        bucket = self._buckets.get(vm)
        if bucket is None:
            self._forget_rested(now)
            bucket = self._buckets[vm] = _Bucket(most, now)
        bucket.tokens = min(most, bucket.tokens + (now - bucket.filled_at) * self._rate)
        bucket.filled_at = now
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def _forget_rested(self, now: float) -> None:
        """A bucket that is full again is no different from a new one."""
        if len(self._buckets) < _MOST_VMS or not self._rate:
            return
        rest_s = max(1.0, self._rate) / self._rate
        self._buckets = {vm: kept for vm, kept in self._buckets.items() if now - kept.filled_at < rest_s}
