"""A simulated hypervisor that also reports how acts are going."""

from __future__ import annotations

from msgspec.structs import replace

from forewarn.core.event import Act
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor


class ReportingHypervisor(SimulatedHypervisor):
    """Simulates all acts, and reports `note` and `waits_for_host` once a second while they are under way.

    While an act waits for a host, it does not end.
    """

    def __init__(self, *, note: str = "", waits_for_host: str = "") -> None:
        super().__init__(EffectLedger(None))
        self.note = note
        self.waits_for_host = waits_for_host

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Simulate the act, and add what a test wants to be reported about it."""
        answer = await super().perform(act, now)
        if isinstance(answer, ActUnderWay):
            answer = replace(answer, at=min(answer.at, now + 1), note=self.note)
        if self.waits_for_host:
            return ActUnderWay(at=now + 1, note=self.note, waits_for_host=self.waits_for_host)
        return answer
