"""Health checks that take long, beside what happens meanwhile (spec §13.4): figures to read, probes that hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import RealTime
from forewarn.control.health_checks import HealthCheckService
from forewarn.core.commit import Commit
from forewarn.core.health import (
    CheckKind,
    CheckOutcome,
    CheckResult,
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
        setting = ClockSetting(lab_at=NOON, real_at=RealTime(0.0))
        clock = LabClock(setting, real=lambda: RealTime(real_time[0]))
        self.service = HealthCheckService(store=store, clock=clock, prober=self.prober, wake=lambda: None)
        store.subscribe(self.service.on_commit)

    @classmethod
    async def open(cls, *checks: HealthCheck) -> SlowFigures:
        store = SlowStore()
        rollout = Rollout(impact=RolloutImpact.REBOOT, checks=checks, progress=RolloutState.RUNNING)
        request = MaintenanceRequest(
            id="r1",
            operation=RequestedOperation.ROLLOUT,
            requested_by="ann",
            requested_at=NOON,
            targets=(),
            rollout=rollout,
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


class HangingProber(FakeProber):
    """Never answers for a check whose name begins with `hang`; `under_way` has the checks that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[str] = []

    async def probe(self, check: HealthCheck) -> CheckResult:
        if not check.name.startswith("hang"):
            return await super().probe(check)
        self.under_way.append(check.name)
        try:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        finally:
            self.under_way.remove(check.name)


HANGING = tuple(HealthCheck(name=f"hang {n}", kind=CheckKind.HTTP, url="http://127.0.0.1/") for n in range(20))


class Rollouts:
    """A service with a prober that hangs, and rollouts that a test starts and changes."""

    def __init__(self) -> None:
        self.store, self.prober, self.wakes = MemoryStore(), HangingProber(), 0
        clock = LabClock(ClockSetting(lab_at=NOON, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0))
        self.service = HealthCheckService(store=self.store, clock=clock, prober=self.prober, wake=self.wake)
        self.store.subscribe(self.service.on_commit)

    def wake(self) -> None:
        self.wakes += 1

    async def begin(self, request_id: str, *checks: HealthCheck, **facts: Any) -> None:
        rollout = Rollout(impact=RolloutImpact.REBOOT, checks=checks, **facts)
        known = self.store.request(request_id)
        request = known or MaintenanceRequest(
            id=request_id, operation=RequestedOperation.ROLLOUT, requested_by="ann", requested_at=NOON, targets=()
        )
        await self.store.commit(Commit(requests=(replace(request, rollout=rollout),)))
        await self.pass_once()

    async def pass_once(self) -> None:
        await self.service.reconcile()
        await let_tasks_run()
        await self.service.reconcile()


def test_checks_that_hang_do_not_delay_those_of_another_rollout() -> None:
    async def scenario() -> None:
        rollouts = Rollouts()
        for n in range(12):
            await rollouts.begin(f"hanging {n}", *HANGING)
        assert rollouts.service.next_due_at() is None  # so the reconciler waits until one ends
        shops = [HealthCheck(name=f"shop {n}", kind=CheckKind.HTTP, url="http://127.0.0.1/") for n in range(2)]
        await rollouts.begin("good", *shops)
        assert [m.check for m in rollouts.store.measurements("good")] == ["shop 0", "shop 1"]
        assert len(rollouts.prober.under_way) <= 8 + 4 + 11 * 2
        await rollouts.service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("progress", [RolloutState.ABORTED, RolloutState.PAUSED, RolloutState.STOPPED])
def test_the_checks_under_way_end_with_the_rollout(progress: RolloutState) -> None:
    async def scenario() -> None:
        rollouts = Rollouts()
        await rollouts.begin("r1", *HANGING)
        assert len(rollouts.prober.under_way) == 8
        await rollouts.begin("r1", *HANGING, progress=progress)
        assert (rollouts.prober.under_way, rollouts.service.running) == ([], {})
        assert rollouts.wakes == 8
        await rollouts.begin("r1", *HANGING, check_round=1)
        assert len(rollouts.prober.under_way) == 8
        await rollouts.service.close()

    asyncio.run(scenario())
