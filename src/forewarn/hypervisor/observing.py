"""What a hypervisor reports about VMs outside of acts, so that changes by others are found. Optional."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from forewarn.core.observation import HostObservation


@runtime_checkable
class ObservingHypervisor(Protocol):
    """A hypervisor whose hosts can list their VMs.

    It reports, and decides nothing; `control.unannounced_changes` compares the reports with the fleet and records what
    differs. One call lists all VMs of one host.
    """

    @property
    def observed_hosts(self) -> tuple[str, ...]:
        """The names of the hosts that can be observed, as the settings spell them."""

    @property
    def observe_interval_s(self) -> float:
        """How often each host is to be observed, in seconds of real time; 0: never."""

    async def observe(self, host: str) -> HostObservation:
        """Return what a host reports about all its VMs, or why it does not answer. Changes nothing.

        Raises Unavailable if the hypervisor cannot tell which VMs it is acting on itself.
        """

    def changed_hosts(self) -> AsyncGenerator[str, None]:
        """Yield the name of a host whenever its VMs may have changed, as a reason to observe it at once.

        Changes that happen while nobody iterates, or while the host does not answer, are not yielded.
        """
