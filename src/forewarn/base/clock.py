"""Clocks: the system's clock, and a lab clock that can run fast, pause or jump ahead.

Only this module reads the wall clock. Lab time governs what documents and the history show; real time governs
transport (spec §12). Instants are POSIX seconds as floats. A lab clock never moves back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from forewarn.base.times import LabTime, RealTime
from forewarn.errors import Rejected


class Clock(Protocol):
    """A source of lab time, in POSIX seconds: `now` reads it, `sleep_until` waits for an instant.

    In production (`SystemClock`) lab time is the system's time. In a lab (`LabClock`) it may run fast, pause or jump
    ahead, never back: for timeouts of connections use real time instead.
    """

    def now(self) -> LabTime:
        """Return the current lab time in POSIX seconds."""

    async def sleep_until(self, at: LabTime | None) -> None:
        """Return once `now()` has reached the lab time `at`, at once if it has passed; None: until cancelled.

        While a lab's clock is paused, the sleep goes on.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSetting:
    """A lab clock's setting: it showed `lab_at` at real time `real_at`, and has run at `speed` since then."""

    lab_at: LabTime
    real_at: RealTime
    speed: float = 1.0  # seconds of lab time per second of real time; 0: paused


read_real_time = time.time  # the wall clock, for code that knows no lab time


def real_now() -> RealTime:
    """Read the wall clock, for code that knows lab time too."""
    return RealTime(time.time())


_LONGEST_SLEEP_S = 30.0  # the wall clock may be set meanwhile


class SystemClock:
    """The system's clock: lab time is real time. The active control node of a cluster uses `FlooredClock` instead."""

    def now(self) -> LabTime:
        return time.time()

    async def sleep_until(self, at: LabTime | None) -> None:
        if at is None:
            await asyncio.Event().wait()
            return
        # Sleep for short times only: the wall clock may be set meanwhile.
        while (left := at - self.now()) > 0:
            await asyncio.sleep(min(left, _LONGEST_SLEEP_S))


class FlooredClock:
    """The system's clock, but never behind `floor`, and never moving back.

    It is for a control node that takes over, whose own clock may be behind that of the previous node, whose times are
    in the record. It stands still until the system's clock has caught up. `now` may be called from any thread.
    """

    def __init__(self, floor: LabTime, *, real: Callable[[], RealTime] = real_now) -> None:
        self._real_now = real
        self._latest = floor

    def now(self) -> LabTime:
        shown = float(self._real_now())
        if shown > self._latest:
            self._latest = shown
        return self._latest

    async def sleep_until(self, at: LabTime | None) -> None:
        if at is None:
            await asyncio.Event().wait()
            return
        while self.now() < at:
            left = at - float(self._real_now())  # longer than from now() while the clock stands still
            await asyncio.sleep(min(max(left, 0.0), _LONGEST_SLEEP_S))


class LabClock:
    """A clock that can run at any speed, pause and jump ahead, but never moves back.

    With the setting None it begins at real time and speed 1. It stores nothing: its owner stores the setting, so that
    lab time goes on after a restart. `real` returns the real time in POSIX seconds. Use it on one event loop.
    """

    def __init__(self, setting: ClockSetting | None = None, *, real: Callable[[], RealTime] = real_now) -> None:
        self._real_now = real
        self._setting = setting or ClockSetting(lab_at=float(real()), real_at=real())
        self._latest = self._setting.lab_at
        self._setting_changed = asyncio.Event()
        self._subscribers: list[Callable[[ClockSetting], None]] = []

    def subscribe(self, listener: Callable[[ClockSetting], None]) -> None:
        """Call the listener with the current setting now, and with the new one in every `apply_setting`."""
        self._subscribers.append(listener)
        listener(self._setting)

    @property
    def setting(self) -> ClockSetting:
        """The setting in use: the latest one that was applied, at first that of the constructor."""
        return self._setting

    def now(self) -> LabTime:
        setting = self._setting
        shown = setting.lab_at + (self._real_now() - setting.real_at) * setting.speed
        if shown > self._latest:
            self._latest = shown
        return self._latest

    def setting_after_jump(self, at: LabTime) -> ClockSetting:
        """Return the setting after a jump to `at`. Changes nothing: store it, then call `apply_setting`."""
        return ClockSetting(lab_at=max(at, self.now()), real_at=self._real_now(), speed=self._setting.speed)

    def setting_at_speed(self, speed: float) -> ClockSetting:
        """Return the setting with another speed from now on; 0 pauses. Store it, then call `apply_setting`."""
        if not 0 <= speed <= 100_000:
            raise Rejected(f"speed {speed:g} is out of range: give a number from 0 (paused) to 100000")
        return ClockSetting(lab_at=self.now(), real_at=self._real_now(), speed=speed)

    def apply_setting(self, setting: ClockSetting) -> None:
        """Use this setting from now on, wake sleepers to wait by it, and call the subscribers with it.

        A setting that lies before the time shown so far stops the clock until it has caught up.
        """
        self._setting = setting
        self._latest = max(self._latest, setting.lab_at)
        self._setting_changed.set()
        self._setting_changed = asyncio.Event()
        for listener in self._subscribers:
            listener(setting)

    async def sleep_until(self, at: LabTime | None) -> None:
        while at is None or self.now() < at:
            changed, speed = self._setting_changed, self._setting.speed
            timeout_s = None if at is None or speed == 0 else max(0.0, (at - self.now()) / speed)
            try:
                async with asyncio.timeout(timeout_s):
                    await changed.wait()
            except TimeoutError:
                pass
