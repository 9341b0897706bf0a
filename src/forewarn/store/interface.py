"""The `Store` protocol and the values it returns. The store conformance suite is its specification."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import Measurement
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookSubscription
from forewarn.errors import Conflict
from forewarn.store import schema
from forewarn.store.schema import Row, StoredType

T = TypeVar("T")


# Optimistic concurrency: a row may change only from the version that the decision was based on.
#
# Shared by both implementations of `Store`.


class VersionedRow(Protocol):
    """A scope, host, gate or request that carries the version it was decided on, 0 for a new row."""

    @property
    def id(self) -> str:
        """The id under which a scope, host (its name in lower case), gate or request is stored."""

    @property
    def version(self) -> int:
        """The version that the row was decided on; 0: it must not exist yet."""


def version_conflict(thing: str, row_id: str, decided_on: int, stored: int) -> Conflict:
    """Return (not raise) the Conflict for a row that is stored at another version than it was decided on."""
    then = f"version {decided_on}" if decided_on else "it not existing"
    now = f"is at version {stored}" if stored else "does not exist"
    return Conflict(f"{thing} {row_id!r} {now}, but this was decided on {then}: read it again and decide again")


def host_conflict(host: Host, stored: int) -> Conflict:
    """Return, without raising it, the Conflict for a host that has changed or to which VMs have come."""
    if host.version and host.version == stored:
        return Conflict(f"VMs have come to host {host.name!r} since this was decided: read it again and decide again")
    return version_conflict("host", host.name, host.version, stored)


def require_current_versions(thing: str, rows: Iterable[VersionedRow], stored_version: Callable[[str], int]) -> None:
    """Raise Conflict for the first row whose version is not the stored one; changes nothing."""
    seen: dict[str, int] = {}
    for row in rows:
        stored = seen.get(row.id, stored_version(row.id))
        if row.version != stored:
            raise version_conflict(thing, row.id, row.version, stored)
        seen[row.id] = stored + 1


# Names of saved values that a store must know.
LAB_CLOCK_NAME = "clock"  # the position of a lab's clock
ROLLOUT_HOLD_NAME = "rollout-hold"  # the hold on all rollouts, if there is one
BUDGETS_NAME = "budgets"  # the budgets of the fleet
STANDING_ORDER_NAME = "standing-order"  # the order to visit every host, with its visits
REPLAY_SCRIPT_PREFIX = "replay/"  # and a request's id: the name under which a replay's script is saved


class StoreCounts(NamedTuple):
    """The size of the fleet now, as `Store.counts` returns it."""

    vms: int  # without removed ones
    scopes: int  # all that are stored
    hosts: int  # all that are stored
    events: int  # live ones: scheduled or started


class GatedEvents(NamedTuple):
    """The events that wait behind some gates, as `Store.events_behind_gates` returns them."""

    scheduled: list[Event]  # published and not started, oldest first
    gates_with_planned: set[str]  # ids of those of the gates that have planned events, which are not published yet


class AppliedCommit(NamedTuple):
    """A commit after it was written, as subscribers get it."""

    commit: Commit  # as it was passed to `Store.commit`, with versions not yet increased; only its entries have a `seq`
    seq: int  # the number of the store's last history entry after this commit, even if the commit itself has no entries


class Store(Protocol):
    """The durable state of a service: scopes, VMs, hosts, events, gates, requests and their history.

    Reads return committed values, which are immutable; writes return when they are durable. Use it from the thread of
    its event loop; reads block briefly. Keys, names and ids must match exactly; a filter of None selects everything.
    Reads raise Unavailable if the store cannot be read. Writes raise Unavailable if nothing was written, or if it is
    not known whether it was, and `commit` raises Conflict if a scope, host, gate or request is no longer at the version
    it was decided on.
    """

    def row(self, stored: StoredType[Row], key: str) -> Row | None:
        """Return the value of a stored type that has this key, or None; not for scopes."""

    def rows(self, stored: StoredType[Row], *, limit: int | None = None, **equal: str | int | None) -> list[Row]:
        """Return the values whose fields equal these, in the order of the stored type; not for scopes.

        With `limit`, return only the last ones, still in this order.
        """

    def scope(self, scope_id: str) -> Scope | None:
        """Return a scope with its present VMs and its live events; None if there is no such scope."""

    def scopes(self) -> Iterator[Scope]:
        """Return an iterator over a snapshot of all scopes, taken at the call and sorted by id."""

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        """Return sorted scope ids: of all scopes (None), of enabled ones (True) or of disabled ones (False)."""

    def scope_versions(self) -> dict[str, int]:
        """Return the stored version of every scope, enabled or not, by scope id."""

    def counts(self) -> StoreCounts:
        """Return how many present VMs, scopes, hosts and live events there are."""

    def enabled_scope_count(self) -> int:
        """Return how many scopes are enabled: a VM has polled within 24 hours, or it is a lab."""

    def failed_writes(self) -> int:
        """Return how many writes have failed with Unavailable since the store was opened; never raises.

        Conflicts do not count, nor do writes of which it is merely unknown whether they were saved in time.
        """

    def vm(self, key: str) -> Vm | None:
        """Return a VM by its key, even if it was removed but not yet pruned (`removed_at` is set), or None."""
        return self.row(schema.VMS, key)

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        """Return the VMs in this scope and on this host (None: any), in the order they were added.

        A VM that was removed and added again, or moved to another scope, counts as added at that time.
        """

    def vms_with_program(self) -> list[Vm]:
        """Return the present VMs whose `program` is not empty, in the order they were added."""

    def hosts(self) -> list[Host]:
        """Return all hosts, of any state, sorted by name ignoring letter case."""
        return self.rows(schema.HOSTS)

    def event(self, event_id: str) -> Event | None:
        """Return an event by its id, live or over; None if there is none or it was pruned."""
        return self.row(schema.EVENTS, event_id)

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

        Of more than `limit` events, return the newest ones, still oldest first.
        """

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        """Return events that ended from `since` to `until`, both included, in the order in which they ended.

        Of more than `limit` events, return those that ended last, or without `newest` those that ended first, in this
        order.
        """

    def gate(self, gate_id: str) -> Gate | None:
        """Return a gate by its id, released or not; None if there is none or it was pruned."""
        return self.row(schema.GATES, gate_id)

    def request(self, request_id: str) -> MaintenanceRequest | None:
        """Return a maintenance request by its id, open or ended; None if there is none or it was pruned."""
        return self.row(schema.REQUESTS, request_id)

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]:
        """Return requests in the order they were added; with `limit`, only the newest, still oldest first.

        `open_only`: only rollouts and replays that have not ended; other requests are never open.
        """
        return self.rows(schema.REQUESTS, limit=limit, is_open=1 if open_only else None)

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        """Return the planned events of this request (None: of all), oldest first."""
        return self.rows(schema.PLANNED, request_id=request_id)

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        """Return the scheduled events behind these gates (ids), and which of the gates have planned events."""

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        """Return the ids of up to `limit` scopes whose `wakes_at` is `now` or earlier, the earliest first."""

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        """Return up to `limit` gates whose `wakes_at` is `now` or earlier, the earliest first."""

    def next_wake_at(self) -> float | None:
        """Return the earliest `wakes_at` of all scopes and gates, perhaps past; None if none."""

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

        `after` and `before` are sequence numbers, both excluded; `vm` is a VM's name, not its key. Of more than `limit`
        entries, return the newest ones, or without `newest` the oldest.
        """

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        """Return the first `limit` history entries whose `seq` is greater than this one, oldest first."""
        return self.history(after=seq, limit=limit, newest=False)

    def last_seq(self) -> int:
        """Return the sequence number of the last history entry ever written, also a pruned one; 0 if none."""

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        """Return the first delivery of each event, VM (key) and status, sorted by time, event, VM, status."""

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        """Return those of these events (ids) that were delivered to a VM while they were scheduled."""

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        """Return the latest recorded poll of each VM that has one, including removed VMs, sorted by VM key.

        The poll of a removed VM is deleted when the VM is pruned, or when it is added again, because it is then another
        VM. Polls are not shared in a cluster: a `ReplicatedStore` has the polls that its own node recorded.
        """
        return self.rows(schema.POLLS, scope_id=scope_id)

    def client(self, client_id: str) -> RegisteredClient | None:
        """Return a registered API client by its id, which must be in lower case, or None."""
        return self.row(schema.CLIENTS, client_id)

    def clients(self) -> list[RegisteredClient]:
        """Return all registered API clients, sorted by id."""
        return self.rows(schema.CLIENTS)

    def grants(self, *, principal: str | None = None) -> list[Grant]:
        """Return the grants of roles to this principal (its id; None: to all), in the order they were added."""
        return self.rows(schema.GRANTS, principal=principal)

    def webhooks(self) -> list[WebhookSubscription]:
        """Return all webhook subscriptions with their cursors, in the order they were added."""
        return self.rows(schema.WEBHOOKS)

    def measurements(self, request_id: str, *, limit: int | None = None) -> list[Measurement]:
        """Return the measurements of the health checks of a rollout (its request's id), oldest first."""
        return self.rows(schema.MEASUREMENTS, limit=limit, request_id=request_id)

    def configurations(self) -> list[MaintenanceConfiguration]:
        """Return all maintenance configurations, sorted by key."""
        return self.rows(schema.CONFIGURATIONS)

    def assignments(self) -> list[ConfigurationAssignment]:
        """Return all assignments of maintenance configurations, sorted by key."""
        return self.rows(schema.ASSIGNMENTS)

    def load(self, name: str) -> bytes | None:
        """Return the value that `save` or a commit wrote under this name, or None if there is none."""
        saved = self.row(schema.SAVED, name)
        return saved.value if saved else None

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        """Return what `read` returns, called with a store that it may only read, and only until it returns.

        A store that reads slowly calls `read` in a thread, one at a time, so that the event loop and asyncio's threads
        go on. `read` must not use what belongs to the loop's thread. There may be commits between two of its reads.
        """

    async def commit(self, commit: Commit) -> int:
        """Write a commit, all of it or nothing; return the sequence number of the store's last history entry.

        Adds 1 to the version of each scope, host, gate and request that it writes. Subscribers are called before it
        returns. After an error nothing was written, unless Unavailable says that it may have been. A write whose caller
        is cancelled goes on.
        """

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Write polls and deliveries durably, and move `last_request_at` of the polled scopes forward.

        Keeps the latest poll of each VM (of polls with equal times, the one recorded last) and the first delivery of
        each event, VM and status. `count` of a poll is stored as it is, not added. Versions stay the same, no
        subscriber is called, and an unknown VM or scope is no error.
        """

    async def save(self, name: str, value: bytes) -> None:
        """Write a value under a name, in place of an earlier one; durable on return. `load` returns it."""

    async def prune(self, before: float) -> int:
        """Delete what ended or was removed before this lab time; return how many history entries it deleted.

        Deletes history entries; events that are over, with their deliveries; requests made before then that nothing
        kept refers to, with their gates, measurements and replay scripts; removed VMs that no kept or planned event
        lists and that no kept event was delivered to, with their polls. Open requests stay, and so do their events.
        Callers keep at least 24 hours (spec §5.2). After Unavailable some of it is done, and the next call continues.
        """

    async def back_up(self, path: Path) -> None:
        """Write a consistent copy to the new file `path` while the store is in use; durable on return."""

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        """Call the listener after every later `commit`, in order, on the event loop; return a stop function.

        The listener must not block; its errors go to the loop's exception handler.
        """

    async def close(self) -> None:
        """Finish the writes under way and close; later writes raise Unavailable. Closing twice is harmless."""


# Notifies listeners of every commit, in commit order. Shared by both implementations of `Store`.

CommitListener = Callable[[AppliedCommit], None]  # must not block


class CommitSubscribers:
    """The listeners of one store. An error of one is reported to the event loop; the others still run."""

    def __init__(self) -> None:
        self._listeners: list[CommitListener] = []

    def add(self, listener: CommitListener) -> Callable[[], None]:
        """Add a listener for later commits; return a function that removes it; calling that twice is harmless."""
        self._listeners.append(listener)

        def stop() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return stop

    def notify(self, applied: AppliedCommit) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(applied)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a subscriber failed on commit {applied.seq}", "exception": error}
                )
