"""Acts on VMs that the platform has halted, because a disk cannot be written or the guest has crashed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone
from tests.support.machine_acts import MachineSite, machine_act

REASON = "web-1 is halted by an error on host-1 (no space is left for disk vda)"


@pytest.fixture
def site(tmp_path: Path) -> MachineSite:
    """A VM on host-1, whose disk is full."""
    site = MachineSite(tmp_path)
    site.hosts.add("host-1", "web-1", MachineState.HALTED)
    site.behaviour.broken_disks_on.add("host-1")
    return site


def log_of(site: MachineSite) -> list[str]:
    return [f"{entry.what} on {entry.host}" for entry in site.hosts.log]


def test_a_halted_vm_is_not_frozen_and_the_outcome_says_why(site: MachineSite) -> None:
    done = site.perform_until_done(machine_act(Verb.FREEZE))
    assert done == ActDone(ok=True, note=f"freeze took 0 s; {REASON}, and was not paused")
    assert log_of(site) == []


def test_a_vm_that_is_halted_when_its_freeze_ends_fails_the_act_with_the_reason(site: MachineSite) -> None:
    site.hosts.machines["host-1"]["web-1"].state = MachineState.RUNNING
    site.behaviour.broken_disks_on.clear()
    act = machine_act(Verb.FREEZE)
    site.perform(act, times=1)
    site.behaviour.broken_disks_on.add("host-1")
    assert site.perform_until_done(act) == ActDone(ok=False, note=REASON)
    assert log_of(site) == ["paused on host-1", "resumed on host-1"]


@pytest.mark.parametrize("verb", [Verb.REBOOT, Verb.START])
def test_a_reboot_or_start_of_a_halted_vm_tries_once_and_fails_while_its_error_is_there(
    site: MachineSite, verb: Verb
) -> None:
    assert site.perform_until_done(machine_act(verb)) == ActDone(ok=False, note=REASON)
    assert len(site.hosts.log) == 1
    site.behaviour.broken_disks_on.clear()
    assert site.perform_until_done(machine_act(verb, event_id="EVENT-2")).ok
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_a_halted_vm_moves_to_a_host_where_its_disk_works(site: MachineSite, verb: Verb) -> None:
    assert site.perform_until_done(machine_act(verb)).ok
    assert site.hosts.states("web-1") == {"host-2": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_a_vm_that_is_halted_on_its_new_host_too_has_moved_and_the_outcome_says_why(
    site: MachineSite, verb: Verb
) -> None:
    site.behaviour.broken_disks_on.add("host-2")
    done = site.perform_until_done(machine_act(verb))
    assert done.ok
    assert done.note.endswith(REASON.replace("host-1", "host-2"))
    assert site.hosts.states("web-1") == {"host-2": MachineState.HALTED}


@pytest.mark.parametrize(
    ("verb", "states"),
    [
        (Verb.POWER_OFF, {"host-1": MachineState.OFF}),
        (Verb.DEALLOCATE, {}),
        (Verb.DELETE, {}),
        (Verb.EVICT, {}),
        (Verb.REIMAGE, {"host-1": MachineState.HALTED}),
    ],
)
def test_a_halted_vm_can_be_ended(site: MachineSite, verb: Verb, states: dict[str, MachineState]) -> None:
    assert site.perform_until_done(machine_act(verb)).ok is (verb is not Verb.REIMAGE)
    assert site.hosts.states("web-1") == states
