"""The simulated hypervisor passes the suite for every hypervisor, and the suite finds a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.conformance.hypervisor import HypervisorConformance
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor


class TestSimulated(HypervisorConformance):
    @pytest.fixture(autouse=True)
    def _use_own_directory(self, tmp_path: Path) -> None:
        self.path = tmp_path / "ledger.db"

    async def open(self) -> SimulatedHypervisor:
        return SimulatedHypervisor(EffectLedger(self.path))

    def effects(self, act: Act) -> int:
        ledger = EffectLedger(self.path)
        try:
            return sum(effect.act_id == act.id for effect in ledger.effects()) + ledger.repeated_effects
        finally:
            ledger.close()


class Forgetful:
    """Wrong on purpose: it forgets what it did, so every `perform` has an effect."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        self.done.append(act.id)
        return ActDone(ok=True)

    async def close(self) -> None:
        pass


class ForgetfulConformance(HypervisorConformance):
    def __init__(self) -> None:
        self.done: list[str] = []

    async def open(self) -> Forgetful:
        return Forgetful(self.done)

    def effects(self, act: Act) -> int:
        return self.done.count(act.id)


@pytest.mark.parametrize(
    "check",
    [
        ForgetfulConformance.test_performing_an_act_again_before_it_is_done_changes_nothing,
        ForgetfulConformance.test_a_finished_act_returns_the_same_result_again,
        ForgetfulConformance.test_concurrent_calls_for_one_act_take_effect_once,
        ForgetfulConformance.test_an_act_under_way_survives_reopening,
        ForgetfulConformance.test_a_finished_act_survives_reopening,
    ],
)
def test_the_suite_finds_a_hypervisor_that_repeats_its_effects(check: Callable[[ForgetfulConformance], None]) -> None:
    with pytest.raises(AssertionError):
        check(ForgetfulConformance())
