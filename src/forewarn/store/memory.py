"""A store in dictionaries, for tests and dry runs: no thread, no file; writes take effect at once."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from forewarn.core.commit import Commit, SavedValue
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import Vm
from forewarn.core.health import MAX_MEASUREMENTS, Measurement
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookCursor
from forewarn.errors import Refused, Unavailable
from forewarn.store.interface import (
    REPLAY_SCRIPT_PREFIX,
    AppliedCommit,
    CommitSubscribers,
    GatedEvents,
    Store,
    StoreCounts,
    host_conflict,
    require_current_versions,
)
from forewarn.store.schema import (
    EVENTS,
    GATES,
    HOSTS,
    PLANNED,
    POLLS,
    PUT_BY_KEY,
    REQUESTS,
    SAVED,
    SCOPES,
    VMS,
    WEBHOOKS,
    Row,
    StoredType,
)

Key = TypeVar("Key")
Value = TypeVar("Value")
T = TypeVar("T")
WakingRow = TypeVar("WakingRow", Scope, Gate)


# Tables of the in-memory store: dictionaries of frozen values, and how commits change them.


@dataclass(slots=True, kw_only=True)
class MemoryTables:
    """All rows of one `MemoryStore`. Rows are immutable."""

    stored: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))  # by table, then by key
    present_vms: dict[str, dict[str, Vm]] = field(default_factory=dict)  # by scope id, then by key
    live_events: dict[str, dict[str, Event]] = field(default_factory=dict)  # by scope id, then by event id
    history: list[HistoryEntry] = field(default_factory=list)  # by ascending `seq`
    last_seq: int = 0  # of the last history entry ever written, even if it was pruned
    deliveries: dict[tuple[str, str, str], EventDelivery] = field(default_factory=dict)  # by event id, VM key, status
    measurements: dict[str, list[Measurement]] = field(default_factory=dict)  # by request id; oldest first

    def copy(self) -> MemoryTables:
        """Return new tables with the same rows; later changes of one do not affect the other."""
        return MemoryTables(
            stored=defaultdict(dict, {table: dict(rows) for table, rows in self.stored.items()}),
            present_vms={scope_id: dict(vms) for scope_id, vms in self.present_vms.items()},
            live_events={scope_id: dict(events) for scope_id, events in self.live_events.items()},
            history=list(self.history),
            last_seq=self.last_seq,
            deliveries=dict(self.deliveries),
            measurements=dict(self.measurements),  # its lists are never changed in place
        )

    def __getitem__(self, stored: StoredType[Row]) -> dict[str, Row]:
        """Return the values of a type by key, in the order they were added; scopes without VMs and events."""
        return self.stored[stored.name]

    def require_current(self, commit: Commit) -> None:
        """Raise Conflict unless the commit was decided on the stored versions; changes nothing."""
        require_current_versions("scope", commit.scopes, lambda id_: _row_version(self[SCOPES].get(id_)))
        self._require_current_hosts(commit)
        require_current_versions("gate", commit.gates, lambda id_: _row_version(self[GATES].get(id_)))
        require_current_versions("request", commit.requests, lambda id_: _row_version(self[REQUESTS].get(id_)))

    def _require_current_hosts(self, commit: Commit) -> None:
        """Check hosts in the order in which they are written, because one commit may write a host twice."""
        if not (commit.hosts or commit.removed_hosts or commit.destinations):
            return
        stored = {id_: (host.version, host.arrivals) for id_, host in self[HOSTS].items()}
        for host in commit.hosts:
            version, arrivals = stored.get(host.id, (0, 0))
            if host.version != version or (version and host.arrivals != arrivals):
                raise host_conflict(host, version)
            stored[host.id] = (version + 1, arrivals)
        for host in commit.removed_hosts:
            version, arrivals = stored.pop(host.id, (0, 0))
            if not version or (host.version, host.arrivals) != (version, arrivals):
                raise host_conflict(host, version)
        for host in commit.destinations:
            version, _ = stored.get(host.id, (0, 0))
            if not version or host.version != version:
                raise host_conflict(host, version)

    def apply(self, commit: Commit) -> AppliedCommit:
        """Write all of a commit into these tables, in order of its fields; return it with numbered entries."""
        for scope in commit.scopes:
            self._put_scope(scope)
        for vm in commit.vms:
            self._put_vm(vm)
        for event in commit.events:
            self._put_event(event)
        for host in commit.hosts:
            self[HOSTS][host.id] = replace(
                host, version=host.version + 1, arrivals=host.arrivals if host.version else 0
            )
        _remove_keys(self[HOSTS], (host.id for host in commit.removed_hosts))
        for host in commit.destinations:
            here = self[HOSTS][host.id]
            self[HOSTS][host.id] = replace(here, arrivals=here.arrivals + 1)
        for gate in commit.gates:
            self[GATES][gate.id] = replace(gate, version=gate.version + 1)
        for gate_id in commit.wake_gates:
            self._wake_gate(gate_id)
        for request in commit.requests:
            self[REQUESTS][request.id] = replace(request, version=request.version + 1)
        for stored in PUT_BY_KEY:
            rows = self[stored]
            for value in stored.changed(commit):
                rows[stored.key_of(value)] = value
            if stored.removed:
                _remove_keys(rows, stored.removed(commit))
        for cursor in commit.cursors:
            self._move_cursor(cursor)
        for measurement in commit.measurements:
            of_rollout = [*self.measurements.get(measurement.request_id, ()), measurement]
            self.measurements[measurement.request_id] = of_rollout[-MAX_MEASUREMENTS:]
        entries = self._append(commit.entries)
        return AppliedCommit(commit=replace(commit, entries=entries), seq=self.last_seq)

    def record_observations(self, polls: Iterable[LastPoll], deliveries: Iterable[EventDelivery]) -> None:
        """Keep the latest poll of each VM and the first delivery of each event, VM and status; drop others."""
        last_polls, scopes = self[POLLS], self[SCOPES]
        for poll in polls:
            old = last_polls.get(poll.vm)
            if old is None or poll.at >= old.at:
                last_polls[poll.vm] = poll
            row = scopes.get(poll.scope_id)
            if row is not None:
                scopes[row.id] = replace(row, last_request_at=_later(row.last_request_at, poll.at))
        for delivery in deliveries:
            self.deliveries.setdefault((delivery.event_id, delivery.vm, delivery.status), delivery)

    def prune(self, before: float) -> int:
        """Delete what is older than this lab time; return how many history entries were deleted."""
        kept = [entry for entry in self.history if entry.at >= before]
        deleted = len(self.history) - len(kept)
        self.history = kept
        self._prune_events(before)
        self._prune_requests(before)
        self._prune_vms(before)
        return deleted

    def _prune_events(self, before: float) -> None:
        # An open rollout learns from its events which VMs are done, so they stay.
        open_requests = {request.id for request in self[REQUESTS].values() if request.is_open}
        ended = [e for e in self[EVENTS].values() if not e.is_live and e.request_id not in open_requests]
        past = {e.id for e in ended if e.over_at is not None and e.over_at < before}
        first_at: dict[str, float] = {}  # of events that were delivered
        for delivery in self.deliveries.values():
            first_at.setdefault(delivery.event_id, delivery.at)
        past |= {event_id for event_id, at in first_at.items() if event_id not in self[EVENTS] and at < before}
        _remove_keys(self[EVENTS], past)
        _remove_keys(self.deliveries, [key for key in self.deliveries if key[0] in past])

    def _prune_requests(self, before: float) -> None:
        parts: list[Event | PlannedEvent] = [*self[EVENTS].values(), *self[PLANNED].values()]
        kept = {part.request_id for part in parts} | {entry.request_id for entry in self.history}
        past = {r.id for r in self[REQUESTS].values() if not r.is_open and r.requested_at < before and r.id not in kept}
        gates_in_use = {part.gate_id for part in parts}
        _remove_keys(
            self[GATES], [g.id for g in self[GATES].values() if g.request_id in past and g.id not in gates_in_use]
        )
        _remove_keys(self[SAVED], [f"{REPLAY_SCRIPT_PREFIX}{request_id}" for request_id in past])
        _remove_keys(self.measurements, past)
        _remove_keys(self[REQUESTS], past)

    def _prune_vms(self, before: float) -> None:
        parts: list[Event | PlannedEvent] = [*self[EVENTS].values(), *self[PLANNED].values()]
        listed = {(part.scope_id, name) for part in parts for name in part.vms}
        delivered = {delivery.vm for delivery in self.deliveries.values()}
        removed = [vm for vm in self[VMS].values() if vm.removed_at is not None and vm.removed_at < before]
        past = [vm.key for vm in removed if (vm.scope_id, vm.name) not in listed and vm.key not in delivered]
        _remove_keys(self[VMS], past)
        _remove_keys(self[POLLS], past)

    def _put_scope(self, scope: Scope) -> None:
        old = self[SCOPES].get(scope.id)
        at = _later(old.last_request_at if old else None, scope.last_request_at)
        version = scope.version + 1
        self[SCOPES][scope.id] = replace(scope, version=version, last_request_at=at, vms=(), events=(), new_entries=())

    def _put_vm(self, vm: Vm) -> None:
        old = self[VMS].get(vm.key)
        if old is not None and _is_restored(old, vm):
            self[POLLS].pop(vm.key, None)
        if old is not None and (_is_restored(old, vm) or old.scope_id != vm.scope_id):
            del self[VMS][vm.key]  # so that it is added at the end
        if old is not None and (vm.removed_at is not None or old.scope_id != vm.scope_id):
            self.present_vms.get(old.scope_id, {}).pop(vm.key, None)
        if vm.removed_at is None:
            self.present_vms.setdefault(vm.scope_id, {})[vm.key] = vm
        self[VMS][vm.key] = vm

    def _put_event(self, event: Event) -> None:
        self[EVENTS][event.id] = event
        if event.is_live:
            self.live_events.setdefault(event.scope_id, {})[event.id] = event
        else:
            self.live_events.get(event.scope_id, {}).pop(event.id, None)

    def _wake_gate(self, gate_id: str) -> None:
        gate = self[GATES].get(gate_id)
        if gate is not None:
            self[GATES][gate_id] = replace(gate, wakes_at=0.0, version=gate.version + 1)

    def _move_cursor(self, cursor: WebhookCursor) -> None:
        """Move the cursor forward, never back; do nothing if the webhook was removed."""
        webhook = self[WEBHOOKS].get(cursor.webhook_id)
        if webhook is not None and webhook.cursor < cursor.seq:
            self[WEBHOOKS][webhook.id] = replace(webhook, cursor=cursor.seq)

    def _append(self, entries: Iterable[HistoryEntry]) -> tuple[HistoryEntry, ...]:
        numbered = tuple(replace(entry, seq=seq) for seq, entry in enumerate(entries, self.last_seq + 1))
        self.history.extend(numbered)
        self.last_seq += len(numbered)
        return numbered


def _is_restored(old: Vm, new: Vm) -> bool:
    return old.removed_at is not None and new.removed_at is None


def _row_version(row: Scope | Gate | MaintenanceRequest | None) -> int:
    return row.version if row else 0


def _later(one: float | None, other: float | None) -> float | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _remove_keys(table: dict[Key, Value], keys: Iterable[Key]) -> None:
    for key in keys:
        table.pop(key, None)


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

    def row(self, stored: StoredType[Row], key: str) -> Row | None:
        return self._tables[stored].get(key)

    def rows(self, stored: StoredType[Row], *, limit: int | None = None, **equal: str | int | None) -> list[Row]:
        rows = self._tables[stored]
        in_order = rows.values() if stored.order != stored.key else [row for _, row in sorted(rows.items())]
        return _newest(_matching(in_order, **equal), limit)

    def scope(self, scope_id: str) -> Scope | None:
        row = self._tables[SCOPES].get(scope_id)
        if row is None:
            return None
        vms = self._tables.present_vms.get(scope_id, {}).values()
        events = self._tables.live_events.get(scope_id, {}).values()
        return replace(row, vms=tuple(vms), events=tuple(sorted(events, key=lambda event: event.seq)))

    def scopes(self) -> Iterator[Scope]:
        return iter([scope for scope in map(self.scope, self.scope_ids()) if scope is not None])

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        return sorted(id_ for id_, row in self._tables[SCOPES].items() if enabled in (None, row.is_enabled))

    def scope_versions(self) -> dict[str, int]:
        return {scope.id: scope.version for scope in self._tables[SCOPES].values()}

    def counts(self) -> StoreCounts:
        return StoreCounts(
            vms=sum(map(len, self._tables.present_vms.values())),
            scopes=len(self._tables[SCOPES]),
            hosts=len(self._tables[HOSTS]),
            events=sum(map(len, self._tables.live_events.values())),
        )

    def enabled_scope_count(self) -> int:
        return sum(row.is_enabled for row in self._tables[SCOPES].values())

    def failed_writes(self) -> int:
        return self._failed

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        rows = (vm for vm in self._tables[VMS].values() if removed or vm.removed_at is None)
        return _matching(rows, scope_id=scope_id, host=host)

    def vms_with_program(self) -> list[Vm]:
        return [vm for vm in self.vms() if vm.program]

    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[EventState] = tuple(EventState),
        limit: int | None = None,
    ) -> list[Event]:
        rows = (event for event in self._tables[EVENTS].values() if event.status in statuses)
        return _newest(_matching(rows, scope_id=scope_id, request_id=request_id, gate_id=gate_id), limit)

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        rows = [event for event in self._tables[EVENTS].values() if _is_within(event.over_at, since, until)]
        rows.sort(key=lambda event: event.over_at or 0.0)
        return _newest(rows, limit) if newest else rows[:limit]

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        scheduled = [event for event in self.events(statuses=[EventState.SCHEDULED]) if event.gate_id in gate_ids]
        return GatedEvents(scheduled, {planned.gate_id for planned in self.planned() if planned.gate_id in gate_ids})

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        return [scope.id for scope in _due_rows(self._tables[SCOPES].values(), now)][:limit]

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        return _due_rows(self._tables[GATES].values(), now)[:limit]

    def next_wake_at(self) -> float | None:
        scopes = (scope.wakes_at for scope in self._tables[SCOPES].values())
        gates = (gate.wakes_at for gate in self._tables[GATES].values())
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

    def measurements(self, request_id: str, *, limit: int | None = None) -> list[Measurement]:
        return _newest(self._tables.measurements.get(request_id, []), limit)

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
        self._write(lambda: self._tables[SAVED].__setitem__(name, SavedValue(name, value)))

    async def prune(self, before: float) -> int:
        return self._write(lambda: self._tables.prune(before))

    async def back_up(self, path: Path) -> None:
        raise Refused(f"this store is in memory only and cannot be backed up to {str(path)!r}: use a store in a file")

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        return self._subscribers.add(listener)

    async def close(self) -> None:
        self._is_open = False

    def _write(self, apply: Callable[[], T]) -> T:
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


def _matching(rows: Iterable[T], **conditions: str | int | None) -> list[T]:
    given = [(name, value) for name, value in conditions.items() if value is not None]
    return [row for row in rows if all(getattr(row, name) == value for name, value in given)] if given else list(rows)


def _newest(rows: list[T], limit: int | None) -> list[T]:
    return rows if limit is None else rows[max(0, len(rows) - limit) :]


def _is_within(at: float | None, since: float, until: float) -> bool:
    return at is not None and since <= at <= until


def _due_rows(rows: Iterable[WakingRow], now: float) -> list[WakingRow]:
    due = [(row.wakes_at, row.id, row) for row in rows if row.wakes_at is not None and row.wakes_at <= now]
    return [row for _, _, row in sorted(due, key=lambda item: item[:2])]
