"""A hypervisor that can only reboot VMs."""

from __future__ import annotations

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor


class RebootOnlyHypervisor(SimulatedHypervisor):
    """Simulates reboots; acts with other verbs fail, as those of the command hypervisor without a command do."""

    def __init__(self) -> None:
        super().__init__(EffectLedger(None))

    @property
    def supported_verbs(self) -> frozenset[Verb]:
        return frozenset({Verb.REBOOT})

    @property
    def verb_setting(self) -> str:
        return "[commands.{verb}]"

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Simulate a reboot; fail anything else."""
        if act.verb not in self.supported_verbs:
            return ActDone(ok=False, note="no command is set")
        return await super().perform(act, now)
