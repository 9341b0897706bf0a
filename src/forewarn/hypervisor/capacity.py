"""What a hypervisor knows about its hosts, for the choice of destinations. Optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from forewarn.core.placement import DestinationHints
from forewarn.hypervisor.interface import Hypervisor


@runtime_checkable
class CapacityHypervisor(Protocol):
    """A hypervisor that knows how much memory its hosts have free, and what VMs need.

    Memory is in MiB: free by host (`free_mib`), needed by size (`size_mib`) or by VM (`vm_mib`); what has no entry is
    not known. `incompatible_hosts` has, by VM, the hosts to which it cannot be migrated live, `silent_hosts` those that
    did not answer the last time. All of it is read while a decision is made, so it must be in memory already: the
    hypervisor refreshes it beside its work.
    """

    @property
    def free_mib(self) -> Mapping[str, int]:
        """Memory in MiB that is free for more VMs, by the name of the host; without unknown ones."""

    @property
    def size_mib(self) -> Mapping[str, int]:
        """Memory of a VM in MiB, by its size in the fleet file, such as Standard_D2s_v5; without unknown ones."""

    @property
    def vm_mib(self) -> Mapping[str, int]:
        """Memory of single VMs in MiB, by name, which counts instead of that of their size."""

    @property
    def incompatible_hosts(self) -> Mapping[str, frozenset[str]]:
        """Hosts that cannot run the CPU of a VM, by the VM's name: it cannot be migrated to them live.

        A VM without an entry can run on all hosts, as far as is known.
        """

    @property
    def silent_hosts(self) -> frozenset[str]:
        """Names of the hosts that did not answer when they were last looked at."""


@runtime_checkable
class CpuHypervisor(Protocol):
    """A hypervisor that knows which CPUs its running VMs need, and compares CPUs with its hosts.

    A CPU is a text in the words of its driver, which the hypervisors of all hosts must understand. `vm_cpus` has those
    that VMs need, by the VM's name; `can_run_cpu` compares one with a host.
    """

    @property
    def vm_cpus(self) -> Mapping[str, str]:
        """The CPU that each running VM needs, by the VM's name; without VMs that any host can run."""

    async def can_run_cpu(self, host: str, cpu: str) -> bool | None:
        """Return whether a VM with this CPU can be migrated live to the host; None if that is not known now."""


def destination_hints(hypervisor: Hypervisor, unreachable_hosts: frozenset[str]) -> DestinationHints:
    """Return what is known about destinations now: memory, CPUs, and which hosts do not answer.

    The last are `unreachable_hosts` (names), and those that are silent for the hypervisor. If it is no
    `CapacityHypervisor`, only `unreachable_hosts` are known. Asks no host.
    """
    if isinstance(hypervisor, CapacityHypervisor):
        return DestinationHints(
            free_mib=hypervisor.free_mib,
            size_mib=hypervisor.size_mib,
            vm_mib=hypervisor.vm_mib,
            incompatible=hypervisor.incompatible_hosts,
            unreachable=unreachable_hosts | hypervisor.silent_hosts,
        )
    return DestinationHints(unreachable=unreachable_hosts)
