"""The service inside a lab, in virtual time, on real sockets.

Memory store, simulated hypervisor, and a clock that moves only when a test moves it. Nothing happens in the background:
a VM's approval or a test's request is carried out before it is answered. A crash test uses the same service with a
clock that runs and a hypervisor of its own.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from forewarn.base.clock import ClockSetting, LabClock
from forewarn.base.times import LabTime, RealTime
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.fleet import FleetChange
from forewarn.core.decision import Policy
from forewarn.core.event import Event
from forewarn.core.fleetfile.reader import DeclaredFleet
from forewarn.machines.interface import Hypervisor
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedBehaviour, SimulatedHypervisor
from forewarn.metadata.limits import ServingSettings
from forewarn.metadata.workers.publisher import GuestBackend, MetadataPublisher, PublisherConfig
from forewarn.protocol.exchange import EndpointRules
from forewarn.service.maintenance_jobs import write_observation_batches
from forewarn.store.memory import MemoryStore

_DRAIN_S = 1.0  # real time, for requests in progress when the lab closes
TEST_ACTOR = "the test"  # who requests everything in the history of a lab


@dataclass(frozen=True, slots=True, kw_only=True)
class LabService:
    """The running parts of a lab: control plane, store and metadata publisher. Use it on its event loop only."""

    control: ControlPlane  # takes requests, faults and approvals, and moves the clock
    store: MemoryStore  # all state of the lab: fleet, events, history
    publisher: MetadataPublisher  # answers the VMs on loopback
    started_at: LabTime
    requests_touched: Counter[str] = field(default_factory=Counter)  # fault id → requests that it affected

    async def settle(self) -> None:
        """Store the observed polls and fault hits, then do everything that is due; does not move the clock.

        Takes `reconciler.pass_lock`, so do not hold it.
        """
        await write_observation_batches(self.publisher.frontend.observations, self.store)
        hits = self.publisher.frontend.faults.take_hits()
        for hit in hits:
            self.requests_touched[hit.fault_id] += hit.count
        await self.control.faults.record_hits(hits)
        async with self.control.reconciler.pass_lock:
            await self.control.reconciler.run_until_settled()

    def now(self) -> float:
        """Return the lab's time, in seconds since 1970."""
        return self.control.clock.now()

    def events_touched_by(self, fault_id: str) -> list[Event]:
        """Return the events that the fault with exactly this id has changed or added, oldest first."""
        return [event for event in self.store.events() if fault_id in event.faults]


@asynccontextmanager
async def open_lab_service(
    proposal: DeclaredFleet,
    *,
    at: float,
    policy: Policy,
    behaviour: SimulatedBehaviour = SimulatedBehaviour(),
    running_clock: LabClock | None = None,
    hypervisor: Hypervisor | None = None,
    rules: EndpointRules = EndpointRules(),
) -> AsyncIterator[LabService]:
    """Open a lab's service with this fleet, its clock stopped at `at`; closes it at the end of the block.

    With a `running_clock`, which shows `at` or later, the caller also runs `control.reconciler.run()`, and ends it
    before the block ends. A `hypervisor` takes the place of the simulated one, and is closed with the service.
    """
    async with AsyncExitStack() as stack:
        store = MemoryStore()
        stack.push_async_callback(store.close)
        hypervisor = hypervisor or SimulatedHypervisor(EffectLedger(None), behaviour)
        stack.push_async_callback(hypervisor.close)
        control = ControlPlane(
            store=store,
            clock=running_clock
            or LabClock(ClockSetting(lab_at=at, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0)),
            hypervisor=hypervisor,
            inputs=ControlInputs(new_id=_new_guid, polls=store.last_polls, lab_addresses=True),
            policy=policy,
        )
        stack.push_async_callback(control.close)
        change = FleetChange(hosts=proposal.hosts, vms=proposal.vms, text=f"fleet set up from {proposal.source}")
        await control.fleet.apply_change(change, who=TEST_ACTOR)

        # One port per VM works on every system; only Linux has loopback addresses beside 127.0.0.1.
        config = PublisherConfig(is_lab=True, port=0, one_port_per_vm=True, serving=ServingSettings(rules=rules))
        publisher = MetadataPublisher.open(config, control)
        service = LabService(control=control, store=store, publisher=publisher, started_at=at)
        await publisher.start(_backend_that_settles(service))
        if running_clock is None:
            stack.push_async_callback(service.settle)
        stack.push_async_callback(publisher.drain, _DRAIN_S)
        yield service


def _new_guid() -> str:
    return str(uuid.uuid4()).upper()


def _backend_that_settles(service: LabService) -> GuestBackend:
    """A backend that answers an approval only after everything due because of it is done."""
    backend = GuestBackend(service.control)
    approve: Callable[[str, tuple[str, ...]], Awaitable[str | None]] = backend.approve

    async def approve_and_settle(vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await approve(vm, event_ids)
        await service.settle()
        return unknown

    backend.approve = approve_and_settle  # type: ignore[assignment]
    return backend
