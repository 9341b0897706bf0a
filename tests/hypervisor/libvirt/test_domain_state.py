"""States and lifecycle events of libvirt, by their numbers, as forewarn's own."""

from __future__ import annotations

import pytest

from forewarn.core.unannounced import ObservedMachine, ObservedState, StateCause
from forewarn.machines.driver import MachineState
from forewarn.machines.libvirt.domain_state import (
    ChangeKind,
    DomainStatus,
    ListedDomain,
    MoveMark,
    change_kind,
    machine_state,
    observed_machine,
)

RUNNING, BLOCKED, PAUSED, SHUTTING_DOWN, OFF, CRASHED, SLEEPING = range(1, 8)
BY_USER, BY_MIGRATION, BY_DISK, BY_CRASH = 1, 2, 5, 10
MIGRATED = 4


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (DomainStatus(state=RUNNING), MachineState.RUNNING),
        (DomainStatus(state=BLOCKED), MachineState.RUNNING),
        (DomainStatus(state=SHUTTING_DOWN), MachineState.RUNNING),
        (DomainStatus(state=SLEEPING), MachineState.RUNNING),
        (DomainStatus(state=RUNNING, live_move=MoveMark.RECEIVED), MachineState.RUNNING),
        (DomainStatus(state=RUNNING, is_incoming=True), MachineState.RECEIVING),
        (DomainStatus(state=PAUSED, reason=BY_USER), MachineState.PAUSED),
        (DomainStatus(state=PAUSED, reason=BY_USER, live_move=MoveMark.RECEIVED), MachineState.RECEIVED),
        (DomainStatus(state=PAUSED, is_incoming=True, live_move=MoveMark.RECEIVED), MachineState.RECEIVING),
        (DomainStatus(state=PAUSED, reason=BY_MIGRATION, has_job=True), MachineState.RUNNING),
        (DomainStatus(state=PAUSED, reason=BY_MIGRATION), MachineState.SENT),
        (DomainStatus(state=PAUSED, reason=BY_DISK), MachineState.HALTED),
        (DomainStatus(state=PAUSED, reason=BY_CRASH), MachineState.HALTED),
        (DomainStatus(state=PAUSED, reason=BY_DISK, live_move=MoveMark.RECEIVED), MachineState.HALTED),
        (DomainStatus(state=PAUSED, reason=BY_DISK, is_incoming=True), MachineState.RECEIVING),
        (DomainStatus(state=OFF), MachineState.OFF),
        (DomainStatus(state=CRASHED), MachineState.OFF),
        (DomainStatus(state=OFF, stored_move=MoveMark.RECEIVING), MachineState.RECEIVING),
        (DomainStatus(state=OFF, reason=MIGRATED), MachineState.SENT),
        (DomainStatus(state=OFF, stored_move=MoveMark.SENT), MachineState.SENT),
        (DomainStatus(state=OFF, reason=MIGRATED, stored_move=MoveMark.ENDED), MachineState.OFF),
    ],
)
def test_a_vm_has_the_state_that_libvirt_and_our_marks_report(status: DomainStatus, state: MachineState) -> None:
    assert machine_state(status) is state


@pytest.mark.parametrize(
    ("event", "detail", "kind"),
    [
        (0, 0, ChangeKind.DEFINED),
        (1, 0, ChangeKind.UNDEFINED),
        (2, 0, ChangeKind.STARTED),
        (2, 1, ChangeKind.ARRIVED),
        (3, 0, ChangeKind.PAUSED),
        (3, 1, None),  # a step of a migration
        (4, 0, ChangeKind.RESUMED),
        (4, 1, None),
        (5, 0, ChangeKind.STOPPED),
        (5, 1, ChangeKind.POWERED_OFF),
        (5, 2, ChangeKind.CRASHED),
        (5, 3, ChangeKind.LEFT),
        (5, 4, ChangeKind.POWERED_OFF),  # saved to a file
        (5, 5, ChangeKind.CRASHED),  # its process ended by itself
        (6, 0, None),  # it is shutting down: its end follows
        (7, 0, None),  # the guest sleeps
        (8, 0, ChangeKind.CRASHED),
        (99, 0, None),  # of a newer libvirt
    ],
)
def test_a_lifecycle_event_is_one_change_or_a_step_of_one(event: int, detail: int, kind: ChangeKind | None) -> None:
    assert change_kind(event, detail) is kind


@pytest.mark.parametrize(
    ("state", "reason", "observed", "cause"),
    [
        (RUNNING, 1, ObservedState.RUNNING, StateCause.UNKNOWN),
        (BLOCKED, 0, ObservedState.RUNNING, StateCause.UNKNOWN),
        (SHUTTING_DOWN, 0, ObservedState.RUNNING, StateCause.UNKNOWN),
        (SLEEPING, 0, ObservedState.RUNNING, StateCause.UNKNOWN),
        (PAUSED, 0, ObservedState.PAUSED, StateCause.OPERATOR),
        (PAUSED, BY_USER, ObservedState.PAUSED, StateCause.OPERATOR),
        (PAUSED, BY_MIGRATION, ObservedState.CHANGING, StateCause.UNKNOWN),
        (PAUSED, 3, ObservedState.CHANGING, StateCause.UNKNOWN),  # it is being saved
        (PAUSED, 5, ObservedState.PAUSED, StateCause.DISK_ERROR),
        (PAUSED, 6, ObservedState.PAUSED, StateCause.WATCHDOG),
        (PAUSED, 10, ObservedState.PAUSED, StateCause.CRASH),  # the guest's kernel has crashed
        (PAUSED, 11, ObservedState.CHANGING, StateCause.UNKNOWN),  # it is starting, or being received
        (OFF, 0, ObservedState.OFF, StateCause.UNKNOWN),
        (OFF, 1, ObservedState.OFF, StateCause.GUEST),
        (OFF, 2, ObservedState.OFF, StateCause.OPERATOR),
        (OFF, 3, ObservedState.OFF, StateCause.CRASH),
        (OFF, MIGRATED, ObservedState.OFF, StateCause.MIGRATED),
        (OFF, 5, ObservedState.OFF, StateCause.OPERATOR),  # saved to a file
        (OFF, 6, ObservedState.OFF, StateCause.CRASH),  # it could not be started
        (CRASHED, 1, ObservedState.OFF, StateCause.CRASH),
        (CRASHED, 1, ObservedState.PAUSED, StateCause.CRASH),  # and its process is kept
    ],
)
def test_a_listed_domain_is_observed_with_the_cause_that_libvirt_names(
    state: int, reason: int, observed: ObservedState, cause: StateCause
) -> None:
    is_active = observed in (ObservedState.RUNNING, ObservedState.PAUSED, ObservedState.CHANGING)
    domain = ListedDomain(name="web", number=4 if is_active else -1, state=state, reason=reason)
    assert observed_machine(domain) == ObservedMachine(state=observed, cause=cause, instance="4" if is_active else "")
