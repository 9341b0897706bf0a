"""Use cases for the lab clock (spec §12): advance it, change its speed. Saved before it takes effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from forewarn.base.clock import Clock, ClockSetting, LabClock
from forewarn.base.duration import duration_text
from forewarn.base.times import LabTime
from forewarn.control.reconciler import Reconciler
from forewarn.core.commit import Commit
from forewarn.core.history import EntryKind, HistoryEntry, LastPoll
from forewarn.errors import Rejected, Remedy
from forewarn.store.interface import LAB_CLOCK_NAME, Store

_POLLING_WINDOW_S = 330.0  # real seconds: a VM that polled within them counts as polling; a poll is held for up to 300


def load_clock_setting(store: Store) -> ClockSetting | None:
    """Return the setting of the lab clock that was saved last; None if none was saved, as in a new store."""
    raw = store.load(LAB_CLOCK_NAME)
    return msgspec.json.decode(raw, type=ClockSetting) if raw is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAdvance:
    """What an advance of the clock did: the new time, and how many VMs counted as polling throughout."""

    now: LabTime
    polling: int  # VMs; 0 if it was asked to skip polls


class LabClockService:
    """Advances the lab clock and changes its speed; the new setting is durable before it takes effect."""

    def __init__(
        self, *, clock: Clock, store: Store, reconciler: Reconciler, polls: Callable[[], list[LastPoll]]
    ) -> None:
        self._clock = clock
        self._store = store
        self._reconciler = reconciler
        self._polls = polls

    def status(self) -> tuple[float, float, bool]:
        """Return the time in POSIX seconds, the speed, and whether it is a lab clock."""
        if isinstance(self._clock, LabClock):
            return self._clock.now(), self._clock.setting.speed, True
        return self._clock.now(), 1.0, False

    async def advance(self, by_s: float, *, who: str = "", without_polls: bool = False) -> ClockAdvance:
        """Advance the clock by `by_s` seconds, stopping at every due time on the way.

        Everything due by then is done on return, acts included, except for those that the hypervisor has not answered
        for ten seconds. VMs that polled within the last 330 seconds count as polling throughout (spec §12); with
        `without_polls` no VM does, so scopes become idle (spec §8.2). After an error on the way the clock stays where
        it was then.
        """
        clock = self.require_lab_clock("advanced")
        if not 0 < by_s <= 366 * 24 * 3600:
            raise Rejected(f"the clock can be advanced by up to 366 days at a time, not by {duration_text(by_s)}")
        async with self._reconciler.pass_lock:
            without = " without polls" if without_polls else ""
            await self._write_history(f"clock advanced by {duration_text(by_s)}{without}", who)
            target = clock.now() + by_s
            polling = [] if without_polls else self._active_polls(clock)
            await self._reconciler.run_until_settled()
            while (wake := self._reconciler.next_wake_at()) is not None and wake < target:
                await self._jump_to(clock, max(wake, clock.now()), polling)
                await self._reconciler.run_until_settled()
            await self._jump_to(clock, max(target, clock.now()), polling)
            await self._reconciler.run_until_settled()
        return ClockAdvance(now=clock.now(), polling=len(polling))

    async def advance_to_next_wake(self) -> bool:
        """Advance to the next due time and do everything due then; return False if nothing is scheduled."""
        clock = self.require_lab_clock("advanced")
        async with self._reconciler.pass_lock:
            wake = self._reconciler.next_wake_at()
            if wake is not None:
                await self._jump_to(clock, max(wake, clock.now()), self._active_polls(clock))
                await self._reconciler.run_until_settled()
        return wake is not None

    async def set_speed(self, speed: float, *, who: str = "") -> float:
        """Set how many lab seconds pass per real second from now on (0 stops the clock); return the speed."""
        clock = self.require_lab_clock("set to another speed")
        # Under the lock, because `advance` would overwrite the new speed, or this the new time.
        async with self._reconciler.pass_lock:
            setting = clock.setting_at_speed(speed)
            await self._write_history(f"clock set to speed {speed:g}", who)
            await self._save_and_set(clock, setting)
        return speed

    async def save_position(self) -> None:
        """Save the current lab time and speed in the store, durably; does nothing on real time."""
        # Lab time then does not go back if the wall clock is set back before the next start.
        if isinstance(self._clock, LabClock):
            async with self._reconciler.pass_lock:
                await self._save_and_set(self._clock, self._clock.setting_at_speed(self._clock.setting.speed))

    async def _write_history(self, what: str, who: str) -> None:
        """Write a history entry if a principal is named; it explains why events came earlier than expected."""
        if who:
            entry = HistoryEntry(at=self._clock.now(), kind=EntryKind.CLOCK, actor=who, text=f"{what} by {who}")
            await self._store.commit(Commit(entries=(entry,)))

    def require_lab_clock(self, action: str) -> LabClock:
        """Return the lab clock. Raises Rejected if this service runs on real time, which cannot be `action`."""
        if not isinstance(self._clock, LabClock):
            raise Rejected(f"this service runs on real time, which cannot be {action}", Remedy.USE_LAB)
        return self._clock

    def _active_polls(self, clock: LabClock) -> list[LastPoll]:
        """Return the polls of VMs that are polling now; they count as polling during skipped time."""
        since = clock.now() - _POLLING_WINDOW_S * max(1.0, clock.setting.speed)
        return [last_poll for last_poll in self._polls() if last_poll.at >= since]

    async def _jump_to(self, clock: LabClock, at: float, polling: list[LastPoll]) -> None:
        setting = clock.setting_after_jump(at)
        if polling:
            await self._store.record_observations(
                [msgspec.structs.replace(last_poll, at=at) for last_poll in polling], []
            )
        await self._save_and_set(clock, setting)

    async def _save_and_set(self, clock: LabClock, setting: ClockSetting) -> None:
        await self._store.save(LAB_CLOCK_NAME, msgspec.json.encode(setting))
        clock.apply_setting(setting)
