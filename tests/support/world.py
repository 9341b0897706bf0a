"""A whole control plane in virtual time: memory store, simulated hypervisor, sequential ids.

    world = World(vms=[a_vm("web-0", host="h1")], hosts=[a_host("h1")])
    world.ask(RequestedOperation.RESTART, "web-0")
    world.advance(15 * 60)
    print(world.transcript())

Nothing here reads a real clock; a notice of seven days passes in milliseconds. `restart()` discards the process and
builds a new one on what the store had committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from forewarn.base.clock import ClockSetting, LabClock, SystemClock
from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.base.times import RealTime
from forewarn.control.control_plane import ControlInputs, ControlPlane
from forewarn.control.executor import ActLimits, ActRetryPolicy
from forewarn.control.fleet import FleetChange
from forewarn.control.health_probes import HealthProber
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Host, Vm
from forewarn.core.history import HistoryEntry
from forewarn.core.projection import document_for
from forewarn.core.request import RequestedOperation, Rollout
from forewarn.core.scope import Scope
from forewarn.machines.interface import Hypervisor
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from forewarn.protocol.codec import encode_document
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.store.interface import Store
from forewarn.store.memory import MemoryStore

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()
LAB_POLICY = Policy(enablement=EnablementMode.ALWAYS)
DEFAULT_RETRY = ActRetryPolicy()
DEFAULT_LIMITS = ActLimits()
T = TypeVar("T")


def a_host(name: str, **facts: Any) -> Host:
    """A host in westeurope, with these fields."""
    return Host(**{"name": name, "location": "westeurope", **facts})


def a_vm(name: str, **facts: Any) -> Vm:
    """A VM on host h1 in resource group lab, with these fields."""
    defaults: dict[str, Any] = {
        "vm_id": "",
        "subscription_id": "sub",
        "resource_group": "lab",
        "location": "westeurope",
        "host": "h1",
    }
    return Vm(**{"name": name, **defaults, **facts})


def sequential_ids() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"00000000-0000-4000-8000-{number:012X}"


class World:
    """A control plane without sockets, with its own clock."""

    def __init__(
        self,
        *,
        vms: Iterable[Vm] = (),
        hosts: Iterable[Host] = (),
        policy: Policy = LAB_POLICY,
        store: Store | None = None,
        now: float = NOON,
        retry: ActRetryPolicy = DEFAULT_RETRY,
        limits: ActLimits = DEFAULT_LIMITS,
        hypervisor: SimulatedHypervisor | None = None,
        prober: HealthProber | None = None,
        system_clock: SystemClock | None = None,
    ) -> None:
        self.runner = asyncio.Runner()
        self.policy = policy
        self.retry = retry
        self.limits = limits
        self.prober = prober
        self.ids = sequential_ids()
        self.hypervisor = hypervisor or SimulatedHypervisor(EffectLedger(None))
        self.ledger = self.hypervisor.ledger
        self.store: Store = store or MemoryStore()
        self.clock = LabClock(ClockSetting(lab_at=now, real_at=RealTime(0.0), speed=0.0), real=lambda: RealTime(0.0))
        self.system_clock = system_clock  # of a world that is no lab; None: it has `clock`
        self.control = self.do(self._build())
        hosts, vms = tuple(hosts), tuple(vms)
        if hosts or vms:
            self.do(self.control.fleet.apply_change(FleetChange(hosts=hosts, vms=vms, text="the fleet"), who="test"))

    async def _build(self) -> ControlPlane:
        return ControlPlane(
            store=self.store,
            clock=self.system_clock or self.clock,
            hypervisor=self._open_hypervisor(),
            inputs=ControlInputs(
                new_id=lambda: next(self.ids),
                polls=self.store.last_polls,
                real_time=lambda: RealTime(0.0),
                http_client=HttpClient(local_targets=LocalTargets.LOOPBACK),
                prober=self.prober,
            ),
            policy=self.policy,
            retry=self.retry,
            limits=self.limits,
        )

    def _open_hypervisor(self) -> Hypervisor:
        """Return the hypervisor of the next control plane."""
        return self.hypervisor

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the world's event loop and return its result."""
        return self.runner.run(work)

    def ask(self, ask: RequestedOperation, *names: str, who: str = "ann", **options: Any) -> list[Event]:
        """Request an operation on VMs and do what is due at once; returns the events."""
        vms = [self.vm(name) for name in names]
        receipt = self.do(self.control.requests.request_for_vms(ask, vms, who=who, **options))
        self.settle()
        return self.store.events(request_id=receipt.request.id)

    def approve(self, vm: str, *event_ids: str) -> str | None:
        unknown = self.do(self.control.guests.approve(self.vm(vm).key, event_ids))
        self.settle()
        return unknown

    def settle(self) -> None:
        self.do(self.control.reconciler.run_until_settled())

    def advance(self, by_s: float) -> None:
        self.do(self.control.lab_clock.advance(by_s))

    @property
    def now(self) -> float:
        return self.clock.now()

    def vm(self, name: str) -> Vm:
        return self.control.fleet.find_vm(name)

    def scope(self, vm: str) -> Scope:
        scope = self.store.scope(self.vm(vm).scope_id)
        assert scope is not None
        return scope

    def events(self, *statuses: EventState) -> list[Event]:
        return self.store.events(statuses=statuses or tuple(EventState))

    def rollout(self, request_id: str) -> Rollout:
        """The rollout of this request, as it is stored now."""
        request = self.store.request(request_id)
        assert request is not None
        assert request.rollout is not None
        return request.rollout

    def document(self, vm: str, version: str = NEWEST_VERSION) -> bytes:
        """The document that this VM would receive now."""
        scope = self.scope(vm)
        document = document_for(scope)
        return encode_document(document.narrowed_to(vm) if scope.is_narrow else document, version)

    def transcript(self, after: int = 0) -> str:
        """The history after number `after`, one line per entry."""
        return "\n".join(transcript_line(entry) for entry in self.store.history(after=after))

    def restart(self) -> None:
        """Replace the control plane by a new one on what the store has committed, as after a crash."""
        self.do(self.control.close())
        if isinstance(self.store, MemoryStore):
            self.store = self.store.copy()
        self.control = self.do(self._build())
        self.settle()

    def close(self) -> None:
        self.do(self.control.close())
        self.do(self.hypervisor.close())
        self.do(self.store.close())
        self.runner.close()


def transcript_line(entry: HistoryEntry) -> str:
    at = datetime.fromtimestamp(entry.at, UTC)
    return f"{at:%d %H:%M:%S} {entry.kind:<10} {entry.text}"
