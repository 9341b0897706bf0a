"""Fans changes out to open pages: one subscription to the store, many bounded subscribers.

Costs nothing while no page is open. A subscriber that reads too slowly, or missed too much, is told to reload
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from forewarn.clock import ClockSetting, LabClock
from forewarn.core.access import Grant
from forewarn.core.history import EventDelivery
from forewarn.errors import Unavailable
from forewarn.explain.vm_state import VmState
from forewarn.portal.fleet_overview import FleetOverview
from forewarn.portal.live_changes import ChangeBatch, ChangeCollector
from forewarn.portal.polling_monitor import MAX_CHANGED_SCOPES, ChangedScopes, PollingMonitor
from forewarn.portal.store_monitor import StoreHealth, StoreHealthMonitor
from forewarn.store.interface import AppliedCommit
from forewarn.web.authorization import VisibleDirectory
from forewarn.web.dependencies import Dependencies

MAX_PENDING_BATCHES = 100  # news for a page that is slow to read; beyond, it reads everything again


@dataclass(kw_only=True)
class PendingUpdates:
    """In the order of the fields is it told."""

    needs_reset: bool = False  # there was more than could wait: everything has to be read again
    batches: list[ChangeBatch] = field(default_factory=list)
    polling_scopes: ChangedScopes = frozenset()
    clock_changed: bool = False
    counts_changed: bool = False
    health_changed: bool = False

    def __bool__(self) -> bool:
        if self.needs_reset or self.batches or self.polling_scopes is None or self.polling_scopes:
            return True
        return self.clock_changed or self.counts_changed or self.health_changed


class LiveSubscriber:
    """The latest of everything but news is enough, so that a page that reads slowly costs no more than others."""

    def __init__(self, who: str) -> None:
        self.principal_id = who
        self._pending = PendingUpdates()
        self._wakeup = asyncio.Event()
        self.is_closed = False

    def add_batch(self, news: ChangeBatch) -> None:
        if len(self._pending.batches) == MAX_PENDING_BATCHES:
            self.require_reset()
        elif not self._pending.needs_reset:
            self._pending.batches.append(news)
            self._wakeup.set()

    def require_reset(self) -> None:
        self._pending.batches.clear()
        self._pending.needs_reset = True
        self._wakeup.set()

    def add_polling_scopes(self, scopes: ChangedScopes) -> None:
        known = self._pending.polling_scopes
        told = None if known is None or scopes is None else known | scopes
        self._pending.polling_scopes = told if told is not None and len(told) <= MAX_CHANGED_SCOPES else None
        self._wakeup.set()

    def notify_clock(self) -> None:
        self._pending.clock_changed = True
        self._wakeup.set()

    def notify_counts(self) -> None:
        self._pending.counts_changed = True
        self._wakeup.set()

    def notify_health(self) -> None:
        self._pending.health_changed = True
        self._wakeup.set()

    def close(self) -> None:
        self.is_closed = True
        self._wakeup.set()

    async def wait(self, within_s: float) -> PendingUpdates:
        """What is to be told by now; nothing, when the time is over or the page is gone."""
        try:
            async with asyncio.timeout(within_s):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()
        waiting, self._pending = self._pending, PendingUpdates()
        return waiting


BATCH_WINDOW_S = 0.05  # of real time: commits so close to each other are told as one change
COUNTS_INTERVAL_S = 0.5  # between two counts of the fleet
POLLING_INTERVAL_S = 2.0  # between two words about who asks
MAX_VMS_PER_CHANGE = 2000  # in one change; beyond, pages read everything again
MAX_MISSED_ENTRIES = 500  # that a page may have missed; beyond, likewise
MAX_SUBSCRIBERS = 1000  # open at a time
MAX_SUBSCRIBERS_PER_PRINCIPAL = 100  # of one visitor: nobody is to keep others from following


class LiveUpdateHub:
    """Costs nothing while no page is open. What is the same for all who see everything is made once."""

    def __init__(self, dependencies: Dependencies, overview: FleetOverview) -> None:
        self._dependencies = dependencies
        self._store = dependencies.control.store
        self._overview = overview
        self._subscribers: set[LiveSubscriber] = set()
        self._collector: ChangeCollector | None = None
        self._seq = 0
        self._counts_cache: dict[tuple[Grant, ...] | None, bytes] = {}  # by who sees what, until the next are due
        self._store_monitor = StoreHealthMonitor(self._store, self._send_health)
        self._polling_monitor = PollingMonitor(dependencies, self._on_polling_change)
        self._polling_sent_at = 0.0
        self._unsubscribers: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_following_clock = False

    @property
    def health(self) -> StoreHealth:
        return self._store_monitor.health

    def counts_json(self, sees: VisibleDirectory) -> bytes:
        """How many VMs are in which state, as JSON: walked through once for all who see the same."""
        who = None if sees.sees_everything else sees.grants
        if who not in self._counts_cache:
            self._counts_cache[who] = msgspec.json.encode(self._overview.count_states(sees))
        return self._counts_cache[who]

    def require_capacity(self, who: str) -> None:
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise Unavailable(
                f"{MAX_SUBSCRIBERS} pages are open, and that is the most: close some, then reload this one"
            )
        if sum(listener.principal_id == who for listener in self._subscribers) >= MAX_SUBSCRIBERS_PER_PRINCIPAL:
            raise Unavailable(
                f"{MAX_SUBSCRIBERS_PER_PRINCIPAL} of your pages are open, and that is the most: close some, then reload"
            )

    @contextmanager
    def subscribe(self, who: str) -> Iterator[LiveSubscriber]:
        """A page of this visitor is open until the block is left."""
        listener = LiveSubscriber(who)
        self._subscribers.add(listener)
        if len(self._subscribers) == 1:
            self._start()
        if self._dependencies.shutting_down.is_set():
            listener.close()
        try:
            yield listener
        finally:
            self._subscribers.discard(listener)
            if not self._subscribers:
                self._stop()

    def changes_since(self, after: int) -> ChangeBatch | None:
        """What a page that knows everything up to `after` was not told. None: it has to read everything again."""
        last = self._store.last_seq()
        if not 0 <= last - after <= MAX_MISSED_ENTRIES:
            return None
        entries = self._store.entries_after(after, MAX_MISSED_ENTRIES + 1)
        if len(entries) < last - after:
            return None  # some were pruned
        gathering = ChangeCollector()
        gathering.add_entries(entries)
        for scope_id in gathering.scope_ids:
            gathering.add_vm_states(self._vm_states_in(scope_id))
            if len(gathering.vm_states) > MAX_VMS_PER_CHANGE:
                return None
        return self._to_batch(gathering, last)

    def polling_changes_within(self, age_s: float) -> ChangedScopes:
        """Where VMs began to ask or fell silent in the time that a page is old."""
        return self._polling_monitor.changes_within(age_s)

    def _vm_states_in(self, scope_id: str) -> list[tuple[str, VmState]]:
        """Of those that were removed too: their cells are still shown."""
        vms = self._store.vms(scope_id=scope_id, removed=True)
        return [(vm.key, VmState.GONE if vm.removed_at else self._overview.state_of(vm.key)) for vm in vms]

    def _to_batch(self, gathering: ChangeCollector, seq: int) -> ChangeBatch:
        control = self._dependencies.control
        return gathering.to_batch(seq, control.clock.now(), control.placement.host_of)

    def _start(self) -> None:
        self._counts_cache.clear()
        self._unsubscribers = [
            self._store.subscribe(self._on_commit),
            self._dependencies.subscribe_deliveries(self._on_deliveries),
        ]
        self._tasks = [asyncio.create_task(self._store_monitor.run()), asyncio.create_task(self._close_on_shutdown())]
        self._polling_monitor.start()
        clock = self._dependencies.control.clock
        if not self._is_following_clock and isinstance(clock, LabClock):
            clock.subscribe(self._on_clock_change)
            self._is_following_clock = True

    def _stop(self) -> None:
        self._polling_monitor.stop()
        for stop in self._unsubscribers:
            stop()
        for task in self._tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._tasks, self._timers, self._collector = [], {}, None

    async def _close_on_shutdown(self) -> None:
        await self._dependencies.shutting_down.wait()
        for listener in self._subscribers:
            listener.close()

    def _on_commit(self, committed: AppliedCommit) -> None:
        self._store_monitor.on_commit()
        self._collector = self._collector or ChangeCollector()
        self._collector.add_commit(committed.commit)
        self._collector.add_vm_states(self._overview.changes_in(committed.commit))
        self._seq = committed.seq
        self._schedule_once("news", BATCH_WINDOW_S, self._send_changes)

    def _on_deliveries(self, sightings: Sequence[EventDelivery]) -> None:
        self._collector = self._collector or ChangeCollector()
        self._collector.add_deliveries(sightings)
        self._seq = max(self._seq, self._overview.seq)
        self._schedule_once("news", BATCH_WINDOW_S, self._send_changes)

    def _on_polling_change(self) -> None:
        if self._subscribers:
            rest_s = self._polling_sent_at + POLLING_INTERVAL_S - asyncio.get_running_loop().time()
            self._schedule_once("asking", max(BATCH_WINDOW_S, rest_s), self._send_polling_changes)

    def _on_clock_change(self, setting: ClockSetting) -> None:
        if self._subscribers and self._is_following_clock:
            self._schedule_once("clock", BATCH_WINDOW_S, self._send_clock)

    def _send_changes(self) -> None:
        gathering, self._collector = self._collector, None
        assert gathering is not None
        news = self._to_batch(gathering, self._seq)
        for listener in self._subscribers:
            if len(news.vms) > MAX_VMS_PER_CHANGE:
                listener.require_reset()
            elif not news.full_change.is_empty:
                listener.add_batch(news)
        if news.vms:
            self._schedule_once("counts", COUNTS_INTERVAL_S, self._send_counts)

    def _send_polling_changes(self) -> None:
        self._polling_sent_at = asyncio.get_running_loop().time()
        scopes = self._polling_monitor.take_changes()
        for listener in self._subscribers:
            listener.add_polling_scopes(scopes)

    def _send_clock(self) -> None:
        for listener in self._subscribers:
            listener.notify_clock()

    def _send_counts(self) -> None:
        self._counts_cache.clear()
        for listener in self._subscribers:
            listener.notify_counts()

    def _send_health(self, health: StoreHealth) -> None:
        for listener in self._subscribers:
            listener.notify_health()

    def _schedule_once(self, what: str, within_s: float, tell: Callable[[], None]) -> None:
        """Once, however often it is wanted until then."""

        def due() -> None:
            del self._timers[what]
            tell()

        if what not in self._timers:
            self._timers[what] = asyncio.get_running_loop().call_later(within_s, due)
