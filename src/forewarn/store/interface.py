"""The `Store` protocol and the values it returns. The store conformance suite is its specification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import EventDelivery, HistoryEntry
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookSubscription


class LastPoll(msgspec.Struct, frozen=True, kw_only=True):
    """When a VM last asked, and how: gathered in memory, written in batches."""

    vm: str  # its key
    scope_id: str
    at: float
    version: str
    count: int = 0  # requests since the scope came to be
    agent: str = ""  # the program that asked, as it calls itself
    wait_s: int = 0  # for how long it is content to wait for an answer: until then it still asks


class StoreCounts(NamedTuple):
    """How much there is now."""

    vms: int  # present ones
    scopes: int
    hosts: int
    events: int  # that are not over


class GatedEvents(NamedTuple):
    """What gates hold back."""

    scheduled: list[Event]  # oldest first
    gates_with_planned: set[str]  # gates that more is planned for


class AppliedCommit(NamedTuple):
    """What subscribers hear, in the order of commits; entries carry their sequence numbers."""

    commit: Commit
    seq: int  # of the last history entry so far


class Store(Protocol):
    """Reads show what is committed. Writes return when they are durable, or raise Conflict or Unavailable."""

    def scope(self, scope_id: str) -> Scope | None: ...
    def scopes(self) -> Iterator[Scope]: ...  # every one as it is now, in the order of their ids
    def scope_ids(self, *, enabled: bool | None = None) -> list[str]: ...
    def counts(self) -> StoreCounts: ...
    def enabled_scope_count(self) -> int: ...  # how many scopes are
    def failed_writes(self) -> int: ...  # that trouble with the store undid, since it was opened
    def vm(self, key: str) -> Vm | None: ...  # removed ones too
    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]: ...
    def hosts(self) -> list[Host]: ...
    def event(self, event_id: str) -> Event | None: ...
    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[EventState] = tuple(EventState),
        limit: int | None = None,
    ) -> list[Event]: ...  # oldest first; with a limit, the newest ones
    def events_ended_between(
        self, since: float, until: float, *, limit: int, newest: bool = True
    ) -> list[Event]: ...  # that came to be over then, in that order; the newest ones, or the oldest
    def gate(self, gate_id: str) -> Gate | None: ...
    def request(self, request_id: str) -> MaintenanceRequest | None: ...
    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]: ...
    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]: ...
    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents: ...

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]: ...
    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]: ...
    def next_wake_at(self) -> float | None: ...

    def history(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        scope_id: str | None = None,
        event_id: str | None = None,
        request_id: str | None = None,
        vm: str | None = None,
        limit: int | None = None,
        newest: bool = True,
    ) -> list[HistoryEntry]: ...  # oldest first; with a limit, the newest ones, or else the oldest
    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]: ...  # of the history, the oldest ones first
    def last_seq(self) -> int: ...
    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]: ...
    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]: ...
    def client(self, client_id: str) -> RegisteredClient | None: ...
    def clients(self) -> list[RegisteredClient]: ...
    def grants(self, *, to: str | None = None) -> list[Grant]: ...
    def webhooks(self) -> list[WebhookSubscription]: ...
    def load(self, name: str) -> bytes | None: ...

    async def commit(self, commit: Commit) -> int: ...  # the last history entry's sequence number
    async def record_observations(self, polls: Sequence[LastPoll], sightings: Sequence[EventDelivery]) -> None: ...
    async def save(self, name: str, value: bytes) -> None: ...
    async def prune(self, before: float) -> int: ...  # how many entries went
    async def back_up(self, path: Path) -> None: ...
    def subscribe(self, hear: Callable[[AppliedCommit], None]) -> Callable[[], None]: ...
    async def close(self) -> None: ...
