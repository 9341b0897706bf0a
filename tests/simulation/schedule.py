"""Schedules: the fleet, the settings and the operations of one simulation, as values that JSON can hold.

Operations pick VMs, hosts, events and rollouts by a number, counted round the things that exist then. So an operation
means something in every state, and a schedule stays valid when a shrinker removes others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from forewarn.core.faults import FaultKind
from forewarn.core.fleet import Host, HostHealth, Vm
from forewarn.core.request import RequestedOperation, RolloutImpact, RolloutState
from forewarn.machines.simulated import BehaviourRule


class BaseOperation(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", omit_defaults=True):
    """One operation of a schedule. With `together` the next one does not wait for its end."""

    together: bool = False


class AskForVms(BaseOperation, frozen=True, kw_only=True, tag="ask"):
    """A user, or the platform, requests an operation on VMs."""

    operation: RequestedOperation
    vms: tuple[int, ...]
    notice_s: float = 0.0
    short_notice: bool = False


class BreakHost(BaseOperation, frozen=True, kw_only=True, tag="break-host"):
    """A host degrades or fails."""

    host: int
    health: HostHealth
    notice_s: float = 0.0
    short_notice: bool = False


class RepairHost(BaseOperation, frozen=True, kw_only=True, tag="repair-host"):
    """A host is repaired."""

    host: int


class RollOut(BaseOperation, frozen=True, kw_only=True, tag="roll-out"):
    """An operator starts a rollout over hosts or, without hosts, over the scope of a VM."""

    impact: RolloutImpact
    hosts: tuple[int, ...] = ()
    vm: int = 0
    max_failures: int = 1
    notice_s: float = 0.0
    short_notice: bool = False


class ChangeRollout(BaseOperation, frozen=True, kw_only=True, tag="change-rollout"):
    """An operator pauses, resumes or aborts a rollout."""

    rollout: int
    state: RolloutState


class ApproveAsOperator(BaseOperation, frozen=True, kw_only=True, tag="approve-as-operator"):
    """An operator approves an event, live or over."""

    event: int


class ApproveAsVm(BaseOperation, frozen=True, kw_only=True, tag="approve-as-vm"):
    """A VM approves live events of its scope over the network: one of them, or all."""

    event: int
    all_of_scope: bool = False


class PerformMaintenance(BaseOperation, frozen=True, kw_only=True, tag="perform-maintenance"):
    """A user starts the pending maintenance of a VM."""

    vm: int


class Withdraw(BaseOperation, frozen=True, kw_only=True, tag="withdraw"):
    """An operator withdraws an event."""

    event: int


class Poll(BaseOperation, frozen=True, kw_only=True, tag="poll"):
    """A VM without an agent polls once."""

    vm: int


class ChangeFleet(BaseOperation, frozen=True, kw_only=True, tag="change-fleet"):
    """An operator applies another fleet: VMs are added beside others or removed, and hosts too."""

    added: tuple[tuple[int, int, int], ...] = ()  # a VM to resemble, its update domain, its host
    removed: tuple[int, ...] = ()
    added_host: bool = False
    removed_host: int | None = None


class SetFault(BaseOperation, frozen=True, kw_only=True, tag="set-fault"):
    """An operator injects a fault into a VM, or without `vm` everywhere."""

    kind: FaultKind
    vm: int | None = None
    count: int | None = None
    duration_s: float | None = None


class ClearFaults(BaseOperation, frozen=True, kw_only=True, tag="clear-faults"):
    """An operator clears all faults."""


class ChangeHypervisor(BaseOperation, frozen=True, kw_only=True, tag="change-hypervisor"):
    """The hypervisor begins to fail, to be slow or unreachable, or is repaired (no rules)."""

    rules: tuple[BehaviourRule, ...] = ()


class Wait(BaseOperation, frozen=True, kw_only=True, tag="wait"):
    """Real time and lab time pass, with everything running."""

    seconds: float


class AdvanceClock(BaseOperation, frozen=True, kw_only=True, tag="advance-clock"):
    """An operator advances the lab's clock."""

    seconds: float


class CrashService(BaseOperation, frozen=True, kw_only=True, tag="crash-service"):
    """The service is killed after it has passed more crash points, `times` times, and is down for a while each time."""

    points: int
    down_s: float = 1.0
    times: int = 1


class FailWrites(BaseOperation, frozen=True, kw_only=True, tag="fail-writes"):
    """A later write of the service fails once, as on a full disk."""

    after: int


class StartAgent(BaseOperation, frozen=True, kw_only=True, tag="start-agent"):
    """An agent starts in a VM that has none running."""

    vm: int


class CrashAgent(BaseOperation, frozen=True, kw_only=True, tag="crash-agent"):
    """An agent is killed after it has passed more crash points, and starts again after a while."""

    agent: int
    points: int
    down_s: float = 1.0


Operation = (
    AskForVms
    | BreakHost
    | RepairHost
    | RollOut
    | ChangeRollout
    | ApproveAsOperator
    | ApproveAsVm
    | PerformMaintenance
    | Withdraw
    | Poll
    | ChangeFleet
    | SetFault
    | ClearFaults
    | ChangeHypervisor
    | Wait
    | AdvanceClock
    | CrashService
    | FailWrites
    | StartAgent
    | CrashAgent
)


class SimulationSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of the service and of the agents in one simulation."""

    sqlite: bool = False  # the store is a SQLite file instead of memory
    always_enabled: bool = True  # spec §8.3
    settle_s: float = 0.0
    max_user_operations: int = 100
    agents_approve: bool = True
    steps_fail: bool = False  # some steps of agents fail
    checks_know: bool = True  # the check of an agent's step finds out whether it is in effect


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One simulation: seed, settings, the fleet at the start, and what happens."""

    seed: int  # of the delays of writes and the durations of steps
    settings: SimulationSettings
    hosts: tuple[Host, ...]
    vms: tuple[Vm, ...]
    operations: tuple[Operation, ...]

    def to_json(self) -> bytes:
        """Return the schedule as JSON, for a file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_file(cls, path: Path) -> Schedule:
        """Read a schedule that `to_json` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def describe(self) -> list[str]:
        """Return the schedule in lines for people: settings, hosts, VMs, then one line per operation."""
        chosen = {
            name: value
            for name in self.settings.__struct_fields__
            if (value := getattr(self.settings, name)) != getattr(SimulationSettings(), name)
        }
        lines = [f"settings: {chosen or 'defaults'}", f"hosts: {', '.join(host.name for host in self.hosts)}"]
        lines += [f"VM {vm.name} on {vm.host} in {vm.scope_id}, update domain {vm.update_domain}" for vm in self.vms]
        return lines + [f"{number}. {describe_operation(each)}" for number, each in enumerate(self.operations, 1)]


def describe_operation(operation: Operation) -> str:
    """Return an operation as one line: its tag and the fields that differ from their defaults."""
    fields = msgspec.to_builtins(operation)
    return " ".join([fields.pop("do"), *(f"{name}={value}" for name, value in fields.items())])
