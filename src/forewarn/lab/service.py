"""A whole service on one event loop, in virtual time: memory store, simulated hypervisor, a clock that moves only when
told, real sockets. Nothing in it happens by itself: what a VM asked for, or a test, is carried out before the answer.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from forewarn.assembly.chores import write_many
from forewarn.assembly.mouth import Backing, Mouth
from forewarn.assembly.settings import Settings
from forewarn.clock import LabClock, Setting
from forewarn.control.control import Control, Outside
from forewarn.control.fleets import FleetChange
from forewarn.core.event import Event
from forewarn.core.policy import Policy
from forewarn.core.proposal import Proposal
from forewarn.hypervisor.behaviour import Behaviour
from forewarn.hypervisor.ledger import Ledger
from forewarn.hypervisor.simulated import Simulated
from forewarn.store.memory import MemoryStore

_DRAIN_S = 1.0  # real time, for whoever is being answered when the lab closes
WHO = "the test"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabService:
    control: Control
    store: MemoryStore
    mouth: Mouth
    began_at: float
    spoiled: Counter[str] = field(default_factory=Counter)  # fault → requests that it touched

    async def settle(self) -> None:
        """Write down what VMs were seen to ask, and carry out everything that is due."""
        await write_many(self.mouth.observations, self.store)
        touches = self.mouth.faults.take()
        for touch in touches:
            self.spoiled[touch.fault_id] += touch.count
        await self.control.faults.note(touches)
        async with self.control.reconciler.driving:
            await self.control.reconciler.settle()

    def now(self) -> float:
        return self.control.clock.now()

    def touched_by(self, fault_id: str) -> list[Event]:
        return [event for event in self.store.events() if fault_id in event.faults]


@asynccontextmanager
async def lab_service(
    proposal: Proposal, *, at: float, policy: Policy, behaviour: Behaviour
) -> AsyncIterator[LabService]:
    async with AsyncExitStack() as stack:
        store = MemoryStore()
        stack.push_async_callback(store.close)
        hypervisor = Simulated(Ledger.open(None), behaviour)
        stack.push_async_callback(hypervisor.close)
        control = Control(
            store=store,
            clock=LabClock(Setting(lab_at=at, real_at=0.0, speed=0.0), real=lambda: 0.0),
            hypervisor=hypervisor,
            outside=Outside(new_id=_new_guid, polls=store.polls, lab_addresses=True),
            policy=policy,
        )
        stack.push_async_callback(control.close)
        change = FleetChange(hosts=proposal.hosts, vms=proposal.vms, text=f"fleet set up from {proposal.source}")
        await control.fleets.change(change, who=WHO)

        # One port per VM works on every system; loopback addresses beside 127.0.0.1 are Linux's alone.
        mouth = Mouth.open(Settings(lab=True, port=0, one_port_per_vm=True), control)
        service = LabService(control=control, store=store, mouth=mouth, began_at=at)
        await mouth.start(_settling(service))
        stack.push_async_callback(service.settle)
        stack.push_async_callback(mouth.drain, _DRAIN_S)
        yield service


def _new_guid() -> str:
    return str(uuid.uuid4()).upper()


def _settling(service: LabService) -> Backing:
    """An approval is answered when what follows from it has happened: whoever asks next, sees it."""
    backing = Backing(service.control)
    approve: Callable[[str, tuple[str, ...]], Awaitable[str | None]] = backing.approve

    async def approve_and_settle(vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await approve(vm, event_ids)
        await service.settle()
        return unknown

    backing.approve = approve_and_settle  # type: ignore[assignment]
    return backing
