"""What hosts report about their VMs, as hypervisors that observe hosts return it.

These are values that may come from another process: they say what a host listed, and decide nothing.
`core.unannounced` compares them with the fleet.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
