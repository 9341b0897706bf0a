"""VMs of silent hosts that hold locks on their disks start elsewhere once these are free (spec §6.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActUnderWay
from tests.support.machine_acts import MachineSite, machine_act


@pytest.fixture
def site(tmp_path: Path) -> MachineSite:
    """A VM on host-1, which is silent; its disks have locks."""
    site = MachineSite(tmp_path)
    site.hosts.add("host-1", "web-1")
    site.behaviour.has_locks = True
    site.behaviour.unreachable.add("host-1")
    return site


@pytest.mark.parametrize("abrupt", [False, True], ids=["planned", "after a failure"])
def test_a_vm_of_a_silent_host_starts_elsewhere_once_nobody_holds_the_locks_of_its_disks(
    site: MachineSite, abrupt: bool
) -> None:
    act = machine_act(Verb.REDEPLOY, abrupt=abrupt)
    answer = site.perform(act, times=400)
    assert isinstance(answer, ActUnderWay)
    assert "host-1 does not answer, and web-1 may still run there" in answer.note
    assert site.hosts.states("web-1")["host-1"] is MachineState.RUNNING
    assert site.hosts.states("web-1").get("host-2") in (None, MachineState.OFF)
    site.hosts.machines["host-1"]["web-1"].state = MachineState.OFF
    done = site.perform_until_done(act)
    assert done.ok
    assert "host-1 did not answer, and did not hold the locks of the disks of web-1" in done.note
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF, "host-2": MachineState.RUNNING}


def test_a_vm_that_somebody_starts_on_its_old_host_meanwhile_runs_only_there(site: MachineSite) -> None:
    site.hosts.machines["host-1"]["web-1"].state = MachineState.OFF
    site.behaviour.refused["power_on on host-2"] = "host-1 holds the locks of the disks of web-1"
    act = machine_act(Verb.REDEPLOY)
    answer = site.perform(act, times=400)
    assert isinstance(answer, ActUnderWay)
    site.hosts.machines["host-1"]["web-1"].state = MachineState.RUNNING
    site.behaviour.unreachable.clear()
    done = site.perform_until_done(act)
    note = "host-1 holds the locks of the disks of web-1; web-1 was started on host-1 again"
    assert done == ActDone(ok=False, note=note)
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


def test_the_locks_of_a_live_migration_are_not_taken_for_its_release(site: MachineSite) -> None:
    site.behaviour.unreachable.clear()
    site.behaviour.silent_after = "send"
    act = machine_act(Verb.MIGRATE)
    site.perform(act, times=1)
    site.hosts.machines["host-1"]["web-1"].state = MachineState.OFF  # nobody knows that
    answer = site.perform(act, times=20)
    assert isinstance(answer, ActUnderWay)
    assert "host-1 does not answer, and web-1 may still run there" in answer.note
    assert site.hosts.states("web-1")["host-2"] is not MachineState.RUNNING


def test_a_given_up_start_is_settled_by_free_locks_and_not_by_taken_ones(tmp_path: Path) -> None:
    site = MachineSite(tmp_path)
    site.hosts.disks.add("web-1")
    site.behaviour.has_locks = True
    site.behaviour.silent_after = "power_on"
    site.perform(machine_act(Verb.START, from_host="", to_host="host-2"), times=2)
    site.behaviour.silent_after = ""
    elsewhere = machine_act(Verb.START, event_id="EVENT-2", from_host="", to_host="host-3")
    assert isinstance(site.perform(elsewhere, times=20), ActUnderWay)
    site.hosts.machines["host-2"]["web-1"].state = MachineState.OFF
    assert site.perform_until_done(elsewhere).ok
    assert site.hosts.states("web-1") == {"host-2": MachineState.OFF, "host-3": MachineState.RUNNING}
