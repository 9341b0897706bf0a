"""A simulated hypervisor that never answers acts on one host."""

from __future__ import annotations

import asyncio

from forewarn.core.event import Act
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor


class HangingHostHypervisor(SimulatedHypervisor):
    """Simulates all acts except for those on VMs of host `host`, which wait forever."""

    def __init__(self, host: str) -> None:
        super().__init__(EffectLedger(None))
        self._host = host

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Simulate the act, or never return."""
        if act.from_host == self._host:
            await asyncio.Event().wait()
        return await super().perform(act, now)
