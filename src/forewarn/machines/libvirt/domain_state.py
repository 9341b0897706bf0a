"""Pure translation of libvirt's states and lifecycle events, by their numbers, into forewarn's own.

The numbers are libvirt's stable interface (virDomainState, virDomainEventType and their reasons).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from forewarn.core.observation import ObservedMachine, ObservedState, StateCause
from forewarn.machines.driver import MachineState
from forewarn.machines.libvirt.domain_xml import MoveMark


class DomainState(IntEnum):
    """The states of a libvirt domain that matter here, by libvirt's numbers; others count as RUNNING."""

    RUNNING = 1
    PAUSED = 3
    OFF = 5
    CRASHED = 6


PAUSED_FOR_MIGRATION = 2  # reason of DomainState.PAUSED
PAUSED_BY_DISK = 5  # reason of DomainState.PAUSED
HALTED_REASONS = {  # of DomainState.PAUSED, which mean that the platform has stopped the guest
    PAUSED_BY_DISK: "a disk cannot be read or written",
    6: "the guest's watchdog has expired",
    10: "the guest's kernel has crashed",
}
OFF_BY_MIGRATION = 4  # reason of DomainState.OFF: libvirtd forgets it when it restarts


class DomainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What libvirt reports about one domain, and forewarn's marks of live migrations in its definitions."""

    state: int  # libvirt's number (virDomainState), see `DomainState`
    reason: int = 0  # libvirt's number; its meaning depends on the state
    has_job: bool = False  # a migration from here, or another long operation, is active
    is_incoming: bool = False  # it is the destination of an active migration
    live_move: MoveMark | None = None  # the mark in its running definition; None: there is none
    stored_move: MoveMark | None = None  # the mark in its stored definition; None: there is none


class ListedDomain(msgspec.Struct, frozen=True, kw_only=True):
    """A domain as a list of all domains of a host has it: its state, and nothing else."""

    name: str  # the name of the domain, which is that of the VM
    number: int  # libvirt's id, which is new at each start; -1: it is off
    state: int  # libvirt's number (virDomainState), see `DomainState`
    reason: int = 0  # libvirt's number; its meaning depends on the state


_PAUSES = {  # by the reason of DomainState.PAUSED; None: a step of something that is not over
    PAUSED_FOR_MIGRATION: None,
    3: None,  # being saved
    4: None,  # being dumped
    PAUSED_BY_DISK: StateCause.DISK_ERROR,
    6: StateCause.WATCHDOG,
    8: None,  # shutting down
    9: None,  # being snapshotted
    10: StateCause.CRASH,  # the guest's kernel has crashed
    11: None,  # starting
    12: None,  # in the last phase of a post-copy migration
}
_OFF_CAUSES = {  # by the reason of DomainState.OFF
    1: StateCause.GUEST,
    2: StateCause.OPERATOR,  # destroyed
    3: StateCause.CRASH,
    OFF_BY_MIGRATION: StateCause.MIGRATED,
    5: StateCause.OPERATOR,  # saved to a file
    6: StateCause.CRASH,  # it could not be started
}


def observed_machine(domain: ListedDomain) -> ObservedMachine:
    """Return what a domain's state and reason in a list of domains say about the VM."""
    instance = str(domain.number) if domain.number >= 0 else ""
    match domain.state:
        case DomainState.PAUSED:
            cause = _PAUSES.get(domain.reason, StateCause.OPERATOR)
            if cause is None:
                return ObservedMachine(state=ObservedState.CHANGING, instance=instance)
            return ObservedMachine(state=ObservedState.PAUSED, cause=cause, instance=instance)
        case DomainState.OFF:
            return ObservedMachine(state=ObservedState.OFF, cause=_OFF_CAUSES.get(domain.reason, StateCause.UNKNOWN))
        case DomainState.CRASHED:  # its process may be kept, for a look at its memory
            state = ObservedState.PAUSED if instance else ObservedState.OFF
            return ObservedMachine(state=state, cause=StateCause.CRASH, instance=instance)
        case _:
            return ObservedMachine(state=ObservedState.RUNNING, instance=instance)


def machine_state(status: DomainStatus) -> MachineState:
    """Return the state of a VM, from libvirt's report and forewarn's marks of live migrations."""
    # A VM that is being sent counts as running until its migration is over, although libvirt pauses it at the end.
    match status.state:
        case DomainState.PAUSED:
            return _paused_state(status)
        case DomainState.OFF | DomainState.CRASHED:
            return _off_state(status)
        case _:
            return MachineState.RECEIVING if status.is_incoming else MachineState.RUNNING


def _paused_state(status: DomainStatus) -> MachineState:
    if status.is_incoming:
        return MachineState.RECEIVING
    if status.reason == PAUSED_FOR_MIGRATION:  # after the job: nobody learned whether the destination has it
        return MachineState.RUNNING if status.has_job else MachineState.SENT
    if status.reason in HALTED_REASONS:
        return MachineState.HALTED
    return MachineState.RECEIVED if status.live_move is MoveMark.RECEIVED else MachineState.PAUSED


def _off_state(status: DomainStatus) -> MachineState:
    if status.stored_move is MoveMark.RECEIVING:
        return MachineState.RECEIVING
    is_sent = status.reason == OFF_BY_MIGRATION or status.stored_move is MoveMark.SENT
    return MachineState.SENT if is_sent and status.stored_move is not MoveMark.ENDED else MachineState.OFF


class ChangeKind(StrEnum):
    """What a host reported about one of its VMs, or about itself."""

    STARTED = "started"
    STOPPED = "stopped"  # shut down by the guest
    POWERED_OFF = "powered off"  # ended by somebody without asking the guest, or saved to a file
    CRASHED = "crashed"  # or could not be started
    PAUSED = "paused"
    RESUMED = "resumed"
    ARRIVED = "arrived"  # by a migration
    LEFT = "left"  # by a migration
    DEFINED = "defined"
    UNDEFINED = "undefined"
    HOST_LOST = "host lost"  # the connection to its libvirtd ended
    HOST_FOUND = "host found"  # the connection was opened again


_STOPPED = {2: ChangeKind.CRASHED, 3: ChangeKind.LEFT, 5: ChangeKind.CRASHED, 0: ChangeKind.STOPPED}
_KINDS = {0: ChangeKind.DEFINED, 1: ChangeKind.UNDEFINED, 8: ChangeKind.CRASHED}


def change_kind(event: int, detail: int) -> ChangeKind | None:
    match event:
        case 2:
            return ChangeKind.ARRIVED if detail == 1 else ChangeKind.STARTED
        case 3 | 4 if detail == 1:  # a step of a migration
            return None
        case 3:
            return ChangeKind.PAUSED
        case 4:
            return ChangeKind.RESUMED
        case 5:
            return _STOPPED.get(detail, ChangeKind.POWERED_OFF)
        case _:
            return _KINDS.get(event)
