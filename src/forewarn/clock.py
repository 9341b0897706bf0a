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

from forewarn.errors import Refused


class Clock(Protocol):
    """What the rest of the house knows of time."""

    def now(self) -> float:
        """This instant, in lab time."""

    async def sleep_until(self, at: float | None) -> None:
        """Return once `now()` has reached `at`; for ever with None, until somebody cancels the sleeper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSetting:
    """Where a lab clock stands: at real time `real_at` it showed `lab_at`, and has run `speed` times as fast since."""

    lab_at: float
    real_at: float
    speed: float = 1.0

    def lab_time_at(self, real: float) -> float:
        return self.lab_at + max(0.0, real - self.real_at) * self.speed


read_real_time = time.time


class SystemClock:
    """The machine's own time: what `serve` uses."""

    def now(self) -> float:
        return time.time()

    async def sleep_until(self, at: float | None) -> None:
        if at is None:
            await asyncio.Event().wait()
            return
        # Short naps: the wall clock may be set while we sleep.
        while (left := at - self.now()) > 0:
            await asyncio.sleep(min(left, 30.0))


class LabClock:
    """A clock that may run at any speed and jump ahead. Its setting outlives the process; it never moves back."""

    def __init__(self, setting: ClockSetting | None = None, *, real: Callable[[], float] = read_real_time) -> None:
        self._read_real_time = real
        self._setting = setting or ClockSetting(lab_at=real(), real_at=real())
        self._latest = self._setting.lab_at
        self._setting_changed = asyncio.Event()
        self._subscribers: list[Callable[[ClockSetting], None]] = []

    def subscribe(self, tell: Callable[[ClockSetting], None]) -> None:
        """Tell where the clock stands, now and whenever it is set."""
        self._subscribers.append(tell)
        tell(self._setting)

    @property
    def setting(self) -> ClockSetting:
        return self._setting

    def now(self) -> float:
        # The wall clock under us may be set back; lab time stands still then. Every poll asks for it, so what
        # `Setting.shows` says is written out here.
        setting = self._setting
        shown = setting.lab_at + (self._read_real_time() - setting.real_at) * setting.speed
        if shown > self._latest:
            self._latest = shown
        return self._latest

    def setting_after_jump(self, at: float) -> ClockSetting:
        """The setting after a jump to `at`, or to now where that has passed; store it, then `adopt` it."""
        return ClockSetting(lab_at=max(at, self.now()), real_at=self._read_real_time(), speed=self._setting.speed)

    def setting_at_speed(self, speed: float) -> ClockSetting:
        """The setting with another speed from now on; 0 stands still."""
        if not 0 <= speed <= 100_000:
            raise Refused(f"speed {speed:g} is out of range: give a number from 0 (paused) to 100000")
        return ClockSetting(lab_at=self.now(), real_at=self._read_real_time(), speed=speed)

    def apply_setting(self, setting: ClockSetting) -> None:
        self._setting = setting
        self._latest = max(self._latest, setting.lab_at)
        self._setting_changed.set()
        self._setting_changed = asyncio.Event()
        for tell in self._subscribers:
            tell(setting)

    async def sleep_until(self, at: float | None) -> None:
        while at is None or self.now() < at:
            moved, speed = self._setting_changed, self._setting.speed
            nap = None if at is None or speed == 0 else max(0.0, (at - self.now()) / speed)
            try:
                await asyncio.wait_for(moved.wait(), nap)
            except TimeoutError:
                pass
