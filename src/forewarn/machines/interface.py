"""The `Hypervisor` interface: perform an act, and either it is done or it is under way.

A hypervisor that also implements `ObservingHypervisor` reports its VMs, so that changes by others are found.

`forewarn.conformance` holds the tests that every implementation must pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.placement import DestinationHints
from forewarn.core.unannounced import HostObservation
from forewarn.errors import Refused, Remedy, Unavailable


class ActDone(msgspec.Struct, frozen=True):
    """The act is over. Performing it again returns the same outcome, until it is forgotten as old."""

    ok: bool  # False: the act failed
    note: str = ""  # for people, in the history: what happened, or why it failed


class ActUnderWay(msgspec.Struct, frozen=True):
    """The act is not over yet: perform it again, with the same id, at lab time `at` or later."""

    at: LabTime
    note: str = ""  # for people: progress, or what it waits for
    waits_for_host: str = ""  # a host (by name) that does not answer, and without which it cannot go on; "": none


class ActNotTried(Unavailable):
    """A local problem, such as a full disk, prevented an attempt to perform an act or to record it.

    The attempt does not count as one: the act is performed again later, however often this happens.
    """


class Hypervisor(Protocol):
    """Performs acts on VMs, each at most once. Implementations pass the suite in `forewarn.conformance`."""

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Start this act, or return how it is going; does not wait for lab time to pass.

        An act, known by its id, takes effect at most once, however often this is called, even concurrently or after
        reopening; but an operator's command without a check runs again if the service did not see its end. While
        another call for the VM runs, the answer may only be ActUnderWay. Unavailable means that the outcome is unknown:
        call it again later.
        """

    async def close(self) -> None:
        """Release connections, files and tasks; may be called twice. A later hypervisor finds acts under way."""


@runtime_checkable
class ObservingHypervisor(Protocol):
    """A hypervisor whose hosts can list their VMs."""

    @property
    def observed_hosts(self) -> tuple[str, ...]:
        """The names of the hosts that can be observed, as `observe` takes them, in no particular order."""

    @property
    def observe_interval_s(self) -> float:
        """How many seconds of real time to wait between two observations of a host; 0: never observe."""

    async def observe(self, host: str) -> HostObservation:
        """Return what a host reports about all its VMs, or in `problem` why it does not answer."""

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        """Yield the name of a host whenever its VMs may have changed, as a reason to observe it at once.

        Several changes may be yielded as one, and changes while nobody iterates not at all.
        """


# What a hypervisor knows about its hosts, for the choice of destinations. Optional.


@runtime_checkable
class CapacityHypervisor(Protocol):
    """A hypervisor that knows how much memory its hosts have free, and what VMs need.

    The service reads all of this while it decides, so it must be in memory already: the hypervisor refreshes it in the
    background. What has no entry is not known. Names of VMs are spelled as in the fleet.
    """

    @property
    def free_mib(self) -> Mapping[str, int]:
        """Memory in MiB that is free for more VMs, by host; VMs on their way there are not subtracted."""

    @property
    def size_mib(self) -> Mapping[str, int]:
        """Memory of a VM in MiB, by its size in the fleet file; a VM without one counts as needing nothing."""

    @property
    def vm_mib(self) -> Mapping[str, int]:
        """Memory of single VMs in MiB, by the VM's name; it takes precedence over the VM's size."""

    @property
    def incompatible_hosts(self) -> Mapping[str, frozenset[str]]:
        """Hosts that cannot run the CPU of a VM, by the VM's name: it cannot be migrated to them live."""

    @property
    def silent_hosts(self) -> frozenset[str]:
        """Names of the hosts that did not answer, or refused, when the hypervisor last looked at them."""


@runtime_checkable
class CpuHypervisor(Protocol):
    """A hypervisor that compares the CPUs of running VMs with its hosts. Only drivers read the texts of CPUs."""

    @property
    def vm_cpus(self) -> Mapping[str, str]:
        """The CPU that each running VM needs, by the VM's name, as a text for `can_run_cpu`."""

    async def can_run_cpu(self, host: str, cpu: str) -> bool | None:
        """Return whether a VM with this CPU can be migrated live to the host; None if that is not known now."""


def destination_hints(hypervisor: Hypervisor, unreachable_hosts: frozenset[str]) -> DestinationHints:
    """Return what is known about destinations now: memory, CPUs, and which hosts do not answer."""
    if isinstance(hypervisor, CapacityHypervisor):
        return DestinationHints(
            free_mib={host.casefold(): mib for host, mib in hypervisor.free_mib.items()},
            size_mib=hypervisor.size_mib,
            vm_mib=hypervisor.vm_mib,
            incompatible=hypervisor.incompatible_hosts,
            unreachable=frozenset(map(str.casefold, unreachable_hosts | hypervisor.silent_hosts)),
        )
    return DestinationHints(unreachable=frozenset(map(str.casefold, unreachable_hosts)))


# Which verbs a hypervisor can perform: requests for other maintenance are refused at once.


@runtime_checkable
class LimitedHypervisor(Protocol):
    """A hypervisor that says which verbs it can perform; one without this is taken to perform all of them."""

    @property
    def supported_verbs(self) -> frozenset[Verb]:
        """The verbs that the hypervisor can perform with its settings; they do not change while it is open."""

    @property
    def verb_setting(self) -> str:
        """The setting that adds a verb, with `{verb}` in it: `[commands.{verb}]`; "" if no setting does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbSupport:
    """The verbs that the hypervisor of a service can perform, and the setting, if any, that adds others."""

    verbs: frozenset[Verb] = frozenset(Verb)  # that it can perform
    setting: str = ""  # with `{verb}` in it; "": no setting adds a verb

    @classmethod
    def of(cls, hypervisor: Hypervisor) -> VerbSupport:
        if isinstance(hypervisor, LimitedHypervisor):
            return cls(verbs=hypervisor.supported_verbs, setting=hypervisor.verb_setting)
        return cls()

    def require(self, verb: Verb) -> None:
        """Raise Refused if the hypervisor cannot perform this verb; else do nothing."""
        if verb in self.verbs:
            return
        message = f"the hypervisor of this service cannot {verb.rules.phrase or f'{verb} VMs'}"
        if self.setting:
            raise Refused(message, Remedy.ADD_VERB, setting=self.setting.format(verb=verb))
        raise Refused(message, Remedy.CHANGE_HYPERVISOR)


# Whether a process is alive, safe against reused process ids: compares start times (/proc, Linux).
#
# Shared by the command hypervisor and the process hypervisor.

_STATE_FIELD, _START_TIME_FIELD = 0, 19  # after the command's name; fields 3 and 22 in proc(5)


def process_start_time(pid: int) -> str:
    """Return when the process with this pid started, in clock ticks since boot, as text."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()  # the name before it may contain anything
    return "" if fields[_STATE_FIELD] in (b"Z", b"X") else fields[_START_TIME_FIELD].decode()


def is_process_alive(pid: int, started: str) -> bool:
    """Return whether this process, and not a later one with the same pid, is alive."""
    return pid > 0 and started != "" and process_start_time(pid) == started


async def wait_for_process_exit(pid: int, started: str, *, within_s: float) -> bool:
    """Wait until the process is gone, for at most `within_s` real seconds; return whether it is gone."""
    deadline = asyncio.get_running_loop().time() + within_s
    interval_s = 0.01
    while is_process_alive(pid, started):
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(interval_s)
        interval_s = min(0.2, interval_s * 1.5)
    return True
