"""Finds what changed about a VM without an act: compares the fleet with what its hosts report.

Pure. A guest that reboots itself stays in its process and is not found: that is no act of the platform. The caller
leaves out VMs with an act in progress, and reports that are older than the last change of the VM in the fleet.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec.structs import replace

from forewarn.core.fleet import LastSeen, PowerState, VmCondition
from forewarn.core.history import EntryKind, HistoryEntry

# What hosts report about their VMs, as hypervisors that observe hosts return it.
#
# These are values that may come from another process: they say what a host listed, and decide nothing.


class ObservedState(StrEnum):
    """The state in which a host lists a VM: running, paused, off or changing."""

    RUNNING = "running"
    PAUSED = "paused"  # in memory, and its CPUs are stopped
    OFF = "off"  # the host knows it, and it does not run
    CHANGING = "changing"  # in a migration, start or save that is not over, or the host cannot say


class StateCause(StrEnum):
    """Why a VM is in its state, as far as its host can say it."""

    UNKNOWN = "unknown"
    GUEST = "guest"  # the guest shut down, by itself or because it was asked to
    OPERATOR = "operator"  # a person or program ended or paused it
    CRASH = "crash"  # its process ended unexpectedly, or its guest panicked
    DISK_ERROR = "disk error"
    WATCHDOG = "watchdog"  # the guest's watchdog stopped it
    MIGRATED = "migrated"  # it has left this host by a migration


class ObservedMachine(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One VM, as one host lists it in an answer; a report that decides nothing."""

    state: ObservedState
    cause: StateCause = StateCause.UNKNOWN
    instance: str = ""  # an id that differs after every start on the host; "": not known, or it is off

    @property
    def is_active(self) -> bool:
        """Whether the VM is running or paused: in memory, so that it uses its disks."""
        return self.state in (ObservedState.RUNNING, ObservedState.PAUSED)


class HostObservation(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """All VMs of one host, as it listed them in one answer; or that it did not answer (`problem`)."""

    host: str  # its name in the hypervisor's settings
    machines: dict[str, ObservedMachine] = {}  # by the VM's name; also VMs that the fleet does not know
    problem: str = ""  # for people: why the host did not answer; "": it has answered
    acting_on: frozenset[str] = frozenset()  # keys of VMs with an act that this hypervisor began and has not ended


NOT_BY_US = "by somebody else, without notice"
_MAX_FINDINGS = 4  # of one comparison: place, power and condition; a bound in case of a mistake here


class UnannouncedKind(StrEnum):
    """What changed about a VM or host without an act of the service. The values are labels of a metric."""

    MOVED = "moved"  # to another host
    STARTED = "started"
    RESTARTED = "restarted"  # it stopped and was started between two comparisons
    SHUT_DOWN = "shut_down"  # by its guest
    POWERED_OFF = "powered_off"  # by somebody else, without asking the guest
    CRASHED = "crashed"
    STOPPED = "stopped"  # its host does not say why, or says that it left by a migration, and no host runs it
    PAUSED = "paused"
    RESUMED = "resumed"  # it was paused, or had crashed in memory, and runs again
    REMOVED = "removed"  # no host has it any more
    DUPLICATED = "duplicated"  # several hosts have it in memory, which destroys its disks
    HOST_LOST = "host_lost"  # a host does not answer
    HOST_FOUND = "host_found"  # it answers again


class PlacedVm(Protocol):
    """The facts about a VM in the fleet that `compare_vm` compares with its hosts; a `Vm` has them."""

    @property
    def name(self) -> str:
        """The VM's name, as the history shows it."""

    @property
    def host(self) -> str:
        """The name of the VM's host, spelled as in the fleet and in `VmReports.found`; "" if it is on none."""

    @property
    def power(self) -> PowerState:
        """The VM's power state in the fleet."""

    @property
    def seen(self) -> LastSeen | None:
        """What hosts reported about the VM when they were last compared with the fleet."""


class VmReports(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What all hosts report about one VM: those that list it, and whether all have answered."""

    found: dict[str, ObservedMachine]  # name of a host in the fleet → the VM as it lists it; only hosts that do
    own_host_answered: bool = True  # whether the VM's host in the fleet has answered; True if it has none
    all_hosts_answered: bool = True  # whether every host of the fleet has; False too if another VM has its name


class VmFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The facts about a VM that a comparison with its hosts may change: host, power and last report."""

    name: str  # the name of the VM
    host: str  # the name of its host; "": on none
    power: PowerState
    seen: LastSeen | None  # None: not compared so far


class VmFinding(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One difference between a VM in the fleet and what hosts report, and the facts that remove it."""

    vm: VmFacts  # the facts with which the difference is gone
    kind: UnannouncedKind | None = None  # None: nobody is to blame, as at the first comparison
    text: str = ""  # for the history; "": not worth an entry
    compares_hosts: bool = False  # it follows from the answers of several hosts, which were not given at one moment
    needs_all_hosts: bool = False  # it follows from the answers of all hosts

    def entry(self, now: float) -> HistoryEntry | None:
        """Return the history entry about the finding, at lab time `now`; None if it has no text for one."""
        if not self.text:
            return None
        what = EntryKind.UNANNOUNCED if self.kind is not None else EntryKind.FLEET
        return HistoryEntry(at=now, kind=what, text=self.text, vm=self.vm.name, host=self.vm.host)


def compare_vm(vm: PlacedVm, reports: VmReports) -> tuple[VmFinding, ...]:
    """Return the differences between a VM in the fleet and what hosts report, in the order to apply them.

    Each has the facts of the VM after it. The result is () while the VM is changing on a host, and where the silence of
    a host, or several hosts on which it is off, leave the matter open. Nobody is blamed for what is found by the first
    comparison of a VM, or after an act on it has failed: such findings have no kind, and the fleet follows the hosts.

    Leave out VMs with an act in progress, and reports from before the last change of the VM in the fleet: an act would
    be taken for the work of somebody else.
    """
    is_adopted = vm.seen is None or vm.seen.is_uncertain
    facts = VmFacts(name=vm.name, host=vm.host, power=vm.power, seen=vm.seen)
    findings: list[VmFinding] = []
    while len(findings) < _MAX_FINDINGS and (finding := _next_finding(facts, reports)) is not None:
        findings.append(_without_blame(facts, finding, off_on_purpose=vm.seen is None) if is_adopted else finding)
        facts = findings[-1].vm
    return tuple(findings)


def _next_finding(vm: VmFacts, reports: VmReports) -> VmFinding | None:
    # A moment later it will be clear: do not report what is half done.
    if any(machine.state is ObservedState.CHANGING for machine in reports.found.values()):
        return None
    active = sorted(host for host, machine in reports.found.items() if machine.is_active)
    if len(active) > 1:
        return _on_several_hosts(vm, active)
    if active:
        return _active(vm, active[0], reports.found[active[0]])
    return _inactive(vm, reports)


def _on_several_hosts(vm: VmFacts, hosts: list[str]) -> VmFinding | None:
    if _condition(vm) is VmCondition.DUPLICATE:
        return _still_so(vm)
    names = f"{', '.join(hosts[:-1])} and {hosts[-1]}"
    return VmFinding(
        vm=replace(vm, seen=LastSeen(condition=VmCondition.DUPLICATE)),
        kind=UnannouncedKind.DUPLICATED,
        text=f"{vm.name} is active on {names} at once: end all but one now, because two copies destroy its disks",
        compares_hosts=True,
    )


def _active(vm: VmFacts, host: str, machine: ObservedMachine) -> VmFinding | None:
    known = vm.seen.instance if vm.seen is not None and host == vm.host else ""
    there = replace(vm, host=host, power=PowerState.RUNNING, seen=LastSeen(instance=machine.instance or known))
    if vm.power is not PowerState.RUNNING:
        text = f"{vm.name} started on {host}: started {NOT_BY_US}"
        return VmFinding(vm=there, kind=UnannouncedKind.STARTED, text=text, compares_hosts=host != vm.host)
    if host != vm.host:
        text = f"{vm.name} is on {host} instead of {vm.host or 'no host'}: moved {NOT_BY_US}"
        return VmFinding(vm=there, kind=UnannouncedKind.MOVED, text=text, compares_hosts=True)
    return _paused(vm, machine) if machine.state is ObservedState.PAUSED else _running(vm, there)


_PAUSE_REASONS = {
    StateCause.DISK_ERROR: "because of a disk error, without notice",
    StateCause.WATCHDOG: "by its watchdog, without notice",
}


def _paused(vm: VmFacts, machine: ObservedMachine) -> VmFinding | None:
    has_crashed = machine.cause is StateCause.CRASH
    condition = VmCondition.CRASHED if has_crashed else VmCondition.PAUSED
    if _condition(vm) is condition:
        return _still_so(vm)
    text = f"is paused on {vm.host}: paused {_PAUSE_REASONS.get(machine.cause, NOT_BY_US)}"
    if has_crashed:
        text = f"does not run on {vm.host}: its guest crashed, without notice"
    return VmFinding(
        vm=replace(vm, seen=LastSeen(condition=condition, instance=machine.instance)),
        kind=UnannouncedKind.CRASHED if has_crashed else UnannouncedKind.PAUSED,
        text=f"{vm.name} {text}",
    )


def _running(vm: VmFacts, now: VmFacts) -> VmFinding | None:
    """Compare a VM that runs where it should with how it is `now`: whether it is still the same process."""
    old, new = (facts.seen.instance if facts.seen is not None else "" for facts in (vm, now))
    # Another process than before: it was off in between, even if nobody saw it.
    if old and new and old != new:
        text = f"{vm.name} was restarted on {vm.host}: it crashed or was stopped, and was started {NOT_BY_US}"
        return VmFinding(vm=now, kind=UnannouncedKind.RESTARTED, text=text)
    match _condition(vm):
        case VmCondition.PAUSED | VmCondition.CRASHED:
            text = f"{vm.name} runs again on {vm.host}: resumed {NOT_BY_US}"
            return VmFinding(vm=now, kind=UnannouncedKind.RESUMED, text=text)
        case VmCondition.DUPLICATE:
            return VmFinding(vm=now, text=f"{vm.name} is active only on {vm.host} now", compares_hosts=True)
        case _:
            return VmFinding(vm=now) if vm.seen != now.seen else None


def _inactive(vm: VmFacts, reports: VmReports) -> VmFinding | None:
    """Compare a VM that no host has in memory, of those that have answered."""
    if not vm.host:
        return _as_expected(vm)
    # Silence says nothing about the VM.
    if not reports.own_host_answered:
        return None
    here = reports.found.get(vm.host)
    if here is None:
        # Only if every host has answered: it may be on one that is silent.
        return _not_on_its_host(vm, reports) if reports.all_hosts_answered else None
    return _off(vm, here, reports) if vm.power is PowerState.RUNNING else _as_expected(vm)


def _as_expected(vm: VmFacts) -> VmFinding | None:
    """Record that a VM that should be off is off; that it crashed is not forgotten."""
    has_crashed = _condition(vm) is VmCondition.CRASHED
    seen = LastSeen(condition=VmCondition.CRASHED if has_crashed else VmCondition.NORMAL)
    return VmFinding(vm=replace(vm, seen=seen)) if vm.seen != seen else None


def _not_on_its_host(vm: VmFacts, reports: VmReports) -> VmFinding | None:
    """Compare a VM that its host does not list: it is off on another host, or no host has it."""
    elsewhere = [host for host, machine in reports.found.items() if machine.cause is not StateCause.MIGRATED]
    if len(elsewhere) > 1:
        return None  # which of the definitions is the VM cannot be told
    if elsewhere:
        text = f"{vm.name} is defined on {elsewhere[0]} instead of {vm.host}: moved {NOT_BY_US}"
        moved = replace(vm, host=elsewhere[0], seen=LastSeen(condition=_condition(vm)))
        return VmFinding(vm=moved, kind=UnannouncedKind.MOVED, text=text, compares_hosts=True, needs_all_hosts=True)
    if _condition(vm) is VmCondition.MISSING:
        return _still_so(vm)
    return VmFinding(
        vm=replace(vm, power=PowerState.STOPPED, seen=LastSeen(condition=VmCondition.MISSING)),
        kind=UnannouncedKind.REMOVED,
        text=f"no host has {vm.name}: removed from {vm.host} {NOT_BY_US}",
        compares_hosts=True,
        needs_all_hosts=True,
    )


_STOPS = {  # why it is off → what that is, its condition then, and the words for it
    StateCause.GUEST: (UnannouncedKind.SHUT_DOWN, VmCondition.NORMAL, "its guest shut down, without notice"),
    StateCause.OPERATOR: (UnannouncedKind.POWERED_OFF, VmCondition.NORMAL, f"powered off {NOT_BY_US}"),
    StateCause.CRASH: (UnannouncedKind.CRASHED, VmCondition.CRASHED, "it crashed, without notice"),
    StateCause.MIGRATED: (
        UnannouncedKind.STOPPED,
        VmCondition.CRASHED,
        "it left the host by a migration, without notice, and no host runs it",
    ),
}
_UNKNOWN_STOP = (
    UnannouncedKind.STOPPED,
    VmCondition.CRASHED,
    "it stopped without notice, and its host does not say why",
)


def _off(vm: VmFacts, machine: ObservedMachine, reports: VmReports) -> VmFinding | None:
    """Compare a VM that should run and is off on its host."""
    has_left = machine.cause is StateCause.MIGRATED
    # It may run on a host that has not answered yet.
    if has_left and not reports.all_hosts_answered:
        return None
    kind, condition, reason = _STOPS.get(machine.cause, _UNKNOWN_STOP)
    return VmFinding(
        vm=replace(vm, power=PowerState.STOPPED, seen=LastSeen(condition=condition)),
        kind=kind,
        text=f"{vm.name} is off on {vm.host}: {reason}",
        compares_hosts=has_left,
        needs_all_hosts=has_left,
    )


def _without_blame(vm: VmFacts, finding: VmFinding, *, off_on_purpose: bool) -> VmFinding:
    # A VM that is off at its first comparison is so on purpose; one that an act has left off is not.
    now = finding.vm
    match finding.kind:
        case None | UnannouncedKind.DUPLICATED:
            return finding
        case UnannouncedKind.MOVED:
            text = f"{vm.name} is on {now.host}, and not on {vm.host or 'no host'}: the fleet follows its hosts"
        case UnannouncedKind.REMOVED:
            text = f"no host has {vm.name}: define it on {now.host}, or correct the fleet"
        case UnannouncedKind.PAUSED:
            text = f"{vm.name} is paused on {now.host}"
        case UnannouncedKind.CRASHED if now.power is PowerState.RUNNING:
            text = f"{vm.name} does not run on {now.host}: its guest has crashed"
        case UnannouncedKind.STARTED | UnannouncedKind.RESTARTED | UnannouncedKind.RESUMED:
            text = f"{vm.name} runs on {now.host}: the fleet follows its hosts"
        case _:
            text = f"{vm.name} is off on {now.host}: the fleet follows its hosts"
            condition = VmCondition.NORMAL if off_on_purpose else VmCondition.CRASHED
            now = replace(now, seen=LastSeen(condition=condition))
    return replace(finding, vm=now, kind=None, text=text)


def _still_so(vm: VmFacts) -> VmFinding | None:
    """Record that a failed act has not changed what was known about the VM; None if that was certain."""
    if vm.seen is None or not vm.seen.is_uncertain:
        return None
    return VmFinding(vm=replace(vm, seen=replace(vm.seen, is_uncertain=False)))


def _condition(vm: VmFacts) -> VmCondition:
    return vm.seen.condition if vm.seen is not None else VmCondition.NORMAL
