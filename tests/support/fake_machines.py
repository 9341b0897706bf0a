"""Real hosts with VMs, in memory: a `MachineDriver` whose calls can be killed, lost or refused.

The hosts (`FakeHosts`) outlive the service: a driver that is opened on them later finds every VM as it was left. What a
guest notices goes to a log, with the act whose mark the VM had. Two running copies of a VM are an AssertionError.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from forewarn.core.unannounced import ObservedMachine, ObservedState, StateCause
from forewarn.errors import Refused
from forewarn.machines.driver import (
    IN_MEMORY,
    FreeCapacity,
    HostUnreachable,
    MachineMark,
    MachineState,
    MigrationProgress,
    VmNeeds,
)
from forewarn.machines.interface import ActNotTried
from tests.support.disturbed_calls import DisturbedCalls

_T = TypeVar("_T")


class SteppingClock:
    """A clock for real time that only moves when somebody sleeps."""

    def __init__(self, now: float = 5000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time."""
        return self._now

    async def sleep_until(self, at: float | None) -> None:
        """Move to this time at once."""
        assert at is not None, "nobody would ever wake up"
        self._now = max(self._now, at)


class FakeMachine(msgspec.Struct):
    """One VM on one host."""

    state: MachineState
    mark: MachineMark | None = None
    asked_at: float | None = None  # when its power button was pressed
    sending_to: str = ""
    sent_at: float = 0.0  # when sending began
    error: str = ""
    is_reset: bool = False  # its next resume boots it
    cause: StateCause = StateCause.UNKNOWN  # why it is off or paused, if somebody else did it
    instance: int = 1  # grows at each start


class LogEntry(msgspec.Struct, frozen=True):
    """What a guest noticed, or an outsider could see: `booted`, `paused`, `resumed`, `off`, `removed`, …"""

    what: str
    vm: str
    host: str
    act_id: str  # of the mark that the VM had then, on its source if it was sent from there; "": none


@dataclass(slots=True, kw_only=True)
class FakeBehaviour:
    """How the hosts behave; may be changed at any time."""

    shutdown_s: float = 1.0  # math.inf: guests ignore ACPI
    migration_s: float = 1.0  # math.inf: migrations never converge
    # operation, or "operation on host" → the sentence with which it is refused
    refused: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)  # hosts
    full_disk: bool = False  # the files that the driver keeps beside the service cannot be written
    silent_after: str = ""  # the operation after whose effect its host no longer answers; "": none
    can_fence: bool = False
    cpus: dict[str, str] = field(default_factory=dict)  # host → its CPU model
    has_locks: bool = False  # a VM that runs holds locks on its disks, and does not boot without them
    broken_disks_on: set[str] = field(default_factory=set)  # hosts where guests are halted as soon as they run
    reports_changes: bool = False  # True: a driver that waits learns at once when a guest or a migration is done


@dataclass(slots=True, kw_only=True)
class FakeHosts:
    """All hosts, what has happened on them, and how they behave."""

    behaviour: FakeBehaviour = field(default_factory=FakeBehaviour)
    clock: SteppingClock = field(default_factory=SteppingClock)
    machines: dict[str, dict[str, FakeMachine]] = field(default_factory=dict)  # by host, then by name
    log: list[LogEntry] = field(default_factory=list)  # what guests noticed so far, oldest first
    disks: set[str] = field(default_factory=set)  # names of VMs whose disks exist
    changes: list[asyncio.Queue[str]] = field(default_factory=list)  # of drivers that follow changes: names of hosts

    def add(self, host: str, vm: str, state: MachineState = MachineState.RUNNING) -> None:
        """Put a VM on a host, with its disks."""
        self.machines.setdefault(host, {})[vm] = FakeMachine(state=state)
        self.disks.add(vm)

    def change_by_hand(
        self, host: str, vm: str, state: MachineState, cause: StateCause = StateCause.UNKNOWN, *, is_new: bool = False
    ) -> None:
        """Let somebody else change a VM, or put it on a host; `is_new`: in a new process. The host reports it."""
        before = self.machines.setdefault(host, {}).get(vm)
        number = before.instance if before is not None else 1
        self.machines[host][vm] = FakeMachine(state=state, cause=cause, instance=number + is_new)
        for queue in self.changes:
            queue.put_nowait(host)

    def remove_by_hand(self, host: str, vm: str) -> None:
        """Let somebody else remove a VM from a host."""
        del self.machines[host][vm]

    def states(self, vm: str) -> dict[str, MachineState]:
        """Return the state of the VM on each host that knows it."""
        return {host: machines[vm].state for host, machines in self.machines.items() if vm in machines}

    def crash(self, host: str) -> None:
        """Power the host off: its VMs are off, and it does not answer."""
        for machine in self.machines.get(host, {}).values():
            machine.state, machine.sending_to = MachineState.OFF, ""
        self.behaviour.unreachable.add(host)


class FakeMachines:
    """A `MachineDriver` for tests. `calls` counts and disturbs its calls."""

    can_reimage = True

    def __init__(self, hosts: FakeHosts, calls: DisturbedCalls | None = None) -> None:
        self._hosts = hosts
        self._calls = calls or DisturbedCalls()

    @property
    def hosts(self) -> tuple[str, ...]:
        """See `MachineDriver`."""
        return tuple(self._hosts.machines)

    async def observe(self, host: str) -> dict[str, ObservedMachine]:
        """See `MachineDriver`."""
        return self._call("observe", host, lambda: {vm: _observed(m) for vm, m in self._hosts.machines[host].items()})

    async def changed_hosts(self) -> AsyncGenerator[str, None]:
        """See `MachineDriver`."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._hosts.changes.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._hosts.changes.remove(queue)

    async def state(self, host: str, vm: str) -> MachineState:
        """See `MachineDriver`."""
        return self._call("state", host, lambda: self._state(host, vm))

    async def stop_reason(self, host: str, vm: str) -> str:
        """See `MachineDriver`."""

        def reason() -> str:
            return "no space is left for disk vda" if self._state(host, vm) is MachineState.HALTED else ""

        return self._call("stop_reason", host, reason)

    async def wait_for_change(self, host: str, vm: str, *, within_s: float) -> bool:
        """See `MachineDriver`; hosts that do not report changes return at once."""
        machine, clock = self._find(host, vm), self._hosts.clock
        if machine is None or not self._hosts.behaviour.reports_changes:
            return False
        due = [machine.asked_at + self._hosts.behaviour.shutdown_s] if machine.asked_at is not None else []
        due += [machine.sent_at + self._hosts.behaviour.migration_s] if machine.sending_to else []
        if not due or min(due) > clock.now() + within_s:
            return False
        await clock.sleep_until(min(due))
        return True

    async def pause(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""
        self._call("pause", host, lambda: self._change(host, vm, {MachineState.RUNNING: MachineState.PAUSED}, "paused"))

    async def resume(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""
        self._call("resume", host, lambda: self._resume(host, vm))

    async def reset(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""

        def reset() -> None:
            machine = self._need(host, vm, MachineState.PAUSED, MachineState.HALTED)
            machine.is_reset, machine.state = True, MachineState.PAUSED

        self._call("reset", host, reset)

    async def press_power_button(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""

        def press() -> None:
            machine = self._find(host, vm)
            if machine is not None and machine.state is MachineState.RUNNING and machine.asked_at is None:
                machine.asked_at = self._hosts.clock.now()

        self._call("press_power_button", host, press)

    async def power_on(self, host: str, vm: str, *, fresh_ephemeral_disk: bool = False) -> None:
        """See `MachineDriver`."""

        def power_on() -> None:
            if self._state(host, vm) in (MachineState.RUNNING, MachineState.HALTED):
                return
            self._need(host, vm, MachineState.OFF)
            if self._hosts.behaviour.has_locks and (holder := self._lock_holder(vm)):
                raise Refused(f"{holder} holds the locks of the disks of {vm}")
            assert vm in self._hosts.disks, f"{vm} boots without disks"
            self._change(host, vm, {MachineState.OFF: MachineState.RUNNING}, "booted")
            if fresh_ephemeral_disk:
                self._note("fresh disk", host, vm)

        self._call("power_on", host, power_on)

    async def power_off(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""

        def power_off() -> None:
            machine = self._find(host, vm)
            if machine is not None and machine.state is not MachineState.OFF:
                was_visible = machine.state in IN_MEMORY
                machine.state, machine.asked_at, machine.sending_to = MachineState.OFF, None, ""
                if was_visible:
                    self._note("off", host, vm)

        self._call("power_off", host, power_off)

    async def remove(self, host: str, vm: str, *, delete_disks: bool) -> None:
        """See `MachineDriver`."""

        def remove() -> None:
            if host and self._state(host, vm) is not MachineState.ABSENT:
                self._need(host, vm, MachineState.OFF)
                self._note("removed", host, vm)
                del self._hosts.machines[host][vm]
            if delete_disks and vm in self._hosts.disks:
                self._hosts.disks.remove(vm)
                self._note("disks deleted", host, vm)

        self._call("remove", host, remove)

    async def reimage(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""

        def reimage() -> None:
            self._need(host, vm, MachineState.OFF)
            self._note("reimaged", host, vm)

        self._call("reimage", host, reimage)

    async def copy_definition(
        self, host: str, vm: str, to_host: str, *, fresh_ephemeral_disk: bool = False, then_receives: bool = False
    ) -> None:
        """See `MachineDriver`."""

        def copy() -> None:
            self._hosts.machines.setdefault(to_host, {}).setdefault(vm, FakeMachine(state=MachineState.OFF))

        self._call("copy_definition", to_host, copy)

    async def read_definition(self, host: str, vm: str) -> bytes:
        """See `MachineDriver`."""

        def read() -> bytes:
            if self._find(host, vm) is None:
                raise Refused(f"{vm} is not defined on {host}")
            return vm.encode()

        return self._call("read_definition", host, read)

    async def define(
        self, host: str, vm: str, definition: bytes, *, from_host: str, fresh_ephemeral_disk: bool = False
    ) -> None:
        """See `MachineDriver`."""
        await self.copy_definition(from_host, vm, host, fresh_ephemeral_disk=fresh_ephemeral_disk)

    async def receive_address(self, host: str, vm: str) -> str:
        """See `MachineDriver`."""
        self._call("receive_address", host, lambda: self._need(host, vm, MachineState.RECEIVING))
        return host

    async def send_to(self, host: str, vm: str, to_host: str, address: str) -> None:
        """See `MachineDriver`; the address is the name of the host."""
        await self.send(host, vm, address)

    async def prepare_to_receive(self, to_host: str, vm: str) -> None:
        """See `MachineDriver`."""
        self._call(
            "prepare_to_receive",
            to_host,
            lambda: self._change(to_host, vm, {MachineState.OFF: MachineState.RECEIVING}, ""),
        )

    async def send(self, host: str, vm: str, to_host: str) -> None:
        """See `MachineDriver`."""

        def send() -> None:
            machine = self._need(host, vm, *IN_MEMORY)
            self._need(to_host, vm, MachineState.RECEIVING)
            machine.sending_to, machine.sent_at, machine.error = to_host, self._hosts.clock.now(), ""

        self._call("send", host, send)

    async def migration(self, host: str, vm: str) -> MigrationProgress:
        """See `MachineDriver`."""

        def progress() -> MigrationProgress:
            machine = self._find(host, vm)
            if machine is None:
                return MigrationProgress(is_active=False)
            if not machine.sending_to:
                downtime_ms = 40 if machine.state is MachineState.SENT else None
                return MigrationProgress(is_active=False, error=machine.error, downtime_ms=downtime_ms)
            return MigrationProgress(is_active=True, transferred_bytes=3 * 2**20, remaining_bytes=2**20)

        return self._call("migration", host, progress)

    async def cancel_send(self, host: str, vm: str) -> None:
        """See `MachineDriver`."""

        def cancel() -> None:
            if (machine := self._find(host, vm)) is not None and machine.sending_to:
                machine.sending_to, machine.error = "", "the migration was cancelled"

        self._call("cancel_send", host, cancel)

    async def read_mark(self, host: str, vm: str) -> MachineMark | None:
        """See `MachineDriver`."""

        def read() -> MachineMark | None:
            machine = self._find(host, vm)
            return machine.mark if machine is not None else None

        return self._call("read_mark", host, read)

    async def write_mark(self, host: str, vm: str, mark: MachineMark) -> None:
        """See `MachineDriver`."""

        def write() -> None:
            machine = self._find(host, vm)
            assert machine is not None, f"{vm} is not on {host}"
            machine.mark = mark

        self._call("write_mark", host, write)

    async def can_lock_disks(self, host: str, vm: str) -> bool:
        """See `MachineDriver`; silent hosts cannot hide locks."""
        return self._hosts.behaviour.has_locks and self._lock_holder(vm) is None

    def _lock_holder(self, vm: str) -> str | None:
        return next((host for host in self._hosts.machines if self._state(host, vm) in IN_MEMORY), None)

    async def fence(self, host: str) -> bool:
        """See `MachineDriver`; a fenced host stays unreachable."""
        if self._hosts.behaviour.can_fence:
            self._hosts.crash(host)
        return self._hosts.behaviour.can_fence

    async def capacity(self, host: str) -> FreeCapacity:
        """See `MachineDriver`."""
        return self._call("capacity", host, lambda: self._capacity(host))

    def _capacity(self, host: str) -> FreeCapacity:
        """4096 MiB less 1024 for each VM in memory; the CPU of a VM is that of the host that it is on."""
        machines, cpu = self._hosts.machines[host], self._hosts.behaviour.cpus.get(host, "")
        in_memory = [machine for machine in machines.values() if machine.state in IN_MEMORY]
        vms = {
            vm: VmNeeds(memory_mib=1024, cpu=cpu if machine.state in IN_MEMORY else "")
            for vm, machine in machines.items()
        }
        return FreeCapacity(memory_mib=4096 - 1024 * len(in_memory), cpu_model=cpu, vms=vms)

    async def can_run_cpu(self, host: str, cpu: str) -> bool:
        """See `MachineDriver`; only the same CPU will do."""
        return self._call("can_run_cpu", host, lambda: self._hosts.behaviour.cpus.get(host) == cpu)

    async def kept_vms(self) -> dict[str, VmNeeds]:
        """See `MachineDriver`."""
        on_hosts = {vm for machines in self._hosts.machines.values() for vm in machines}
        return {vm: VmNeeds(memory_mib=1024) for vm in self._hosts.disks - on_hosts}

    async def close(self) -> None:
        """Do nothing: the world stays as it is."""

    def _call(self, operation: str, host: str, effect: Callable[[], _T]) -> _T:
        is_disturbed = self._calls.before()
        if self._hosts.behaviour.full_disk:
            raise ActNotTried("a copy cannot be written")
        if host in self._hosts.behaviour.unreachable:
            raise HostUnreachable(f"{host} does not answer")
        for refused in (operation, f"{operation} on {host}"):
            if refused in self._hosts.behaviour.refused:
                raise Refused(self._hosts.behaviour.refused[refused])
        self._pass_time()
        result = effect()
        if operation == self._hosts.behaviour.silent_after:
            self._hosts.behaviour.unreachable.add(host)
            raise HostUnreachable(f"{host} does not answer")
        self._calls.after(is_disturbed)
        return result

    def _pass_time(self) -> None:
        """Let guests shut down and migrations complete whose time has come."""
        for host, machines in self._hosts.machines.items():
            for vm, machine in machines.items():
                if machine.state is MachineState.RUNNING and host in self._hosts.behaviour.broken_disks_on:
                    machine.state = MachineState.HALTED
                if machine.sending_to in self._hosts.behaviour.unreachable:
                    machine.sending_to, machine.error = "", "the connection to the destination was lost"
                if machine.sending_to and self._is_over(machine.sent_at, self._hosts.behaviour.migration_s):
                    self._complete_migration(vm, machine)
                if (
                    self._is_over(machine.asked_at, self._hosts.behaviour.shutdown_s)
                    and machine.state is MachineState.RUNNING
                ):
                    machine.state, machine.asked_at, machine.sending_to = MachineState.OFF, None, ""
                    self._note("off", host, vm)

    def _is_over(self, since: float | None, duration_s: float) -> bool:
        return since is not None and self._hosts.clock.now() >= since + duration_s

    def _complete_migration(self, vm: str, machine: FakeMachine) -> None:
        destination = self._find(machine.sending_to, vm)
        if destination is None or destination.state is not MachineState.RECEIVING:
            machine.error = "the destination does not wait for it"
        else:
            machine.state, destination.state = MachineState.SENT, MachineState.RECEIVED
        machine.sending_to = ""

    def _resume(self, host: str, vm: str) -> None:
        machine = self._need(host, vm, *IN_MEMORY, MachineState.RECEIVED, MachineState.OFF)
        what = {
            MachineState.PAUSED: "resumed",
            MachineState.HALTED: "resumed",
            MachineState.RECEIVED: "arrived",
        }.get(machine.state)
        if what is not None:
            is_reset, machine.is_reset = machine.is_reset, False
            self._change(host, vm, {machine.state: MachineState.RUNNING}, "booted" if is_reset else what)

    def _state(self, host: str, vm: str) -> MachineState:
        machine = self._find(host, vm)
        return machine.state if machine is not None else MachineState.ABSENT

    def _find(self, host: str, vm: str) -> FakeMachine | None:
        return self._hosts.machines.get(host, {}).get(vm)

    def _need(self, host: str, vm: str, *states: MachineState) -> FakeMachine:
        machine = self._find(host, vm)
        if machine is None or machine.state not in states:
            raise Refused(f"{vm} is {machine.state if machine else MachineState.ABSENT} on {host}")
        return machine

    def _change(self, host: str, vm: str, change: dict[MachineState, MachineState], what: str) -> None:
        """Change the state as the table says, or leave it, and note what the guest notices."""
        machine = self._find(host, vm)
        if machine is None or machine.state not in change:
            return
        machine.state = change[machine.state]
        machine.instance += what == "booted"
        if what:
            self._note(what, host, vm)
        running = [each for each in self._hosts.machines if self._state(each, vm) is MachineState.RUNNING]
        assert len(running) <= 1, f"{vm} runs on {running}"

    def _note(self, what: str, host: str, vm: str) -> None:
        known = [machines[vm] for machines in self._hosts.machines.values() if vm in machines]
        senders = [machine for machine in known if what == "arrived" and machine.state is MachineState.SENT]
        machine = senders[0] if senders else self._find(host, vm)
        act_id = machine.mark.act_id if machine is not None and machine.mark is not None else ""
        self._hosts.log.append(LogEntry(what, vm, host, act_id))


_OBSERVED = {
    MachineState.RUNNING: ObservedState.RUNNING,
    MachineState.PAUSED: ObservedState.PAUSED,
    MachineState.HALTED: ObservedState.PAUSED,
    MachineState.OFF: ObservedState.OFF,
    MachineState.SENT: ObservedState.OFF,
}


def _observed(machine: FakeMachine) -> ObservedMachine:
    state = _OBSERVED.get(machine.state, ObservedState.CHANGING)
    cause = StateCause.MIGRATED if machine.state is MachineState.SENT else machine.cause
    is_active = state in (ObservedState.RUNNING, ObservedState.PAUSED)
    return ObservedMachine(state=state, cause=cause, instance=str(machine.instance) if is_active else "")
