"""The seams: what is read of the store, and how one letter goes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from forewarn.core.change import Commit
from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry
from forewarn.core.webhook import Webhook
from forewarn.errors import Unavailable


class Record(Protocol):
    """The part of a store that is needed here; both stores have it."""

    def webhooks(self) -> list[Webhook]: ...
    def entries_after(self, seq: int, limit: int) -> list[Entry]: ...
    def event(self, event_id: str) -> Event | None: ...
    def vm(self, key: str) -> Vm | None: ...
    async def commit(self, commit: Commit) -> int: ...
    def subscribe(self, hear: Callable[[Any], None]) -> Callable[[], None]: ...


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request."""

    url: str
    headers: dict[str, str]
    body: bytes = b""
    method: str = "POST"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; of the body only the beginning."""

    status: int
    headers: dict[str, str] = {}  # names in lower case
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class Unreached(Unavailable):
    """Nothing that is an answer came back; the message says why, without the address."""


Send = Callable[[Letter], Awaitable[Reply]]  # raises Unreached
