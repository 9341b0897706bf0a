"""The lab's clock: advance it, change its speed (spec §12). Its setting is stored before it takes effect."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from forewarn.clock import Clock, LabClock, Setting
from forewarn.control.reconciler import Reconciler
from forewarn.core.change import Commit
from forewarn.core.history import Entry, What
from forewarn.core.story import span
from forewarn.errors import Rejected
from forewarn.store.seam import Polled, Store

_NAME = "clock"
_POLLING_S = 330.0  # real seconds: whoever asked within them counts as polling; a request is held for up to 300


def stored_setting(store: Store) -> Setting | None:
    raw = store.saved(_NAME)
    return msgspec.json.decode(raw, type=Setting) if raw is not None else None


class LabTime:
    def __init__(
        self, *, clock: Clock, store: Store, reconciler: Reconciler, polls: Callable[[], list[Polled]]
    ) -> None:
        self._clock = clock
        self._store = store
        self._reconciler = reconciler
        self._polls = polls

    def show(self) -> tuple[float, float, bool]:
        """Lab time, speed, and whether it can be changed at all."""
        if isinstance(self._clock, LabClock):
            return self._clock.now(), self._clock.setting.speed, True
        return self._clock.now(), 1.0, False

    async def advance(self, by_s: float, *, who: str = "") -> float:
        """Step from wake-up to wake-up; return when everything due is done and every document published."""
        clock = self.lab_clock("advanced")
        if not 0 < by_s <= 366 * 24 * 3600:
            raise Rejected(f"the clock can be advanced by up to 366 days at a time, not by {by_s:.0f} s")
        async with self._reconciler.driving:
            await self._note(f"clock advanced by {span(by_s)}", who)
            target = clock.now() + by_s
            polling = self._polling(clock)
            await self._reconciler.settle()
            while (wake := self._reconciler.next_wake()) is not None and wake < target:
                await self._jump(clock, max(wake, clock.now()), polling)
                await self._reconciler.settle()
            await self._jump(clock, max(target, clock.now()), polling)
            await self._reconciler.settle()
        return clock.now()

    async def step(self) -> bool:
        """On to what falls due next, and do that; False where nothing will by itself."""
        clock = self.lab_clock("advanced")
        async with self._reconciler.driving:
            wake = self._reconciler.next_wake()
            if wake is not None:
                await self._jump(clock, max(wake, clock.now()), self._polling(clock))
                await self._reconciler.settle()
        return wake is not None

    async def set_speed(self, speed: float, *, who: str = "") -> float:
        clock = self.lab_clock("set to another speed")
        # Not while somebody advances it: each would undo what the other has set.
        async with self._reconciler.driving:
            setting = clock.at_speed(speed)
            await self._note(f"clock set to speed {speed:g}", who)
            await self._adopt(clock, setting)
        return speed

    async def anchor(self) -> None:
        """Write down where the clock stands: a wall clock set back while nobody runs then takes no lab time back."""
        if isinstance(self._clock, LabClock):
            async with self._reconciler.driving:
                await self._adopt(self._clock, self._clock.at_speed(self._clock.setting.speed))

    async def _note(self, what: str, who: str) -> None:
        """In the history, where somebody did it: whatever happened earlier than expected is explained by it."""
        if who:
            entry = Entry(at=self._clock.now(), what=What.CLOCK, who=who, text=f"{what} by {who}")
            await self._store.commit(Commit(entries=(entry,)))

    def lab_clock(self, done: str) -> LabClock:
        """The clock, if it can be `done` so."""
        if not isinstance(self._clock, LabClock):
            raise Rejected(f"this service runs on real time, which cannot be {done}: use a lab (`forewarn up`)")
        return self._clock

    def _polling(self, clock: LabClock) -> list[Polled]:
        """Those who poll now count as polling throughout the time that is skipped."""
        since = clock.now() - _POLLING_S * max(1.0, clock.setting.speed)
        return [polled for polled in self._polls() if polled.at >= since]

    async def _jump(self, clock: LabClock, at: float, polling: list[Polled]) -> None:
        setting = clock.jumped_to(at)
        if polling:
            await self._store.observe([msgspec.structs.replace(polled, at=at) for polled in polling], [])
        await self._adopt(clock, setting)

    async def _adopt(self, clock: LabClock, setting: Setting) -> None:
        await self._store.save(_NAME, msgspec.json.encode(setting))
        clock.adopt(setting)
