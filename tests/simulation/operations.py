"""Carries out the operations of a schedule against the running processes.

A refused operation must change nothing, one that was accepted is remembered, and one whose process died has an unknown
outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from forewarn.client import AsyncClient
from forewarn.control.control_plane import ControlPlane
from forewarn.control.faults import FaultSpec, FaultTarget
from forewarn.control.fleet import FleetChange
from forewarn.core.event import Event
from forewarn.core.faults import FAULT_DEFINITIONS, FaultCategory, FaultKind
from forewarn.core.fleet import Host, HostHealth, PowerState, Vm
from forewarn.core.request import Rollout
from forewarn.errors import Conflict, NotFound, Rejected, Unavailable
from forewarn.machines.simulated import SimulatedBehaviour
from forewarn.protocol.document import NoticeStatus
from forewarn.store.interface import Store
from tests.simulation.process import ProcessDied
from tests.simulation.schedule import (
    AdvanceClock,
    ApproveAsOperator,
    ApproveAsVm,
    AskForVms,
    BreakHost,
    ChangeFleet,
    ChangeHypervisor,
    ChangeRollout,
    ClearFaults,
    CrashAgent,
    CrashService,
    FailWrites,
    Operation,
    PerformMaintenance,
    Poll,
    RepairHost,
    RollOut,
    SetFault,
    StartAgent,
    Wait,
    Withdraw,
)
from tests.support.world import a_host

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

T = TypeVar("T")
MISLEADING_FAULTS = frozenset({FaultKind.STALE, FaultKind.EMPTY_BODY})


def chosen(things: Sequence[T], pick: int) -> T | None:
    """Return one of the things, counted round; None if there are none."""
    return things[pick % len(things)] if things else None


class Operations:
    """Carries out operations, and remembers which requests and approvals were accepted."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.accepted: dict[str, tuple[str, ...]] = {}  # request → the VMs it is about
        self.approved: set[str] = set()  # events
        self.known_events: dict[str, str] = {}  # event → request
        self._rollouts: list[str] = []

    @property
    def _control(self) -> ControlPlane:
        return self._simulation.service.control

    @property
    def _store(self) -> Store:
        return self._simulation.service.store

    async def carry_out(self, operation: Operation) -> None:
        """Carry out one operation, as far as the current state allows it."""
        try:
            await self._carry_out(operation)
        except ProcessDied:
            self._simulation.note("its outcome is unknown: the service died")
        except (Rejected, NotFound, Conflict, Unavailable) as error:
            self._simulation.note(f"not accepted: {error}")
            if not str(error):
                self._simulation.report("an error says what is wrong", repr(error))

    async def _carry_out(self, operation: Operation) -> None:
        match operation:
            case AskForVms():
                await self._ask(operation)
            case BreakHost():
                await self._break_host(operation)
            case RepairHost():
                if (host := self._host(operation.host)) is not None:
                    await self._call(self._control.requests.repair_host(host.name, who="op"))
            case RollOut():
                await self._roll_out(operation)
            case ChangeRollout():
                if (rollout := chosen(self._rollouts, operation.rollout)) is not None:
                    await self._call(self._control.rollout_requests.change_state(rollout, operation.state, who="op"))
            case ChangeFleet():
                await self._change_fleet(operation)
            case SetFault():
                await self._set_fault(operation)
            case ClearFaults():
                await self._call(self._control.faults.clear(lambda fault: True, who="op"))
            case AdvanceClock():
                await self._call(self._control.lab_clock.advance(operation.seconds))
            case Wait():
                await asyncio.sleep(operation.seconds)
            case ApproveAsOperator() | ApproveAsVm() | PerformMaintenance() | Withdraw() | Poll():
                await self._change_event(operation)
            case _:
                self._change_world(operation)

    def _change_world(self, operation: Operation) -> None:
        """Change how the processes and the hypervisor behave from now on."""
        simulation, service = self._simulation, self._simulation.service
        match operation:
            case ChangeHypervisor():
                service.set_behaviour(SimulatedBehaviour(rules=operation.rules))
            case CrashService():
                simulation.down_s, simulation.points = operation.down_s, operation.points
                simulation.more_crashes = operation.times - 1
                service.process.die_after(operation.points)
            case FailWrites():
                service.crashing_store.fails_in = operation.after
            case StartAgent():
                running = [vm for vm in self._store.vms() if vm.power is PowerState.RUNNING and vm.address]
                if (vm := chosen(running, operation.vm)) is not None:
                    simulation.start_agent(vm)
            case CrashAgent():
                if (guest := chosen(list(simulation.guests.values()), operation.agent)) is not None:
                    guest.restarts_in_s = operation.down_s
                    guest.process.die_after(operation.points)

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Call a use case in the service."""
        service = self._simulation.service
        if not service.is_serving:
            work.close()
            raise Unavailable("the service is down")
        return await service.process.call(work)

    # --- picking things ---

    def _vm(self, pick: int) -> Vm | None:
        return chosen(self._store.vms(), pick)

    def _host(self, pick: int) -> Host | None:
        return chosen(self._store.hosts(), pick)

    def _event(self, pick: int) -> Event | None:
        return chosen(self._simulation.live_events() or self._store.events(limit=10), pick)

    # --- requests ---

    async def _ask(self, operation: AskForVms) -> None:
        vms = list({vm.key: vm for vm in map(self._vm, operation.vms) if vm is not None}.values())
        receipt = await self._call(
            self._control.requests.request_for_vms(
                operation.operation, vms, who="ann", notice_s=operation.notice_s, short_notice=operation.short_notice
            )
        )
        self.accepted[receipt.request.id] = tuple(vm.name for vm in vms)

    async def _break_host(self, operation: BreakHost) -> None:
        host, requests = self._host(operation.host), self._control.requests
        if host is None:
            return
        if operation.health is HostHealth.FAILED:
            receipt = await self._call(requests.fail_host(host.name, who="op"))
        else:
            receipt = await self._call(
                requests.degrade_host(
                    host.name, who="op", notice_s=operation.notice_s, short_notice=operation.short_notice
                )
            )
        self.accepted[receipt.request.id] = ()

    async def _roll_out(self, operation: RollOut) -> None:
        hosts = tuple(dict.fromkeys(host.name for host in map(self._host, operation.hosts) if host is not None))
        vm = self._vm(operation.vm)
        if not hosts and vm is None:
            return
        rollout = Rollout(
            impact=operation.impact,
            hosts=hosts,
            scope_id="" if hosts or vm is None else vm.scope_id,
            max_failures=operation.max_failures,
        )
        request = await self._call(
            self._control.rollout_requests.start(
                rollout, who="op", notice_s=operation.notice_s, short_notice=operation.short_notice
            )
        )
        self.accepted[request.id] = ()
        self._rollouts.append(request.id)

    # --- fleet and faults ---

    async def _change_fleet(self, operation: ChangeFleet) -> None:
        hosts = self._store.hosts()
        present = {vm.name for vm in self._store.vms()}
        vms: dict[str, Vm] = {}
        for like, domain, host in operation.added:
            model = chosen(self._store.vms(removed=True), like)
            place = chosen([each for each in hosts if each.health is HostHealth.HEALTHY], host)
            if model is None or place is None:
                continue
            vm = _vm_like(model, present | set(vms), domain, place.name)
            vms[vm.name] = vm
        removed = {vm.key: vm for vm in map(self._vm, operation.removed) if vm is not None}
        gone = self._host(operation.removed_host) if operation.removed_host is not None and len(hosts) > 1 else None
        change = FleetChange(
            hosts=(a_host(f"h{len(hosts) + 1}-{self._store.last_seq()}"),) if operation.added_host else (),
            removed_hosts=(gone.name,) if gone is not None else (),
            vms=tuple(vms.values()),
            removed=tuple(removed.values()),
        )
        await self._call(self._control.fleet.apply_change(change, who="op"))

    async def _set_fault(self, operation: SetFault) -> None:
        vm = self._vm(operation.vm) if operation.vm is not None else None
        target = FaultTarget(name=vm.name, vm=vm, scope_id=vm.scope_id) if vm is not None else FaultTarget()
        if FAULT_DEFINITIONS[operation.kind].category is FaultCategory.TRANSPORT:
            self._simulation.may_mislead |= operation.kind in MISLEADING_FAULTS
        spec = FaultSpec(kind=operation.kind, target=target, count=operation.count, duration_s=operation.duration_s)
        await self._call(self._control.faults.set(spec, who="op"))

    # --- events ---

    async def _change_event(self, operation: Operation) -> None:
        requests = self._control.requests
        match operation:
            case PerformMaintenance():
                if (vm := self._vm(operation.vm)) is not None:
                    await self._call(requests.perform_maintenance([vm], who="ann"))
            case Poll():
                if (vm := self._vm(operation.vm)) is not None:
                    await self._poll(vm)
            case ApproveAsOperator():
                if (event := self._event(operation.event)) is not None:
                    await self._call(requests.approve(event.id, who="op"))
                    self.approved.add(event.id)
            case ApproveAsVm():
                if (event := chosen(self._simulation.live_events(), operation.event)) is not None:
                    await self._approve_as_vm(event, all_of_scope=operation.all_of_scope)
            case Withdraw():
                if (event := self._event(operation.event)) is not None:
                    await self._call(requests.withdraw(event.id, who="op"))

    async def _approve_as_vm(self, event: Event, *, all_of_scope: bool) -> None:
        scope = self._store.scope(event.scope_id)
        caller = chosen([vm for vm in scope.present_vms if vm.address] if scope is not None else [], 0)
        if scope is None or caller is None or not event.listed:
            return
        ids = [each.id for each in scope.live_events() if each.listed and (all_of_scope or each.id == event.id)]
        await self._client(caller).approve(*ids)
        self.approved.update(ids)

    async def _poll(self, vm: Vm) -> None:
        """Poll as this VM; what it gets must have been committed (spec §4.2)."""
        if not vm.address:
            return
        received = await self._client(vm).events()
        self._simulation.check_document(
            vm,
            received.incarnation,
            [(event.id, NoticeStatus(event.status)) for event in received.events],
        )

    def _client(self, vm: Vm) -> AsyncClient:
        loop = asyncio.get_running_loop()
        return AsyncClient(f"http://{vm.address}", boot_id=lambda: "boot", clock=loop.time)


def _vm_like(model: Vm, names: set[str], domain: int, host: str) -> Vm:
    prefix = model.name.partition("_")[0]
    number = next(number for number in range(100) if f"{prefix}_{number}" not in names)
    address = f"10.{ord(prefix[0])}.1.{number + 1}"
    return replace(
        model,
        name=f"{prefix}_{number}",
        vm_id="",
        update_domain=domain if model.scope_id.split(":")[0] != "vm" else 0,
        host=host,
        power=PowerState.RUNNING,
        removed_at=None,
        address=address,
    )
