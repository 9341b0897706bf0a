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

# Names of saved values that a store must know.
LAB_CLOCK_NAME = "clock"  # the position of a lab's clock
REPLAY_SCRIPT_PREFIX = "replay/"  # and a request's id: the name under which a replay's script is saved


class LastPoll(msgspec.Struct, frozen=True, kw_only=True):
    """The latest poll of a VM. Collected in memory and written in batches."""

    vm: str  # its key
    scope_id: str
    at: float  # lab time
    version: str  # api-version
    count: int = 0  # polls of this VM so far
    agent: str = ""  # the client program, from its User-Agent
    wait_s: int = 0  # how long the client lets the server hold this poll; until then it counts as polling
    vm_id: str = ""  # tells VMs apart that had the same key one after the other; "": stored by an earlier release


class StoreCounts(NamedTuple):
    """The size of the fleet now."""

    vms: int  # without removed ones
    scopes: int
    hosts: int
    events: int  # live ones


class GatedEvents(NamedTuple):
    """Events that wait behind gates."""

    scheduled: list[Event]  # oldest first
    gates_with_planned: set[str]  # gates for which planned events are not yet published


class AppliedCommit(NamedTuple):
    """A commit as subscribers get it."""

    commit: Commit  # its entries have their sequence numbers
    seq: int  # of the last history entry after this commit


class Store(Protocol):
    """Durable state. Reads return committed values; writes return when they are durable.

    Use it from the thread of its event loop. Keys, names and ids must match exactly; times are lab time. Reads raise
    Unavailable if the store cannot be read. Writes raise Unavailable if nothing was written, and `commit` raises
    Conflict if a scope, host, gate or request is no longer at the version it was decided on.
    """

    def scope(self, scope_id: str) -> Scope | None:
        """Return a scope with its present VMs and its live events, in order of publication, or None."""

    def scopes(self) -> Iterator[Scope]:
        """Return an iterator over a consistent snapshot of all scopes, sorted by id."""

    def scope_ids(self, *, enabled: bool | None = None) -> list[str]:
        """Return sorted scope ids: of all scopes (None), or only of enabled or of disabled ones."""

    def scope_versions(self) -> dict[str, int]:
        """Return the version of every scope, by its id."""

    def counts(self) -> StoreCounts:
        """Return how many present VMs, scopes, hosts and live events there are."""

    def enabled_scope_count(self) -> int:
        """Return how many scopes are enabled."""

    def failed_writes(self) -> int:
        """Return how many writes have failed since the store was opened; conflicts do not count."""

    def vm(self, key: str) -> Vm | None:
        """Return a VM by its key, also a removed one, or None."""

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        """Return the VMs that match all conditions, in the order they were added; `removed`: removed ones too.

        A VM that was removed and added again, or moved to another scope, counts as added then.
        """

    def hosts(self) -> list[Host]:
        """Return all hosts, sorted by name."""

    def event(self, event_id: str) -> Event | None:
        """Return an event by its id, live or over, or None; a pruned event is gone."""

    def events(
        self,
        *,
        scope_id: str | None = None,
        request_id: str | None = None,
        gate_id: str | None = None,
        statuses: Sequence[EventState] = tuple(EventState),
        limit: int | None = None,
    ) -> list[Event]:
        """Return the events that match all conditions, oldest first; with a limit, only the newest ones."""

    def events_ended_between(self, since: float, until: float, *, limit: int, newest: bool = True) -> list[Event]:
        """Return events that ended in this time, both ends included, in the order they ended.

        Of more than `limit` events, return the newest ones, or without `newest` the oldest.
        """

    def gate(self, gate_id: str) -> Gate | None:
        """Return a gate by its id, or None."""

    def request(self, request_id: str) -> MaintenanceRequest | None:
        """Return a request by its id, or None."""

    def requests(self, *, open_only: bool = False, limit: int | None = None) -> list[MaintenanceRequest]:
        """Return requests, oldest first; with a limit, only the newest ones.

        `open_only`: only rollouts and replays that have not ended.
        """

    def planned(self, *, request_id: str | None = None) -> list[PlannedEvent]:
        """Return planned events that are not yet applied, oldest first."""

    def events_behind_gates(self, gate_ids: Sequence[str]) -> GatedEvents:
        """Return the scheduled events behind these gates, and which of the gates have planned events."""

    def due_scopes(self, now: float, limit: int = 1000) -> list[str]:
        """Return the ids of up to `limit` scopes whose `wakes_at` is `now` or earlier, the earliest first."""

    def due_gates(self, now: float, limit: int = 1000) -> list[Gate]:
        """Return up to `limit` gates whose `wakes_at` is `now` or earlier, the earliest first."""

    def next_wake_at(self) -> float | None:
        """Return the earliest `wakes_at` of all scopes and gates, perhaps past, or None."""

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
        """Return the first `limit` history entries after a sequence number, oldest first."""

    def last_seq(self) -> int:
        """Return the sequence number of the last history entry ever written, 0 if there is none."""

    def deliveries(self, *, event_id: str | None = None, vm: str | None = None) -> list[EventDelivery]:
        """Return the first delivery of each event, VM (key) and status, sorted by time, event, VM, status.

        Of several deliveries of an event, VM and status the one that was recorded first is kept.
        """

    def last_polls(self, *, scope_id: str | None = None) -> list[LastPoll]:
        """Return the latest poll of each VM that has polled, also of removed ones, sorted by VM key.

        The commit that adds a removed VM again deletes its poll: it is another VM.
        """

    def client(self, client_id: str) -> RegisteredClient | None:
        """Return an API client by its id (in lower case), or None."""

    def clients(self) -> list[RegisteredClient]:
        """Return all API clients, sorted by id."""

    def grants(self, *, to: str | None = None) -> list[Grant]:
        """Return grants in the order they were added; `to`: of this principal only."""

    def webhooks(self) -> list[WebhookSubscription]:
        """Return all webhooks in the order they were added."""

    def load(self, name: str) -> bytes | None:
        """Return the value that `save` wrote under this name, or None."""

    async def commit(self, commit: Commit) -> int:
        """Write a commit, all of it or nothing; return the sequence number of the store's last history entry.

        Subscribers are called before it returns. Raises Conflict or Unavailable; then nothing was written.
        """

    async def record_observations(self, polls: Sequence[LastPoll], deliveries: Sequence[EventDelivery]) -> None:
        """Write polls and deliveries. Older polls and repeated deliveries change nothing; no version changes."""

    async def save(self, name: str, value: bytes) -> None:
        """Write a value under a name, in place of an earlier one."""

    async def prune(self, before: float) -> int:
        """Delete what ended or was removed before this time; return how many history entries it deleted.

        Deletes history entries; events that are over, with their deliveries; requests that nothing kept refers to, with
        their gates and replay scripts; removed VMs that no kept event lists or was delivered to, with their polls. Open
        requests stay, and so do their events. Callers keep at least 24 hours (spec §5.2). Space is returned to the file
        system. It may work in several transactions: after Unavailable some of it is done.
        """

    async def back_up(self, path: Path) -> None:
        """Write a consistent copy to the new file `path` while the store is in use.

        Raises Refused if the file exists or the store cannot be backed up, Unavailable if it cannot be written.
        """

    def subscribe(self, listener: Callable[[AppliedCommit], None]) -> Callable[[], None]:
        """Call the listener after every `commit`, in order, on the event loop; return a function to stop it.

        Other writes notify nobody. The listener must not block; its errors go to the loop's exception handler.
        """

    async def close(self) -> None:
        """Finish the writes under way and close; later writes raise Unavailable. Closing twice is harmless."""
