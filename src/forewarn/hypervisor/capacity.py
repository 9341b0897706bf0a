"""What a hypervisor knows about its hosts, for the choice of destinations. Optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from forewarn.core.placement import DestinationHints
from forewarn.hypervisor.interface import Hypervisor


@runtime_checkable
class CapacityHypervisor(Protocol):
    """A hypervisor that knows how much memory its hosts have free, and what VMs need.

    The service reads it to choose the hosts to which VMs move. Memory is in MiB: free by host (`free_mib`), needed by
    size (`size_mib`) or by VM (`vm_mib`); anything without an entry is not known. `incompatible_hosts` has, by VM, the
    hosts to which the VM cannot be migrated live, `silent_hosts` the hosts that did not answer the last time. The
    service reads all of this while it decides, so it must be in memory already: the hypervisor refreshes it in the
    background.
    """

    @property
    def free_mib(self) -> Mapping[str, int]:
        """Memory in MiB that is free for more VMs, by the name of the host.

        A host whose free memory is not known, such as one that did not answer last time, has no entry. Names must be
        spelled as in the fleet, letter case included. The memory that VMs on their way to the host will need is not
        subtracted.
        """

    @property
    def size_mib(self) -> Mapping[str, int]:
        """Memory of a VM in MiB, by its size in the fleet file, such as Standard_D2s_v5.

        A size whose memory is not known has no entry: such a VM counts as one that needs nothing. Sizes are compared
        with their letter case.
        """

    @property
    def vm_mib(self) -> Mapping[str, int]:
        """Memory of single VMs in MiB, by the VM's name; it takes precedence over the VM's size.

        A VM without an entry needs what `size_mib` has for its size. If VMs in two resource groups have the same name,
        it has only one of them.
        """

    @property
    def incompatible_hosts(self) -> Mapping[str, frozenset[str]]:
        """Hosts that cannot run the CPU of a VM, by the VM's name: it cannot be migrated to them live.

        A VM without an entry can run on all hosts, as far as is known.
        """

    @property
    def silent_hosts(self) -> frozenset[str]:
        """Names of the hosts that did not answer, or refused, when the hypervisor last looked at them.

        Empty before the hypervisor has looked. VMs move to these hosts only as a last choice.
        """


@runtime_checkable
class CpuHypervisor(Protocol):
    """A hypervisor that knows which CPUs its running VMs need, and compares CPUs with its hosts.

    A CPU is a text that only drivers read; the drivers of all hosts must understand the same texts. `vm_cpus` has the
    CPUs that VMs need, by the VM's name; `can_run_cpu` compares such a CPU with a host.
    """

    @property
    def vm_cpus(self) -> Mapping[str, str]:
        """The CPU that each running VM needs, by the VM's name, as a text for `can_run_cpu`.

        VMs that any host can run, and VMs whose CPU the hypervisor cannot compare, have no entry.
        """

    async def can_run_cpu(self, host: str, cpu: str) -> bool | None:
        """Return whether a VM with this CPU can be migrated live to the host; None if that is not known now.

        `cpu` is a text from `vm_cpus` of this or another host's hypervisor. `host` is the name of a host of this
        hypervisor, spelled as in `observed_hosts`; the result is None for any other name. It is True if the host cannot
        compare CPUs. Raises nothing for a host that does not answer.
        """


def destination_hints(hypervisor: Hypervisor, unreachable_hosts: frozenset[str]) -> DestinationHints:
    """Return what is known about destinations now: memory, CPUs, and which hosts do not answer.

    Hosts that do not answer are `unreachable_hosts` (names), and the hypervisor's `silent_hosts`. If the hypervisor is
    not a `CapacityHypervisor`, the hints have only `unreachable_hosts`. Reads memory only, and asks no host.
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
