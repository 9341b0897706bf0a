"""One ear at the store for all open pages: hears every commit once, and tells them together what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from forewarn.clock import LabClock, Setting
from forewarn.console.house import House
from forewarn.console.outlook import Outlook
from forewarn.console.portal.health import Health, Nurse
from forewarn.console.portal.listener import Listener
from forewarn.console.portal.news import Gathering, News
from forewarn.console.portal.overview import Overview
from forewarn.console.portal.vigil import Scopes, Vigil
from forewarn.core.access import Grant
from forewarn.core.history import Sighting
from forewarn.core.vmstate import VmState
from forewarn.errors import Unavailable
from forewarn.store.seam import Committed

GATHER_S = 0.05  # of real time: commits so close to each other are told as one change
COUNTS_S = 0.5  # between two counts of the fleet
ASKING_S = 2.0  # between two words about who asks
MOST_VMS = 2000  # in one change; beyond, pages read everything again
MOST_ENTRIES = 500  # that a page may have missed; beyond, likewise
MOST_PAGES = 1000  # open at a time
MOST_OF_ONE = 100  # of one visitor: nobody is to keep others from following


class Channel:
    """Costs nothing while no page is open. What is the same for all who see everything is made once."""

    def __init__(self, house: House, overview: Overview) -> None:
        self._house = house
        self._store = house.control.store
        self._overview = overview
        self._listeners: set[Listener] = set()
        self._gathering: Gathering | None = None
        self._seq = 0
        self._counts: dict[tuple[Grant, ...] | None, bytes] = {}  # by who sees what, until the next are due
        self._nurse = Nurse(self._store, self._tell_health)
        self._vigil = Vigil(house, self._hear_asking)
        self._asking_told_at = 0.0
        self._stops: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._follows_clock = False

    @property
    def health(self) -> Health:
        return self._nurse.health

    def counts(self, sees: Outlook) -> bytes:
        """How many VMs are in which state, as JSON: walked through once for all who see the same."""
        who = None if sees.sees_all else sees.grants
        if who not in self._counts:
            self._counts[who] = msgspec.json.encode(self._overview.counts(sees))
        return self._counts[who]

    def must_have_room(self, who: str) -> None:
        if len(self._listeners) >= MOST_PAGES:
            raise Unavailable(f"{MOST_PAGES} pages are open, and that is the most: close some, then reload this one")
        if sum(listener.who == who for listener in self._listeners) >= MOST_OF_ONE:
            raise Unavailable(f"{MOST_OF_ONE} of your pages are open, and that is the most: close some, then reload")

    @contextmanager
    def joined(self, who: str) -> Iterator[Listener]:
        """A page of this visitor is open until the block is left."""
        listener = Listener(who)
        self._listeners.add(listener)
        if len(self._listeners) == 1:
            self._begin()
        if self._house.closing.is_set():
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._end()

    def missed_since(self, after: int) -> News | None:
        """What a page that knows everything up to `after` was not told. None: it has to read everything again."""
        last = self._store.last_seq()
        if not 0 <= last - after <= MOST_ENTRIES:
            return None
        entries = self._store.entries_after(after, MOST_ENTRIES + 1)
        if len(entries) < last - after:
            return None  # some were pruned
        gathering = Gathering()
        gathering.add_entries(entries)
        for scope_id in gathering.scopes:
            gathering.add_vms(self._states_in(scope_id))
            if len(gathering.vms) > MOST_VMS:
                return None
        return self._news(gathering, last)

    def asking_changed(self, age_s: float) -> Scopes:
        """Where VMs began to ask or fell silent in the time that a page is old."""
        return self._vigil.missed(age_s)

    def _states_in(self, scope_id: str) -> list[tuple[str, VmState]]:
        """Of those that were removed too: their cells are still shown."""
        vms = self._store.vms(scope_id=scope_id, removed=True)
        return [(vm.key, VmState.GONE if vm.removed_at else self._overview.state_of(vm.key)) for vm in vms]

    def _news(self, gathering: Gathering, seq: int) -> News:
        control = self._house.control
        return gathering.news(seq, control.clock.now(), control.placement.home_of)

    def _begin(self) -> None:
        self._counts.clear()
        self._stops = [self._store.subscribe(self._hear), self._house.follow_sightings(self._hear_sightings)]
        self._tasks = [asyncio.create_task(self._nurse.watch()), asyncio.create_task(self._until_closing())]
        self._vigil.begin()
        clock = self._house.control.clock
        if not self._follows_clock and isinstance(clock, LabClock):
            clock.follow(self._hear_clock)
            self._follows_clock = True

    def _end(self) -> None:
        self._vigil.end()
        for stop in self._stops:
            stop()
        for task in self._tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._tasks, self._timers, self._gathering = [], {}, None

    async def _until_closing(self) -> None:
        await self._house.closing.wait()
        for listener in self._listeners:
            listener.end()

    def _hear(self, committed: Committed) -> None:
        self._nurse.hear()
        self._gathering = self._gathering or Gathering()
        self._gathering.add(committed.commit)
        self._gathering.add_vms(self._overview.changed(committed.commit))
        self._seq = committed.seq
        self._soon("news", GATHER_S, self._tell_news)

    def _hear_sightings(self, sightings: Sequence[Sighting]) -> None:
        self._gathering = self._gathering or Gathering()
        self._gathering.add_sightings(sightings)
        self._seq = max(self._seq, self._overview.seq)
        self._soon("news", GATHER_S, self._tell_news)

    def _hear_asking(self) -> None:
        if self._listeners:
            rest_s = self._asking_told_at + ASKING_S - asyncio.get_running_loop().time()
            self._soon("asking", max(GATHER_S, rest_s), self._tell_asking)

    def _hear_clock(self, setting: Setting) -> None:
        if self._listeners and self._follows_clock:
            self._soon("clock", GATHER_S, self._tell_clock)

    def _tell_news(self) -> None:
        gathering, self._gathering = self._gathering, None
        assert gathering is not None
        news = self._news(gathering, self._seq)
        for listener in self._listeners:
            if len(news.vms) > MOST_VMS:
                listener.lose()
            elif not news.whole.is_empty:
                listener.tell(news)
        if news.vms:
            self._soon("counts", COUNTS_S, self._tell_counts)

    def _tell_asking(self) -> None:
        self._asking_told_at = asyncio.get_running_loop().time()
        scopes = self._vigil.take()
        for listener in self._listeners:
            listener.tell_asking(scopes)

    def _tell_clock(self) -> None:
        for listener in self._listeners:
            listener.tell_clock()

    def _tell_counts(self) -> None:
        self._counts.clear()
        for listener in self._listeners:
            listener.tell_counts()

    def _tell_health(self, health: Health) -> None:
        for listener in self._listeners:
            listener.tell_health()

    def _soon(self, what: str, within_s: float, tell: Callable[[], None]) -> None:
        """Once, however often it is wanted until then."""

        def due() -> None:
            del self._timers[what]
            tell()

        if what not in self._timers:
            self._timers[what] = asyncio.get_running_loop().call_later(within_s, due)
