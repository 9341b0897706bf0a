"""What a hypervisor knows about its hosts, for the choice of destinations. Optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from forewarn.core.placement import DestinationHints
from forewarn.machines.interface import Hypervisor


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
