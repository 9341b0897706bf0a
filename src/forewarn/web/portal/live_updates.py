"""Fans changes out to open pages: one subscription to the store, many bounded subscribers.

Costs nothing while no page is open. A subscriber that reads too slowly, or missed too much, has to reload everything.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import msgspec

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import Timestamp, encode_time, timestamp
from forewarn.control.visibility import Visibility, VisibleDirectory
from forewarn.core.access import Grant
from forewarn.core.commit import Commit
from forewarn.core.event import Act, Event
from forewarn.core.explain.explanation import VmState
from forewarn.core.history import EventDelivery, HistoryEntry
from forewarn.errors import Unavailable
from forewarn.store.interface import ROLLOUT_HOLD_NAME, AppliedCommit, Store
from forewarn.web.dependencies import Dependencies
from forewarn.web.portal.fleet_overview import FleetOverview
from forewarn.web.portal.nodes_page import NodeMonitor
from forewarn.web.portal.polling_monitor import MAX_CHANGED_SCOPES, ChangedScopes, PollingMonitor
from forewarn.web.portal.store_monitor import StoreHealth, StoreHealthMonitor

T = TypeVar("T")


# Collects commits, history entries and deliveries into change batches for open pages. Pure.
#
# A batch names the things that changed and the new state of VMs; `visible_change` leaves out what a user may not see.


class LiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, for one user: the message `change` of the live stream. Field names are JSON keys."""

    seq: int  # number of a history entry; the change covers everything up to it
    now: Timestamp
    scopes: tuple[str, ...]  # ids of the scopes that changed, sorted, as in the next two fields
    events: tuple[str, ...]  # ids, upper case
    requests: tuple[str, ...]  # ids, lower case
    hosts: tuple[str, ...]  # names, sorted, also of hosts with a VM or an event that changed
    vms: tuple[tuple[str, str], ...]  # key and state of each VM whose state has changed, or may have
    kinds: tuple[str, ...]  # the kinds of the history entries, each once, sorted

    @property
    def is_empty(self) -> bool:
        """Whether the change names nothing that changed, so that it need not be sent."""
        return not (self.scopes or self.events or self.requests or self.hosts or self.vms or self.kinds)


@dataclass(frozen=True, kw_only=True)
class ChangeBatch:
    """Changes of a short time, collected once for all open pages; each page gets what its user may see."""

    seq: int  # number of a history entry; the batch covers everything up to it
    now: Timestamp
    scopes: frozenset[str]  # ids
    events: Mapping[str, str]  # id → id of its scope
    requests: frozenset[str]  # ids
    hosts: frozenset[str]  # names of those that changed themselves; "" does not count
    vms: Mapping[str, str]  # key → VmState, where it has changed or may have
    hosts_by_id: Mapping[str, Set[str]]  # an event's id or a VM's key → hosts whose pages show it
    entries: Sequence[HistoryEntry]  # that were collected; () for what the history does not record

    @cached_property
    def full_change(self) -> LiveChange:
        """The change for users who may see everything; built on first use and cached."""
        hosts = self.hosts.union(*self.hosts_by_id.values())
        return self._build_change(self.scopes, self.events, self.requests, hosts, self.vms, self.entries)

    @cached_property
    def full_change_json(self) -> bytes:
        """The change for users who may see everything, encoded as JSON once for all of them."""
        return msgspec.json.encode(self.full_change, enc_hook=encode_time)

    def visible_change(self, visible: Visibility, store: Store) -> LiveChange:
        """Return the change with only what one user may see, as `visible` decides; it may be empty."""
        if visible.sees_everything:
            return self.full_change
        events = [event_id for event_id, scope_id in self.events.items() if visible.can_see_scope(scope_id)]
        vms = {key: self.vms[key] for key in _visible_names(self.vms, store.vm, visible.can_see_vm)}
        # A host's page changes for this user only if one of their own events or VMs on it changed.
        hosts = self.hosts.union(*(self.hosts_by_id.get(item, ()) for item in (*events, *vms)))
        return self._build_change(
            filter(visible.can_see_scope, self.scopes),
            events,
            _visible_names(self.requests, store.request, visible.can_see_request),
            filter(visible.can_see_host, filter(None, hosts)),
            vms,
            filter(visible.can_see_entry, self.entries),
        )

    def _build_change(
        self,
        scopes: Iterable[str],
        events: Iterable[str],
        requests: Iterable[str],
        hosts: Iterable[str],
        vms: Mapping[str, str],
        entries: Iterable[HistoryEntry],
    ) -> LiveChange:
        return LiveChange(
            seq=self.seq,
            now=self.now,
            scopes=tuple(sorted(scopes)),
            events=tuple(sorted(events)),
            requests=tuple(sorted(requests)),
            hosts=tuple(sorted(filter(None, hosts))),
            vms=tuple(vms.items()),
            kinds=tuple(sorted({entry.kind for entry in entries})),
        )


class ChangeCollector:
    """Collects commits, history entries, deliveries and acts until `to_batch` makes one batch of them."""

    def __init__(self) -> None:
        self._scopes: set[str] = set()
        self._events: dict[str, str] = {}
        self._requests: set[str] = set()
        self._hosts: set[str] = set()
        self._hosts_by_id: dict[str, set[str]] = defaultdict(set)
        self.vm_states: dict[str, str] = {}
        self._entries: list[HistoryEntry] = []

    def add_commit(self, commit: Commit) -> None:
        """Add what a commit changed: scopes, requests, hosts, events and history entries."""
        self._scopes.update(scope.id for scope in commit.scopes)
        self._scopes.update(vm.scope_id for vm in commit.vms)
        self._requests.update(request.id for request in commit.requests)
        self._requests.update(planned.request_id for planned in commit.planned)
        self._hosts.update(host.name for host in commit.hosts)
        self._hosts.update(host.name for host in commit.removed_hosts)
        for vm in commit.vms:
            self._hosts_by_id[vm.key].add(vm.host)
        for event in commit.events:
            self._add_event(event)
        self.add_entries(commit.entries)

    def _add_event(self, event: Event) -> None:
        self._events[event.id] = event.scope_id
        self._scopes.add(event.scope_id)
        self._requests.add(event.request_id)
        self._hosts_by_id[event.id].add(event.host)
        for act in event.acts:
            self._hosts_by_id[event.id].update((act.from_host, act.to_host))

    def add_entries(self, entries: Iterable[HistoryEntry]) -> None:
        """Add history entries, and the scopes, requests and events that they name."""
        for entry in entries:
            self._entries.append(entry)
            self._scopes.add(entry.scope_id)
            self._requests.add(entry.request_id)
            if not entry.scope_id:
                self._hosts.add(entry.host)
            if entry.event_id:
                self._hosts_by_id[entry.event_id].add(entry.host)
                self._events.setdefault(entry.event_id, entry.scope_id)

    def add_deliveries(self, deliveries: Iterable[EventDelivery]) -> None:
        """Add the events and scopes of deliveries to VMs: pages show deliveries, the history does not."""
        for delivery in deliveries:
            self._events[delivery.event_id] = delivery.scope_id
            self._scopes.add(delivery.scope_id)

    def add_act(self, act: Act, scope_id: str) -> None:
        """Add the event and the hosts of an act on which the hypervisor has reported progress."""
        self._events[act.event_id] = scope_id
        self._hosts_by_id[act.event_id].update((act.from_host, act.to_host))

    def add_vm_states(self, states: Iterable[tuple[str, str]]) -> None:
        """Add VMs, as pairs of key and new state; a later state replaces an earlier one."""
        self.vm_states.update(states)

    @property
    def scope_ids(self) -> frozenset[str]:
        """The ids of the scopes that were added as changed so far, in a new set."""
        return frozenset(self._scopes - {""})

    def to_batch(self, seq: int, now: float, host_of: Callable[[str], str]) -> ChangeBatch:
        """Return the batch of everything collected. Add nothing afterwards: the batch shares the data."""
        for key in self.vm_states:
            self._hosts_by_id[key].add(host_of(key))
        return ChangeBatch(
            seq=seq,
            now=timestamp(now),
            scopes=self.scope_ids,
            events=self._events,
            requests=frozenset(self._requests - {""}),
            hosts=frozenset(self._hosts),
            vms=self.vm_states,
            hosts_by_id=self._hosts_by_id,
            entries=self._entries,
        )


def _visible_names(names: Iterable[str], read: Callable[[str], T | None], sees: Callable[[T], bool]) -> list[str]:
    return [name for name in names if (item := read(name)) is not None and sees(item)]


MAX_PENDING_BATCHES = 100  # of a slow subscriber; with more, it has to reload everything


@dataclass(kw_only=True)
class PendingUpdates:
    """Updates that wait for one open page, sent in the order of the fields; falsy if there are none."""

    needs_reset: bool = False  # too many changes, or other rights of the user: the page has to reload everything
    batches: list[ChangeBatch] = field(default_factory=list)  # oldest first
    polling_scopes: ChangedScopes = frozenset()  # ids of scopes where VMs started or stopped polling; None: any scope
    clock_changed: bool = False  # the lab clock was advanced or has another speed
    counts_changed: bool = False  # the counts of VMs by state may have changed
    health_changed: bool = False  # the health of the store has changed
    hold_changed: bool = False  # the hold on all rollouts was set, changed or lifted
    nodes_changed: bool = False  # control nodes or host nodes of the cluster have changed

    def __bool__(self) -> bool:
        if self.needs_reset or self.batches or self.polling_scopes is None or self.polling_scopes:
            return True
        others = (self.clock_changed, self.counts_changed, self.health_changed, self.hold_changed, self.nodes_changed)
        return any(others)


class LiveSubscriber:
    """One open page with its pending updates, which are bounded for a page that reads slowly."""

    def __init__(self, principal_id: str) -> None:
        self.principal_id = principal_id
        self._pending = PendingUpdates()
        self._wakeup = asyncio.Event()
        self.is_closed = False

    def add_batch(self, batch: ChangeBatch) -> None:
        """Queue changes for the page, and wake its `wait`."""
        if len(self._pending.batches) == MAX_PENDING_BATCHES:
            self.require_reset()
        elif not self._pending.needs_reset:
            self._pending.batches.append(batch)
            self._wakeup.set()

    def require_reset(self) -> None:
        """Queue a reset, which makes the page reload everything, and wake its `wait`."""
        self._pending.batches.clear()
        self._pending.needs_reset = True
        self._wakeup.set()

    def add_polling_scopes(self, scopes: ChangedScopes) -> None:
        """Queue the ids of scopes in which a VM started or stopped polling, and wake the page's `wait`."""
        known = self._pending.polling_scopes
        merged = None if known is None or scopes is None else known | scopes
        self._pending.polling_scopes = merged if merged is not None and len(merged) <= MAX_CHANGED_SCOPES else None
        self._wakeup.set()

    def notify_clock(self) -> None:
        """Queue a message to the page that the lab clock was changed, and wake its `wait`."""
        self._pending.clock_changed = True
        self._wakeup.set()

    def notify_counts(self) -> None:
        """Queue a message that the counts of VMs by state may have changed, and wake the page's `wait`."""
        self._pending.counts_changed = True
        self._wakeup.set()

    def notify_health(self) -> None:
        """Queue a message that the health of the store changed, and wake the page's `wait`."""
        self._pending.health_changed = True
        self._wakeup.set()

    def notify_hold(self) -> None:
        """Queue a message that the hold on all rollouts was set, changed or lifted, and wake `wait`."""
        self._pending.hold_changed = True
        self._wakeup.set()

    def notify_nodes(self) -> None:
        """Queue a message that a node of the cluster changed, and wake the page's `wait`."""
        self._pending.nodes_changed = True
        self._wakeup.set()

    def close(self) -> None:
        """Mark the page as closed, so that its stream ends; a waiting `wait` returns at once."""
        self.is_closed = True
        self._wakeup.set()

    async def wait(self, timeout_s: float) -> PendingUpdates:
        """Return the pending updates and forget them; wait up to `timeout_s` real seconds for the first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()
        updates, self._pending = self._pending, PendingUpdates()
        return updates


BATCH_WINDOW_S = 0.05  # of real time; commits within it are sent as one change
COUNTS_INTERVAL_S = 0.5  # between two counts of the fleet
POLLING_INTERVAL_S = 2.0  # between two updates about polling
MAX_VMS_PER_CHANGE = 2000  # with more, pages have to reload everything
MAX_MISSED_ENTRIES = 500  # of the history; a page that missed more has to reload everything
# Each stream takes a connection, so `ConnectionShares` may allow fewer.
MAX_SUBSCRIBERS = 1000
MAX_SUBSCRIBERS_PER_PRINCIPAL = 100  # so that one user does not use up all of them


class LiveUpdateHub:
    """Sends changes of the store and its health, polling, nodes, the hold and the clock to all open pages.

    It works only while a page is subscribed. Commits within BATCH_WINDOW_S become one batch. `overview` must be built
    before a page subscribes.
    """

    def __init__(self, dependencies: Dependencies, overview: FleetOverview) -> None:
        self._dependencies = dependencies
        self._store = dependencies.control.store
        self._overview = overview
        self._subscribers: set[LiveSubscriber] = set()
        self._collector: ChangeCollector | None = None
        self._seq = 0
        self._counts_cache: dict[tuple[Grant, ...] | None, bytes] = {}  # by grants; None: all VMs
        self._store_monitor = StoreHealthMonitor(self._store, self._send_health)
        self._node_monitor = NodeMonitor(dependencies, self._send_nodes)
        self._polling_monitor = PollingMonitor(dependencies, self._on_polling_change)
        self._polling_sent_at = 0.0
        self._unsubscribers: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_following_clock = False

    @property
    def health(self) -> StoreHealth:
        """The health of the store, as of the last check or commit while a page was open; HEALTHY at first."""
        return self._store_monitor.health

    def counts_json(self, directory: VisibleDirectory) -> bytes:
        """Return how many of the VMs that a user may see are in each VmState, as a JSON object in UTF-8."""
        grants = None if directory.sees_everything else directory.grants
        if grants not in self._counts_cache:
            self._counts_cache[grants] = msgspec.json.encode(self._overview.count_states(directory))
        return self._counts_cache[grants]

    def require_capacity(self, principal_id: str) -> None:
        """Raise Unavailable if all users together, or this user, have reached their limit of open pages."""
        shares = self._dependencies.connection_shares
        limit = min(MAX_SUBSCRIBERS, shares.streams)
        if len(self._subscribers) >= limit:
            raise Unavailable(f"{limit} live pages are open, which is the limit: close some, then reload")
        own_limit = min(MAX_SUBSCRIBERS_PER_PRINCIPAL, shares.streams_per_principal)
        if sum(subscriber.principal_id == principal_id for subscriber in self._subscribers) >= own_limit:
            raise Unavailable(f"{own_limit} of your live pages are open, which is the limit: close some, then reload")

    @contextmanager
    def subscribe(self, principal_id: str) -> Iterator[LiveSubscriber]:
        """Return a context manager that adds an open page of a user until its block ends."""
        subscriber = LiveSubscriber(principal_id)
        self._subscribers.add(subscriber)
        if len(self._subscribers) == 1:
            self._start()
        if self._dependencies.shutting_down.is_set():
            subscriber.close()
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._stop()

    def changes_since(self, after: int) -> ChangeBatch | None:
        """Return the changes after the history entry of number `after`, for a page that missed them."""
        # None if the page has to reload everything: it missed too much, or entries were pruned.
        last = self._store.last_seq()
        if not 0 <= last - after <= MAX_MISSED_ENTRIES:
            return None
        entries = self._store.entries_after(after, MAX_MISSED_ENTRIES + 1)
        if len(entries) < last - after:
            return None  # some were pruned
        collector = ChangeCollector()
        collector.add_entries(entries)
        for scope_id in collector.scope_ids:
            collector.add_vm_states(self._vm_states_in(scope_id))
            if len(collector.vm_states) > MAX_VMS_PER_CHANGE:
                return None
        return self._to_batch(collector, last)

    def polling_changes_within(self, age_s: float) -> ChangedScopes:
        """Return the ids of the scopes in which a VM started or stopped polling lately."""
        return self._polling_monitor.changes_within(age_s)

    def _vm_states_in(self, scope_id: str) -> list[tuple[str, VmState]]:
        """The states of all VMs of a scope, also of removed ones: pages may still show them."""
        vms = self._store.vms(scope_id=scope_id, removed=True)
        return [(vm.key, VmState.GONE if vm.removed_at else self._overview.state_of(vm.key)) for vm in vms]

    def _to_batch(self, collector: ChangeCollector, seq: int) -> ChangeBatch:
        control = self._dependencies.control
        return collector.to_batch(seq, control.clock.now(), control.placement.host_of)

    def _start(self) -> None:
        self._counts_cache.clear()
        self._unsubscribers = [
            self._store.subscribe(self._on_commit),
            self._dependencies.subscribe_deliveries(self._on_deliveries),
            self._dependencies.control.executor.progress.subscribe(self._on_act_progress),
        ]
        work = (self._store_monitor.run(), self._node_monitor.run(), self._close_on_shutdown())
        self._tasks = [asyncio.create_task(coroutine) for coroutine in work]
        self._polling_monitor.start()
        clock = self._dependencies.control.clock
        if not self._is_following_clock and isinstance(clock, LabClock):
            clock.subscribe(self._on_clock_change)
            self._is_following_clock = True

    def _stop(self) -> None:
        self._polling_monitor.stop()
        for unsubscribe in self._unsubscribers:
            unsubscribe()
        for task in self._tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._tasks, self._timers, self._collector = [], {}, None

    async def _close_on_shutdown(self) -> None:
        await self._dependencies.shutting_down.wait()
        for subscriber in self._subscribers:
            subscriber.close()

    def _on_commit(self, committed: AppliedCommit) -> None:
        self._store_monitor.on_commit()
        self._collector = self._collector or ChangeCollector()
        self._collector.add_commit(committed.commit)
        self._collector.add_vm_states(self._overview.changes_in(committed.commit))
        self._seq = committed.seq
        self._schedule_once("changes", BATCH_WINDOW_S, self._send_changes)
        if any(saved.name == ROLLOUT_HOLD_NAME for saved in committed.commit.saved):
            self._schedule_once("hold", BATCH_WINDOW_S, self._send_hold)

    def _on_deliveries(self, deliveries: Sequence[EventDelivery]) -> None:
        self._collector = self._collector or ChangeCollector()
        self._collector.add_deliveries(deliveries)
        self._seq = max(self._seq, self._overview.seq)
        self._schedule_once("changes", BATCH_WINDOW_S, self._send_changes)

    def _on_act_progress(self, act: Act) -> None:
        placement = self._dependencies.control.placement
        if not placement.has_vm(act.vm):
            return
        self._collector = self._collector or ChangeCollector()
        self._collector.add_act(act, placement.scope_of(act.vm))
        self._seq = max(self._seq, self._overview.seq)
        self._schedule_once("changes", BATCH_WINDOW_S, self._send_changes)

    def _on_polling_change(self) -> None:
        if self._subscribers:
            remaining_s = self._polling_sent_at + POLLING_INTERVAL_S - asyncio.get_running_loop().time()
            self._schedule_once("polling", max(BATCH_WINDOW_S, remaining_s), self._send_polling_changes)

    def _on_clock_change(self, setting: ClockSetting) -> None:
        if self._subscribers and self._is_following_clock:
            self._schedule_once("clock", BATCH_WINDOW_S, self._send_clock)

    def _send_changes(self) -> None:
        collector, self._collector = self._collector, None
        assert collector is not None
        batch = self._to_batch(collector, self._seq)
        for subscriber in self._subscribers:
            if len(batch.vms) > MAX_VMS_PER_CHANGE:
                subscriber.require_reset()
            elif not batch.full_change.is_empty:
                subscriber.add_batch(batch)
        if batch.vms:
            self._schedule_once("counts", COUNTS_INTERVAL_S, self._send_counts)

    def _send_polling_changes(self) -> None:
        self._polling_sent_at = asyncio.get_running_loop().time()
        scopes = self._polling_monitor.take_changes()
        for subscriber in self._subscribers:
            subscriber.add_polling_scopes(scopes)

    def _send_clock(self) -> None:
        for subscriber in self._subscribers:
            subscriber.notify_clock()

    def _send_counts(self) -> None:
        self._counts_cache.clear()
        for subscriber in self._subscribers:
            subscriber.notify_counts()

    def _send_health(self, health: StoreHealth) -> None:
        for subscriber in self._subscribers:
            subscriber.notify_health()

    def _send_hold(self) -> None:
        for subscriber in self._subscribers:
            subscriber.notify_hold()

    def _send_nodes(self) -> None:
        for subscriber in self._subscribers:
            subscriber.notify_nodes()

    def _schedule_once(self, name: str, delay_s: float, send: Callable[[], None]) -> None:
        def run() -> None:
            del self._timers[name]
            send()

        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(delay_s, run)
