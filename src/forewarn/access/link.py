"""Links that sign in whoever opens them: once, soon, and known here by their hash alone. Nothing of them is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from forewarn.access.claims import Claims
from forewarn.errors import Unauthenticated

LASTS_S = 15 * 60  # real time
_BYTES = 32
_MOST = 256  # that nobody has opened yet; the oldest goes first
_SPENT = "this link signs nobody in: it was used already, or its 15 minutes are over; `forewarn portal` makes another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Whom a link signs in."""

    claims: Claims
    is_owner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    url: str = field(repr=False)
    ends_at: float


class Links:
    """Makes links that begin with `prefix`."""

    def __init__(self, prefix: str, real_time: Callable[[], float]) -> None:
        self._prefix = prefix
        self._real_time = real_time
        self._open: dict[bytes, tuple[Pass, float]] = {}  # oldest first

    def make(self, whom: Pass) -> Link:
        code, ends_at = secrets.token_urlsafe(_BYTES), self._real_time() + LASTS_S
        while len(self._open) >= _MOST:
            del self._open[next(iter(self._open))]
        self._open[_hash(code)] = whom, ends_at
        return Link(url=f"{self._prefix}{code}", ends_at=ends_at)

    def spend(self, code: str) -> Pass:
        """Raises Unauthenticated where there is no such link, or no longer."""
        whom, ends_at = self._open.pop(_hash(code), (None, 0.0))
        if whom is None or not self._real_time() < ends_at:
            raise Unauthenticated(_SPENT)
        return whom


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
