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
    """A `Store`, the durable state of a service, held in memory only, for dry runs and tests.

    A new one is empty and open. Writes take effect at once, and reads never fail. `fail_next` makes a later write fail,
    and `copy` returns the store that a restart would find.
    """

    def __init__(self) -> None:
        self._tables = MemoryTables()
        self._subscribers = CommitSubscribers()
        self._failures: list[_InjectedFailure] = []
        self._is_open = True
        self._failed = 0

    def copy(self) -> MemoryStore:
        """Return an open store with the same content and no subscribers, as after a restart.

        Ordered failures are not copied. Later writes to one do not affect the other.
        """
        other = MemoryStore()
        other._tables = self._tables.copy()
        return other

    def fail_next(self, error: BaseException, *, after: int = 0, applied: bool = False) -> None:
        """Let `after` more writes of any kind succeed, then make one raise `error`.

        That write has no effect; with `applied` it takes effect but still raises, as when a process dies between the
        commit and the answer. Either way no subscriber is notified. A write that fails by itself, such as with a
        Conflict, does not count, and leaves the ordered failure for a later write. Calls queue up: a second call counts
        its `after` from this failure.
        """
        self._failures.append(_InjectedFailure(error=error, writes_before=after, applied=applied))

    def scope(self, scope_id: str) -> Scope | None:
        """Return a scope with its present VMs and its live events; None if there is no such scope.

        VMs are in the order they were added, events (scheduled or started) in order of publication.
        """
        row = self._tables.scopes.get(scope_id)
        if row is None:
            return None
        vms = self._tables.present_vms.get(scope_id, {}).values()
        events = self._tables.live_events.get(scope_id, {}).values()
        return replace(row, vms=tuple(vms), events=tuple(sorted(events, key=lambda event: event.seq)))

    def scopes(self) -> Iterator[Scope]:
        """Return an iterator over a snapshot of all scopes, taken at the call and sorted by id.

        A scope is the VMs that share one document. Each has its present (not removed) VMs and its live (scheduled or
        started) events, as `scope` returns it.
        """
        return iter([scope for scope in map(self.scope, self.scope_ids()) if scope is not None])

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        """Return sorted scope ids: of all scopes (None), of enabled ones (True) or of disabled ones (False)."""
        return sorted(id_ for id_, row in self._tables.scopes.items() if enabled in (None, row.is_enabled))

    def scope_versions(self) -> dict[str, int]:
        """Return the stored version of every scope, enabled or not, by scope id.

        A commit that writes a scope adds 1 to its version.
        """
        return {scope.id: scope.version for scope in self._tables.scopes.values()}

    def counts(self) -> StoreCounts:
        """Return how many present VMs, scopes, hosts and live events there are."""
        return StoreCounts(
            vms=sum(map(len, self._tables.present_vms.values())),
            scopes=len(self._tables.scopes),
            hosts=len(self._tables.hosts),
            events=sum(map(len, self._tables.live_events.values())),
        )

    def enabled_scope_count(self) -> int:
        """Return how many scopes are stored with an `enabled_at`, which polls neither set nor clear."""
        return sum(row.is_enabled for row in self._tables.scopes.values())

    def failed_writes(self) -> int:
        """Return how many writes have failed because of `fail_next`, with any error; no other failures count."""
        return self._failed

    def vm(self, key: str) -> Vm | None:
        """Return a VM by its key, also a removed one that is not pruned yet (`removed_at` is set), or None."""
        return self._tables.vms.get(key)

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        """Return the VMs in this scope and on this host (None: any), in the order they were added.

        Only present ones; with `removed`, removed ones too. A VM that was removed and added again, or moved to another
        scope, counts as added then.
        """
        rows = (vm for vm in self._tables.vms.values() if removed or vm.removed_at is None)
        return _matching(rows, scope_id=scope_id, host=host)

    def vms_with_program(self) -> list[Vm]:
        """Return the present VMs whose `program` is not empty, in the order they were added."""
        return [vm for vm in self.vms() if vm.program]

    def hosts(self) -> list[Host]:
        """Return all hosts, of any state, sorted by name ignoring letter case."""
        return [host for _, host in sorted(self._tables.hosts.items())]

    def event(self, event_id: str) -> Event | None:
        """Return an event by its id, live or over; None if there is none or it was pruned."""
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
        """Return the events that match all conditions (None: any), live or over, in the order they were added.

        `statuses` are the states to include, by default all; an empty one gives no events. Of more than `limit` events
        (None: no limit), return the newest ones, still oldest first.
        """
        rows = (event for event in self._tables.events.values() if event.status in statuses)
        return _newest(_matching(rows, scope_id=scope_id, request_id=request_id, gate_id=gate_id), limit)

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        """Return events that ended from `since` to `until`, both included, in the order in which they ended.

        The one that ended first comes first; of equal ends the one that was added first. Times are lab time. Of more
        than `limit` events, return those that ended last, or without `newest` those that ended first, in this order.
        """
        rows = [event for event in self._tables.events.values() if _is_within(event.over_at, since, until)]
        rows.sort(key=lambda event: event.over_at or 0.0)
        return _newest(rows, limit) if newest else rows[:limit]

    def gate(self, gate_id: str) -> Gate | None:
        """Return a gate by its id, released or not; None if there is none or it was pruned.

        A gate starts the events of several scopes on one host together.
        """
        return self._tables.gates.get(gate_id)

    def request(self, request_id: str) -> MaintenanceRequest | None:
        """Return a maintenance request by its id, open or ended; None if there is none or it was pruned."""
        return self._tables.requests.get(request_id)

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]:
        """Return requests in the order they were added; with `limit`, only the newest, still oldest first.

        `open_only`: only rollouts and replays that have not ended; other requests are never open.
        """
        rows = [request for request in self._tables.requests.values() if request.is_open or not open_only]
        return _newest(rows, limit)

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        """Return the planned events of this request (None: of all), oldest first.

        These are events that were decided, and that the reconciler has neither published nor dropped yet.
        """
        return _matching(self._tables.planned.values(), request_id=request_id)

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        """Return the scheduled events behind these gates (ids), and which of the gates have planned events.

        Events that are started or over are left out; unknown gates are ignored.
        """
        scheduled = [event for event in self.events(statuses=[EventState.SCHEDULED]) if event.gate_id in gate_ids]
        return GatedEvents(scheduled, {planned.gate_id for planned in self.planned() if planned.gate_id in gate_ids})

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        """Return the ids of up to `limit` scopes whose `wakes_at` is `now` or earlier, the earliest first.

        `now` is lab time. These are the scopes that the reconciler must look at; equal times are sorted by id.
        """
        return [scope.id for scope in _due_rows(self._tables.scopes.values(), now)][:limit]

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        """Return up to `limit` gates whose `wakes_at` is `now` (lab time) or earlier, the earliest first.

        A gate starts the events of one host together; these are to be checked. Equal times are sorted by id.
        """
        return _due_rows(self._tables.gates.values(), now)[:limit]

    def next_wake_at(self) -> float | None:
        """Return the earliest `wakes_at`, in lab time, of all scopes and gates, perhaps past; None if none."""
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
        """Return the history entries that match all conditions, oldest first.

        `after` and `before` are sequence numbers, both excluded; `vm` is a VM's name, not its key; None: any. Of more
        than `limit` entries (None: no limit), return the newest ones, or without `newest` the oldest.
        """
        rows = (e for e in self._tables.history if e.seq > after and (before is None or e.seq < before))
        wanted = _matching(rows, scope_id=scope_id, event_id=event_id, request_id=request_id, vm=vm)
        return _newest(wanted, limit) if newest else wanted[:limit]

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        """Return the first `limit` history entries whose `seq` is greater than this one, oldest first."""
        start = bisect_right(self._tables.history, seq, key=lambda entry: entry.seq)
        return self._tables.history[start : start + limit]

    def last_seq(self) -> int:
        """Return the sequence number of the last history entry ever written, also a pruned one; 0 if none."""
        return self._tables.last_seq

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        """Return the first delivery of each event, VM (key) and status, sorted by time, event, VM, status.

        `event_id` and `vm` (a key) select those of one event or VM; None: any.
        """
        found = _matching(self._tables.deliveries.values(), event_id=event_id, vm=vm)
        return sorted(found, key=lambda delivery: (delivery.at, delivery.event_id, delivery.vm, delivery.status))

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        """Return those of these events (ids) that were delivered to a VM while they were scheduled.

        Unknown events are ignored.
        """
        rows = self._tables.deliveries.values()
        return {row.event_id for row in rows if row.status == EventState.SCHEDULED}.intersection(event_ids)

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        """Return the latest recorded poll of each VM that has one, also of removed VMs, sorted by VM key.

        `scope_id`: only VMs whose latest poll was in this scope.
        """
        rows = (last_poll for _, last_poll in sorted(self._tables.last_polls.items()))
        return _matching(rows, scope_id=scope_id)

    def client(self, client_id: str) -> RegisteredClient | None:
        """Return a registered API client by its id, which must be in lower case, or None."""
        return self._tables.clients.get(client_id)

    def clients(self) -> list[RegisteredClient]:
        """Return all registered API clients, sorted by id."""
        return [client for _, client in sorted(self._tables.clients.items())]

    def grants(self, *, to: str | None = None) -> list[Grant]:
        """Return the grants of roles to this principal (its id; None: to all), in the order they were added."""
        return _matching(self._tables.grants.values(), to=to)

    def webhooks(self) -> list[WebhookSubscription]:
        """Return all webhook subscriptions with their cursors, in the order they were added."""
        return list(self._tables.webhooks.values())

    def measurements(self, request_id: str, *, limit: int | None = None) -> list[Measurement]:
        """Return the measurements of the health checks of a rollout (its request's id), oldest first.

        Returns [] if it has none. Only the newest MAX_MEASUREMENTS (5000) of a rollout are kept; if there are more than
        `limit` (None: no limit), returns only the newest ones, still oldest first.
        """
        return _newest(self._tables.measurements.get(request_id, []), limit)

    def configurations(self) -> list[MaintenanceConfiguration]:
        """Return all maintenance configurations, sorted by key."""
        return [row for _, row in sorted(self._tables.configurations.items())]

    def assignments(self) -> list[ConfigurationAssignment]:
        """Return all assignments of maintenance configurations, sorted by key."""
        return [row for _, row in sorted(self._tables.assignments.items())]

    def load(self, name: str) -> bytes | None:
        """Return the value that `save` or a commit wrote under this name, or None if there is none."""
        return self._tables.saved.get(name)

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        """Return what `read` returns, called at once with this store on the calling thread, not another.

        It blocks the event loop meanwhile, because reads of memory are quick. Raises what `read` raises.
        """
        return read(self)

    async def commit(self, commit: Commit) -> int:
        """Write a commit, all of it or nothing; return the sequence number of the store's last history entry.

        That number is 0 in a store without history. Adds 1 to the version of each scope, host, gate and request that it
        writes. Subscribers are called before it returns. Raises Conflict if one of these is no longer at the version in
        the commit or occurs twice at one version, or if a host is not as `Commit` demands; Unavailable after `close`;
        and the error that `fail_next` ordered; then nothing was written, unless that error was ordered as `applied`.
        """

        def apply() -> AppliedCommit:
            self._tables.require_current(commit)
            return self._tables.apply(commit)

        applied_commit = self._write(apply)
        self._subscribers.notify(applied_commit)
        return applied_commit.seq

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Write polls and deliveries, and move `last_request_at` of the polled scopes forward.

        Keeps the latest poll of each VM (of polls with equal times, the one recorded last) and the first delivery of
        each event, VM and status; others change nothing. The versions of the scopes stay the same, and no subscriber is
        called. An unknown VM or scope is not an error. Raises Unavailable after `close`, and the error that `fail_next`
        ordered.
        """
        self._write(lambda: self._tables.record_observations(polls, deliveries))

    async def save(self, name: str, value: bytes) -> None:
        """Write a value under a name, in place of an earlier one; `load` returns it. Notifies nobody.

        Raises Unavailable after `close`, and the error that `fail_next` ordered.
        """
        self._write(lambda: self._tables.saved.__setitem__(name, value))

    async def prune(self, before: float) -> int:
        """Delete what ended or was removed before this lab time; return how many history entries it deleted.

        Deletes history entries; events that are over, with their deliveries; requests made before then that nothing
        kept refers to, with their gates, measurements and replay scripts; removed VMs that no kept or planned event
        lists and that no kept event was delivered to, with their polls. Open requests stay, and so do their events.
        Raises Unavailable after `close`, and the error that `fail_next` ordered.
        """
        return self._write(lambda: self._tables.prune(before))

    async def back_up(self, path: Path) -> None:
        """Raise Refused: a store in memory cannot be backed up."""
        raise Refused(f"this store is in memory only and cannot be backed up to {str(path)!r}: use a store in a file")

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        """Call the listener after every later `commit`, in order, on the event loop; return a stop function.

        Other writes notify nobody. Calling the stop function twice is harmless. Errors of the listener go to the loop's
        exception handler.
        """
        return self._subscribers.add(listener)

    async def close(self) -> None:
        """Refuse further writes with Unavailable; reads still work. Closing twice is harmless."""
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
