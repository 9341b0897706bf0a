"""A store in dictionaries, for tests and dry runs: no thread, no file; writes take effect at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import Measurement
from forewarn.core.history import EventDelivery, HistoryEntry
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookSubscription
from forewarn.errors import Refused, Unavailable
from forewarn.store.interface import AppliedCommit, GatedEvents, LastPoll, Store, StoreCounts
from forewarn.store.memory_tables import MemoryTables
from forewarn.store.subscribers import CommitSubscribers

Row = TypeVar("Row")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _InjectedFailure:
    """A failure that a test has ordered for a later write."""

    error: BaseException
    writes_before: int
    applied: bool


class MemoryStore(Store):
    """A `Store` held in memory only, for dry runs and tests.

    Writes take effect at once, and reads never fail. `fail_next` makes a later write fail, and `copy` returns the store
    that a restart would find.
    """

    def __init__(self) -> None:
        self._tables = MemoryTables()
        self._subscribers = CommitSubscribers()
        self._failures: list[_InjectedFailure] = []
        self._is_open = True
        self._failed = 0

    def copy(self) -> MemoryStore:
        """Return an open store with the same content and no subscribers, as after a restart."""
        other = MemoryStore()
        other._tables = self._tables.copy()
        return other

    def fail_next(self, error: BaseException, *, after: int = 0, applied: bool = False) -> None:
        """Let `after` more writes of any kind succeed, then make one raise `error`.

        That write has no effect; with `applied` it takes effect but still raises, as when a process dies between the
        commit and the answer. Calls queue up.
        """
        self._failures.append(_InjectedFailure(error=error, writes_before=after, applied=applied))

    def scope(self, scope_id: str) -> Scope | None:
        row = self._tables.scopes.get(scope_id)
        if row is None:
            return None
        vms = self._tables.present_vms.get(scope_id, {}).values()
        events = self._tables.live_events.get(scope_id, {}).values()
        return replace(row, vms=tuple(vms), events=tuple(sorted(events, key=lambda event: event.seq)))

    def scopes(self) -> Iterator[Scope]:
        return iter([scope for scope in map(self.scope, self.scope_ids()) if scope is not None])

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        return sorted(id_ for id_, row in self._tables.scopes.items() if enabled in (None, row.is_enabled))

    def scope_versions(self) -> dict[str, int]:
        return {scope.id: scope.version for scope in self._tables.scopes.values()}

    def counts(self) -> StoreCounts:
        return StoreCounts(
            vms=sum(map(len, self._tables.present_vms.values())),
            scopes=len(self._tables.scopes),
            hosts=len(self._tables.hosts),
            events=sum(map(len, self._tables.live_events.values())),
        )

    def enabled_scope_count(self) -> int:
        return sum(row.is_enabled for row in self._tables.scopes.values())

    def failed_writes(self) -> int:
        return self._failed

    def vm(self, key: str) -> Vm | None:
        return self._tables.vms.get(key)

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        rows = (vm for vm in self._tables.vms.values() if removed or vm.removed_at is None)
        return _matching(rows, scope_id=scope_id, host=host)

    def vms_with_program(self) -> list[Vm]:
        return [vm for vm in self.vms() if vm.program]

    def hosts(self) -> list[Host]:
        return [host for _, host in sorted(self._tables.hosts.items())]

    def event(self, event_id: str) -> Event | None:
        return self._tables.events.get(event_id)

    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[EventState] = tuple(EventState),
        limit: int | None = None,
    ) -> list[Event]:
        rows = (event for event in self._tables.events.values() if event.status in statuses)
        return _newest(_matching(rows, scope_id=scope_id, request_id=request_id, gate_id=gate_id), limit)

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        rows = [event for event in self._tables.events.values() if _is_within(event.over_at, since, until)]
        rows.sort(key=lambda event: event.over_at or 0.0)
        return _newest(rows, limit) if newest else rows[:limit]

    def gate(self, gate_id: str) -> Gate | None:
        return self._tables.gates.get(gate_id)

    def request(self, request_id: str) -> MaintenanceRequest | None:
        return self._tables.requests.get(request_id)

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]:
        rows = [request for request in self._tables.requests.values() if request.is_open or not open_only]
        return _newest(rows, limit)

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        return _matching(self._tables.planned.values(), request_id=request_id)

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        scheduled = [event for event in self.events(statuses=[EventState.SCHEDULED]) if event.gate_id in gate_ids]
        return GatedEvents(scheduled, {planned.gate_id for planned in self.planned() if planned.gate_id in gate_ids})

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        return [scope.id for scope in _due_rows(self._tables.scopes.values(), now)][:limit]

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        return _due_rows(self._tables.gates.values(), now)[:limit]

    def next_wake_at(self) -> float | None:
        scopes = (scope.wakes_at for scope in self._tables.scopes.values())
        gates = (gate.wakes_at for gate in self._tables.gates.values())
        return min((at for at in (*scopes, *gates) if at is not None), default=None)

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
    ) -> list[HistoryEntry]:
        rows = (e for e in self._tables.history if e.seq > after and (before is None or e.seq < before))
        wanted = _matching(rows, scope_id=scope_id, event_id=event_id, request_id=request_id, vm=vm)
        return _newest(wanted, limit) if newest else wanted[:limit]

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        start = bisect_right(self._tables.history, seq, key=lambda entry: entry.seq)
        return self._tables.history[start : start + limit]

    def last_seq(self) -> int:
        return self._tables.last_seq

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        found = _matching(self._tables.deliveries.values(), event_id=event_id, vm=vm)
        return sorted(found, key=lambda delivery: (delivery.at, delivery.event_id, delivery.vm, delivery.status))

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        rows = self._tables.deliveries.values()
        return {row.event_id for row in rows if row.status == EventState.SCHEDULED}.intersection(event_ids)

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        rows = (last_poll for _, last_poll in sorted(self._tables.last_polls.items()))
        return _matching(rows, scope_id=scope_id)

    def client(self, client_id: str) -> RegisteredClient | None:
        return self._tables.clients.get(client_id)

    def clients(self) -> list[RegisteredClient]:
        return [client for _, client in sorted(self._tables.clients.items())]

    def grants(self, *, principal: str | None = None) -> list[Grant]:
        return _matching(self._tables.grants.values(), principal=principal)

    def webhooks(self) -> list[WebhookSubscription]:
        return list(self._tables.webhooks.values())

    def measurements(self, request_id: str, *, limit: int | None = None) -> list[Measurement]:
        return _newest(self._tables.measurements.get(request_id, []), limit)

    def configurations(self) -> list[MaintenanceConfiguration]:
        return [row for _, row in sorted(self._tables.configurations.items())]

    def assignments(self) -> list[ConfigurationAssignment]:
        return [row for _, row in sorted(self._tables.assignments.items())]

    def load(self, name: str) -> bytes | None:
        return self._tables.saved.get(name)

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        return read(self)

    async def commit(self, commit: Commit) -> int:
        def apply() -> AppliedCommit:
            self._tables.require_current(commit)
            return self._tables.apply(commit)

        applied_commit = self._write(apply)
        self._subscribers.notify(applied_commit)
        return applied_commit.seq

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        self._write(lambda: self._tables.record_observations(polls, deliveries))

    async def save(self, name: str, value: bytes) -> None:
        self._write(lambda: self._tables.saved.__setitem__(name, value))

    async def prune(self, before: float) -> int:
        return self._write(lambda: self._tables.prune(before))

    async def back_up(self, path: Path) -> None:
        raise Refused(f"this store is in memory only and cannot be backed up to {str(path)!r}: use a store in a file")

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        return self._subscribers.add(listener)

    async def close(self) -> None:
        self._is_open = False

    def _write(self, apply: Callable[[], Row]) -> Row:
        if not self._is_open:
            raise Unavailable("the store is closed and accepts no writes: open it again")
        failure = self._failures[0] if self._failures else None
        if failure is None:
            return apply()
        if failure.writes_before:
            result = apply()
            failure.writes_before -= 1  # not for a write that has failed by itself
            return result
        if failure.applied:
            apply()
        self._failures.pop(0)
        self._failed += 1
        raise failure.error


def _matching(rows: Iterable[Row], **conditions: str | None) -> list[Row]:
    given = [(name, value) for name, value in conditions.items() if value is not None]
    return [row for row in rows if all(getattr(row, name) == value for name, value in given)]


def _newest(rows: list[Row], limit: int | None) -> list[Row]:
    return rows if limit is None else rows[max(0, len(rows) - limit) :]


def _is_within(at: float | None, since: float, until: float) -> bool:
    return at is not None and since <= at <= until


WakingRow = TypeVar("WakingRow", Scope, Gate)


def _due_rows(rows: Iterable[WakingRow], now: float) -> list[WakingRow]:
    due = [(row.wakes_at, row.id, row) for row in rows if row.wakes_at is not None and row.wakes_at <= now]
    return [row for _, _, row in sorted(due, key=lambda item: item[:2])]
