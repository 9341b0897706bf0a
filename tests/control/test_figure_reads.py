"""Figures that take long to read, beside what happens meanwhile (spec §13.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from forewarn.clock import ClockSetting, LabClock
from forewarn.control.health_checks import HealthCheckService
from forewarn.core.commit import Commit
from forewarn.core.health import (
    CheckKind,
    CheckOutcome,
    HealthCheck,
    HealthDecision,
    Measurement,
    OwnFigure,
    health_verdict,
)
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.store.interface import Store
from forewarn.store.memory import MemoryStore
from tests.support.fake_prober import FakeProber

T = TypeVar("T")
NOON = 1_700_000_000.0
FIGURE = HealthCheck(name="figure", kind=CheckKind.FIGURE, figure=OwnFigure.FAILED_ACTS, condition="== 0")


class SlowStore(MemoryStore):
    """Reads at once, and returns what it has read when `may_end` is set; `under_way` counts such reads."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.under_way = 0

    async def read_in_thread(self, read: Callable[[Store], T]) -> T:
        found = read(self)
        self.under_way += 1
        await self.may_end.wait()
        self.under_way -= 1
        return found


class SlowFigures:
    """A service with a running rollout that has these checks, on a store whose long reads a test ends."""

    def __init__(self, store: SlowStore, real_time: list[float]) -> None:
        self.store, self._real_time = store, real_time
        self.prober = FakeProber()
        setting = ClockSetting(lab_at=NOON, real_at=0.0)
        clock = LabClock(setting, real=lambda: real_time[0])
        self.service = HealthCheckService(store=store, clock=clock, prober=self.prober, wake=lambda: None)
        store.subscribe(self.service.on_commit)

    @classmethod
    async def open(cls, *checks: HealthCheck) -> SlowFigures:
        store = SlowStore()
        rollout = Rollout(impact=RolloutImpact.REBOOT, checks=checks, progress=RolloutState.RUNNING)
        request = MaintenanceRequest(
            id="r1", ask=RequestedOperation.ROLLOUT, who="ann", at=NOON, targets=(), rollout=rollout
        )
        await store.commit(Commit(requests=(request,)))
        return cls(store, [0.0])

    async def begin(self) -> None:
        """Start what is due, until it waits."""
        await self.service.reconcile()
        await let_tasks_run()

    def wait(self, seconds: float) -> None:
        self._real_time[0] += seconds

    async def end_reads(self) -> list[Measurement]:
        """End all reads; return the stored measurements."""
        self.store.may_end.set()
        await let_tasks_run()
        assert not self.service.running
        await self.service.reconcile()
        return self.store.measurements("r1")


async def let_tasks_run() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_figure_read_before_the_last_event_was_over_does_not_begin_the_next_wave() -> None:
    async def scenario() -> None:
        figures = await SlowFigures.open(FIGURE)
        await figures.begin()
        figures.wait(20)
        over_at = NOON + 20  # an act failed, which the read did not see
        figures.wait(10)
        (measured,) = await figures.end_reads()
        assert (measured.outcome, measured.at) == (CheckOutcome.GOOD, NOON)
        verdict = health_verdict((FIGURE,), [measured], NOON + 30, good_since=over_at)
        assert verdict.decision is HealthDecision.MEASURE

    asyncio.run(scenario())


def test_figures_are_read_one_at_a_time_and_probes_do_not_wait_for_them() -> None:
    async def scenario() -> None:
        shop = HealthCheck(name="shop", kind=CheckKind.HTTP, url="http://127.0.0.1/health")
        checks = [replace(FIGURE, name=f"figure {n}") for n in range(9)]
        figures = await SlowFigures.open(*checks, shop)
        await figures.begin()
        assert (figures.store.under_way, figures.prober.asked) == (1, ["shop"])
        assert len(await figures.end_reads()) == 10

    asyncio.run(scenario())
