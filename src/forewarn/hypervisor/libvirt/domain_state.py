"""Pure translation of libvirt's states and lifecycle events, by their numbers, into forewarn's own.

The numbers are libvirt's stable interface (virDomainState, virDomainEventType and their reasons).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from forewarn.hypervisor.libvirt.domain_xml import MoveMark
from forewarn.hypervisor.machines.driver import MachineState


class DomainState(IntEnum):
    """The states of a domain that matter here; libvirt has others, which all mean that it runs."""

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
    """What libvirt reports about one domain."""

    state: int
    reason: int = 0
    has_job: bool = False  # a migration from here, or another long operation, is active
    is_incoming: bool = False  # it is the destination of an active migration
    live_move: MoveMark | None = None  # in its running definition
    stored_move: MoveMark | None = None  # in its stored definition


def machine_state(status: DomainStatus) -> MachineState:
    """Return the state of a VM, from what libvirt reports and our marks say about live migrations.

    A VM that is being sent counts as running until its migration is over, although libvirt pauses it at the end.
    """
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
    CRASHED = "crashed"
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
    """Return what a lifecycle event means; None for a step of a change that another event reports."""
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
