"""The `Store` protocol and the values it returns. The store conformance suite is its specification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

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

T = TypeVar("T")
# Names of saved values that a store must know.
LAB_CLOCK_NAME = "clock"  # the position of a lab's clock
ROLLOUT_HOLD_NAME = "rollout-hold"  # the hold on all rollouts, if there is one
BUDGETS_NAME = "budgets"  # the budgets of the fleet
STANDING_ORDER_NAME = "standing-order"  # the order to visit every host, with its visits
REPLAY_SCRIPT_PREFIX = "replay/"  # and a request's id: the name under which a replay's script is saved


class LastPoll(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The latest poll or approval of one VM, and how many it has sent.

    Collected in memory and written in batches, by `Store.record_observations`; the store keeps one for each VM.
    """

    vm: str  # the key of the VM
    scope_id: str  # of the VM's scope
    at: float  # lab time
    version: str  # api-version of the request
    count: int = 0  # polls and approvals of this VM since it was added; in the batch of a worker, since its last batch
    agent: str = ""  # the client program, from its User-Agent
    wait_s: int = 0  # for how many seconds the server may hold the response; until then it counts as polling
    vm_id: str = ""  # tells VMs apart that had the same key one after the other; "": stored by an earlier release
    real_at: float = 0.0  # real time, POSIX seconds, by the clock of the process that stores it; 0: not known


class StoreCounts(NamedTuple):
    """The size of the fleet now, as `Store.counts` returns it."""

    vms: int  # without removed ones
    scopes: int  # all that are stored
    hosts: int  # all that are stored
    events: int  # live ones: scheduled or started


class GatedEvents(NamedTuple):
    """The events that wait behind some gates, as `Store.events_behind_gates` returns them.

    A gate starts the events of several scopes on one host together, once all of them are published and ready.
    """

    scheduled: list[Event]  # published and not started, oldest first
    gates_with_planned: set[str]  # ids of those of the gates that have planned events, which are not published yet


class AppliedCommit(NamedTuple):
    """A commit after it was written, as subscribers get it."""

    commit: Commit  # as it was passed to `Store.commit`, with versions not yet increased; only its entries have a `seq`
    seq: int  # of the store's last history entry after this commit, also if the commit itself has no entries


class Store(Protocol):
    """The durable state of a service: scopes, VMs, hosts, events, gates, requests and their history.

    Reads return committed values, which are immutable; writes return when they are durable. Use it from the thread of
    its event loop; reads block briefly. Keys, names and ids must match exactly; times are lab time; a filter of None
    selects everything. Reads raise Unavailable if the store cannot be read. Writes raise Unavailable if nothing was
    written, or if it is not known whether it was, and `commit` raises Conflict if a scope, host, gate or request is no
    longer at the version it was decided on. `SqliteStore`, `ReplicatedStore` and `MemoryStore` implement it; their
    owner calls `close`.
    """

    def scope(self, scope_id: str) -> Scope | None:
        """Return a scope with its present VMs and its live events; None if there is no such scope.

        VMs are in the order they were added, events (scheduled or started) in order of publication. Raises Unavailable.
        Scope ids are in lower case.
        """

    def scopes(self) -> Iterator[Scope]:
        """Return an iterator over a snapshot of all scopes, taken at the call and sorted by id.

        A scope is the VMs that share one document. Each has its present (not removed) VMs and its live (scheduled or
        started) events, as `scope` returns it. Raises Unavailable.
        """

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        """Return sorted scope ids: of all scopes (None), of enabled ones (True) or of disabled ones (False).

        Raises Unavailable.
        """

    def scope_versions(self) -> dict[str, int]:
        """Return the stored version of every scope, enabled or not, by scope id.

        A commit that writes a scope adds 1 to its version. Raises Unavailable.
        """

    def counts(self) -> StoreCounts:
        """Return how many present VMs, scopes, hosts and live events there are. Raises Unavailable."""

    def enabled_scope_count(self) -> int:
        """Return how many scopes are enabled: a VM has polled within 24 hours, or it is a lab.

        Raises Unavailable.
        """

    def failed_writes(self) -> int:
        """Return how many writes have failed with Unavailable since the store was opened; never raises.

        Writes that end with a Conflict do not count, nor do writes after `close`, nor writes of which it is merely
        unknown whether they were saved in time. A `MemoryStore` counts the writes that its `fail_next` made fail, with
        any error.
        """

    def vm(self, key: str) -> Vm | None:
        """Return a VM by its key, even if it was removed but not yet pruned (`removed_at` is set), or None.

        A key is `subscription/group/name` in lower case. Raises Unavailable.
        """

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        """Return the VMs in this scope and on this host (None: any), in the order they were added.

        Removed VMs are included only with `removed`. A VM that was removed and added again, or moved to another scope,
        counts as added at that time. `scope_id` is in lower case, `host` is spelled as in `Vm.host`. Raises
        Unavailable.
        """

    def vms_with_program(self) -> list[Vm]:
        """Return the present VMs whose `program` is not empty, in the order they were added.

        Raises Unavailable.
        """

    def hosts(self) -> list[Host]:
        """Return all hosts, of any state, sorted by name ignoring letter case. Raises Unavailable."""

    def event(self, event_id: str) -> Event | None:
        """Return an event by its id, live or over; None if there is none or it was pruned. Raises Unavailable.

        Ids of events are in upper case.
        """

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
        (None: no limit), return the newest ones, still oldest first. Raises Unavailable.
        """

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        """Return events that ended from `since` to `until`, both included, in the order in which they ended.

        The one that ended first comes first; of equal ends the one that was added first. Times are lab time. Of more
        than `limit` events, return those that ended last, or without `newest` those that ended first, in this order.
        Raises Unavailable.
        """

    def gate(self, gate_id: str) -> Gate | None:
        """Return a gate by its id, released or not; None if there is none or it was pruned.

        A gate starts the events of several scopes on one host together. Raises Unavailable.
        """

    def request(self, request_id: str) -> MaintenanceRequest | None:
        """Return a maintenance request by its id, open or ended; None if there is none or it was pruned.

        Ids of requests are in lower case. Raises Unavailable.
        """

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]:
        """Return requests in the order they were added; with `limit`, only the newest, still oldest first.

        `open_only`: only rollouts and replays that have not ended; other requests are never open. Raises Unavailable.
        """

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        """Return the planned events of this request (None: of all), oldest first.

        These are events that were decided, and that the reconciler has neither published nor dropped yet. Raises
        Unavailable.
        """

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        """Return the scheduled events behind these gates (ids), and which of the gates have planned events.

        The events come oldest first; those that are started or over are left out; unknown gates are ignored. Raises
        Unavailable.
        """

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        """Return the ids of up to `limit` scopes whose `wakes_at` is `now` or earlier, the earliest first.

        `now` is lab time. These are the scopes that the reconciler must look at; equal times are sorted by id. Raises
        Unavailable.
        """

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        """Return up to `limit` gates whose `wakes_at` is `now` (lab time) or earlier, the earliest first.

        A gate starts the events of one host together; these are to be checked. Equal times are sorted by id. Raises
        Unavailable.
        """

    def next_wake_at(self) -> float | None:
        """Return the earliest `wakes_at`, in lab time, of all scopes and gates, perhaps past; None if none.

        Raises Unavailable.
        """

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
        than `limit` entries (None: no limit), return the newest ones, or without `newest` the oldest. Raises
        Unavailable.
        """

    def entries_after(self, seq: int, limit: int) -> list[HistoryEntry]:
        """Return the first `limit` history entries whose `seq` is greater than this one, oldest first.

        Raises Unavailable.
        """

    def last_seq(self) -> int:
        """Return the sequence number of the last history entry ever written, also a pruned one; 0 if none.

        Raises Unavailable.
        """

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        """Return the first delivery of each event, VM (key) and status, sorted by time, event, VM, status.

        `event_id` and `vm` (a key) select those of one event or VM; None: any. Of several deliveries of an event, VM
        and status the one that was recorded first is kept. Raises Unavailable.
        """

    def events_given_before_start(self, event_ids: Sequence[str]) -> set[str]:
        """Return those of these events (ids) that were delivered to a VM while they were scheduled.

        Unknown events are ignored. Raises Unavailable.
        """

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        """Return the latest recorded poll of each VM that has one, including removed VMs, sorted by VM key.

        `scope_id` selects the VMs whose latest poll was in this scope. The poll of a removed VM is deleted when the VM
        is pruned, or when it is added again, because it is then another VM. Polls are not shared in a cluster: a
        `ReplicatedStore` has the polls that its own node recorded. Raises Unavailable.
        """

    def client(self, client_id: str) -> RegisteredClient | None:
        """Return a registered API client by its id, which must be in lower case, or None. Raises Unavailable."""

    def clients(self) -> list[RegisteredClient]:
        """Return all registered API clients, sorted by id. Raises Unavailable."""

    def grants(self, *, to: str | None = None) -> list[Grant]:
        """Return the grants of roles to this principal (its id; None: to all), in the order they were added.

        The id must be spelled as in `Grant.to`, such as `client:ID` in lower case. Raises Unavailable.
        """

    def webhooks(self) -> list[WebhookSubscription]:
        """Return all webhook subscriptions with their cursors, in the order they were added.

        Raises Unavailable.
        """

    def measurements(self, request_id: str, *, limit: int | None = None) -> list[Measurement]:
        """Return the measurements of the health checks of a rollout (its request's id), oldest first.

        [] if it has none. Only the newest MAX_MEASUREMENTS (5000) of a rollout are kept; of more than `limit` (None: no
        limit), return the newest ones, still oldest first. Raises Unavailable.
        """

    def configurations(self) -> list[MaintenanceConfiguration]:
        """Return all maintenance configurations, sorted by key. Raises Unavailable."""

    def assignments(self) -> list[ConfigurationAssignment]:
        """Return all assignments of maintenance configurations, sorted by key. Raises Unavailable."""

    def load(self, name: str) -> bytes | None:
        """Return the value that `save` or a commit wrote under this name, or None if there is none.

        Raises Unavailable.
        """

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        """Return what `read` returns, called with a store that it may only read, and only until it returns.

        This is for reads of many rows: a store that reads slowly calls `read` in a thread for such reads, one at a
        time, so that the event loop and asyncio's threads go on. `MemoryStore` calls it at once, on the calling thread.
        `read` must not use what belongs to the loop's thread. There may be commits between two of its reads. Raises
        Unavailable, and what `read` raises.
        """

    async def commit(self, commit: Commit) -> int:
        """Write a commit, all of it or nothing; return the sequence number of the store's last history entry.

        That number is 0 in a store without history. Adds 1 to the version of each scope, host, gate and request that it
        writes. Subscribers are called before it returns. Raises Conflict if one of these is no longer at the version in
        the commit or occurs twice at one version, or if a host is not as `Commit` demands. Raises Unavailable, and
        Rejected if the record (PostgreSQL) of a cluster cannot store a value, such as a text with NUL. After an error
        nothing was written, unless Unavailable says that it may have been. A write whose caller is cancelled goes on.
        """

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Write polls and deliveries durably, and move `last_request_at` of the polled scopes forward.

        Keeps the latest poll of each VM (of polls with equal times, the one recorded last) and the first delivery of
        each event, VM and status; others change nothing. `count` of a poll is stored as it is, not added. The versions
        of the scopes stay the same, and no subscriber is called. An unknown VM or scope is not an error. Raises
        Unavailable if they cannot be written.
        """

    async def save(self, name: str, value: bytes) -> None:
        """Write a value under a name, in place of an earlier one; durable on return. `load` returns it.

        Raises Unavailable if it cannot be written.
        """

    async def prune(self, before: float) -> int:
        """Delete what ended or was removed before this lab time; return how many history entries it deleted.

        Deletes history entries; events that are over, with their deliveries; requests made before then that nothing
        kept refers to, with their gates, measurements and replay scripts; removed VMs that no kept or planned event
        lists and that no kept event was delivered to, with their polls. Open requests stay, and so do their events.
        Callers keep at least 24 hours (spec §5.2). Space is returned to the file system. It may work in several
        transactions: after Unavailable some of it is done, and the next call continues.
        """

    async def back_up(self, path: Path) -> None:
        """Write a consistent copy to the new file `path` while the store is in use; durable on return.

        Raises Refused if the file exists, and always for a `MemoryStore`; Unavailable if it cannot be written, for
        example because its directory is missing. After an error there is no file `path`, unless there was one before.
        """

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        """Call the listener after every later `commit`, in order, on the event loop; return a stop function.

        Calling that function twice is harmless. Other writes notify nobody. The listener must not block; its errors go
        to the loop's exception handler.
        """

    async def close(self) -> None:
        """Finish the writes under way and close; later writes raise Unavailable. Closing twice is harmless.

        Reads may raise Unavailable then, too.
        """
