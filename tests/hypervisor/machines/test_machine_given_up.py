"""Acts that the service gave up because a host failed: a later act on the VM settles them first (spec §6.4)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.hypervisor.interface import ActDone, ActUnderWay
from forewarn.hypervisor.machines.driver import MachineState
from tests.support.machine_acts import MachineSite, machine_act

RESCUE = machine_act(Verb.REDEPLOY, event_id="EVENT-2", to_host="host-3", abrupt=True)


@pytest.fixture
def site(tmp_path: Path) -> MachineSite:
    site = MachineSite(tmp_path)
    site.hosts.add("host-1", "web-1")
    return site


def test_a_vm_that_a_given_up_freeze_paused_is_resumed(site: MachineSite) -> None:
    assert isinstance(site.perform(machine_act(Verb.FREEZE), times=1), ActUnderWay)
    done = site.perform_until_done(machine_act(Verb.POWER_OFF, event_id="EVENT-2"))
    assert done.ok
    assert [entry.what for entry in site.hosts.log] == ["paused", "resumed", "off"]
    given_up = site.perform_until_done(machine_act(Verb.FREEZE))
    assert given_up == ActDone(ok=False, note="given up in favour of power-off EVENT-2:web-1")


def test_a_migration_under_way_is_undone_before_the_vm_is_redeployed(site: MachineSite) -> None:
    site.behaviour.migration_s = math.inf
    site.perform(machine_act(Verb.MIGRATE), times=1)
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING, "host-2": MachineState.RECEIVING}
    assert site.perform_until_done(RESCUE).ok
    assert site.hosts.states("web-1") == {"host-3": MachineState.RUNNING}


def test_a_vm_that_had_been_sent_goes_on_there_before_it_is_redeployed(site: MachineSite) -> None:
    site.behaviour.refused["resume"] = "the destination has no memory for it now"
    act = machine_act(Verb.MIGRATE)
    site.perform(act, times=3)
    assert site.hosts.states("web-1") == {"host-1": MachineState.SENT, "host-2": MachineState.RECEIVED}
    site.hosts.crash("host-1")
    site.confirmed_down.add("host-1")
    answer = site.perform(RESCUE, times=5)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == "an earlier migrate must end first: the destination has no memory for it now"
    site.behaviour.refused.clear()
    assert site.perform_until_done(RESCUE).ok
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF, "host-3": MachineState.RUNNING}
    assert [entry.what for entry in site.hosts.log if entry.host == "host-2"] == ["arrived", "off", "removed"]


def test_a_vm_that_had_left_the_failed_host_moves_from_where_it_is(site: MachineSite) -> None:
    assert site.perform_until_done(machine_act(Verb.MIGRATE)).ok  # the service did not get to know this
    site.hosts.crash("host-1")
    site.confirmed_down.add("host-1")
    site.behaviour.unreachable.add("host-2")
    answer = site.perform(RESCUE, times=5)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == "host-2, to which web-1 was moved, does not answer: waiting for it"
    site.behaviour.unreachable.discard("host-2")
    assert site.perform_until_done(RESCUE).ok
    assert site.hosts.states("web-1") == {"host-3": MachineState.RUNNING}


def test_a_redeploy_waits_until_it_is_certain_where_a_given_up_migration_left_the_vm(site: MachineSite) -> None:
    site.behaviour.migration_s = math.inf
    site.perform(machine_act(Verb.MIGRATE), times=1)
    site.behaviour.unreachable.add("host-1")
    answer = site.perform(RESCUE, times=10)
    assert isinstance(answer, ActUnderWay)
    assert answer.note.startswith("an earlier migrate must end first: host-1 does not answer, and web-1 may still run")
    assert site.hosts.states("web-1").get("host-3") is None
    site.behaviour.can_fence = True
    assert site.perform_until_done(RESCUE).ok
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF, "host-3": MachineState.RUNNING}
