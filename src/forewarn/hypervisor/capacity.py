"""What a hypervisor knows about free memory on hosts, for the choice of destinations. Optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from forewarn.core.placement import DestinationHints
from forewarn.hypervisor.interface import Hypervisor


@runtime_checkable
class CapacityHypervisor(Protocol):
    """A hypervisor that knows how much memory its hosts have free, and how much VMs need.

    Both are read while a decision is made, so they must be in memory already: the hypervisor refreshes them beside its
    work. A host without an entry is one whose free memory is not known.
    """

    @property
    def free_mib(self) -> Mapping[str, int]:
        """Memory that is free for more VMs, by the name of the host."""

    @property
    def size_mib(self) -> Mapping[str, int]:
        """Memory of a VM, by its size in the fleet file, such as Standard_D2s_v5."""


def destination_hints(hypervisor: Hypervisor, unreachable_hosts: frozenset[str]) -> DestinationHints:
    """Return what is known about destinations now: their free memory, and which do not answer.

    Of a hypervisor that is no `CapacityHypervisor`, only the latter. Asks no host.
    """
    if isinstance(hypervisor, CapacityHypervisor):
        return DestinationHints(
            free_mib=hypervisor.free_mib, size_mib=hypervisor.size_mib, unreachable=unreachable_hosts
        )
    return DestinationHints(unreachable=unreachable_hosts)
