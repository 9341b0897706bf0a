"""Acts that the service gave up because a host failed: a later act on the VM settles them first (spec §6.4)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay
from tests.support.disturbed_calls import Disturbance, DisturbedCalls
from tests.support.machine_acts import MachineSite, machine_act

START_ON_2 = machine_act(Verb.START, from_host="", to_host="host-2")
START_ON_3 = machine_act(Verb.START, event_id="EVENT-2", from_host="", to_host="host-3")
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


def test_a_vm_that_a_given_up_freeze_paused_is_resumed_although_the_disk_of_the_service_was_full(
    site: MachineSite,
) -> None:
    assert isinstance(site.perform(machine_act(Verb.FREEZE), times=1), ActUnderWay)
    site.behaviour.full_disk = True
    with pytest.raises(ActNotTried):
        site.perform(machine_act(Verb.POWER_OFF, event_id="EVENT-2"))
    site.behaviour.full_disk = False
    assert site.perform_until_done(machine_act(Verb.POWER_OFF, event_id="EVENT-2")).ok
    assert [entry.what for entry in site.hosts.log] == ["paused", "resumed", "off"]


def test_a_full_disk_of_the_service_is_not_taken_for_silence_of_the_host_that_a_vm_moved_to(site: MachineSite) -> None:
    assert site.perform_until_done(machine_act(Verb.MIGRATE)).ok  # the service did not get to know this
    site.behaviour.full_disk = True
    with pytest.raises(ActNotTried):
        site.perform(RESCUE)


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


def test_a_redeploy_waits_for_a_host_that_refuses_to_say_whether_the_vm_had_moved_there(site: MachineSite) -> None:
    assert site.perform_until_done(machine_act(Verb.MIGRATE)).ok  # the service did not get to know this
    site.behaviour.refused["state on host-2"] = "permission denied"
    answer = site.perform(RESCUE, times=3)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == "it is not known whether web-1 still runs on host-2, to which it was moved: permission denied"
    site.behaviour.refused.clear()
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


@pytest.fixture
def started_site(tmp_path: Path) -> MachineSite:
    """A VM that runs on host-2, which became silent before it could say so; the start was then given up."""
    site = MachineSite(tmp_path)
    site.hosts.disks.add("web-1")
    site.behaviour.silent_after = "power_on"
    assert isinstance(site.perform(START_ON_2, times=2), ActUnderWay)
    site.behaviour.silent_after = ""
    assert site.hosts.states("web-1") == {"host-2": MachineState.RUNNING}
    return site


def test_a_vm_whose_start_was_given_up_is_powered_off_there_before_it_starts_elsewhere(
    started_site: MachineSite,
) -> None:
    started_site.behaviour.unreachable.clear()
    assert started_site.perform_until_done(START_ON_3).ok
    assert started_site.hosts.states("web-1") == {"host-3": MachineState.RUNNING}
    on_host_2 = [entry.what for entry in started_site.hosts.log if entry.host == "host-2"]
    assert on_host_2 == ["booted", "fresh disk", "off", "removed"]
    given_up = started_site.perform_until_done(START_ON_2)
    assert given_up == ActDone(ok=False, note="given up in favour of start EVENT-2:web-1")


def test_a_start_waits_until_it_is_certain_that_a_given_up_start_elsewhere_does_not_run(
    started_site: MachineSite,
) -> None:
    answer = started_site.perform(START_ON_3, times=20)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == (
        "an earlier start must end first: host-2 does not answer, and web-1 may still run there: "
        "fence host-2, or confirm that it is down once it is certain that web-1 does not run there"
    )
    assert answer.waits_for_host == "host-2"
    assert started_site.hosts.states("web-1") == {"host-2": MachineState.RUNNING}
    started_site.hosts.crash("host-2")
    started_site.confirmed_down.add("host-2")
    assert started_site.perform_until_done(START_ON_3).ok
    assert started_site.hosts.states("web-1") == {"host-2": MachineState.OFF, "host-3": MachineState.RUNNING}


def test_a_start_on_the_host_of_a_given_up_start_takes_over_the_vm_as_it_is(started_site: MachineSite) -> None:
    started_site.behaviour.unreachable.clear()
    again = machine_act(Verb.START, event_id="EVENT-2", from_host="", to_host="host-2")
    assert started_site.perform_until_done(again).ok
    assert [entry.what for entry in started_site.hosts.log] == ["booted", "fresh disk"]


def test_a_vm_is_not_deleted_while_its_given_up_start_may_run(started_site: MachineSite) -> None:
    delete = machine_act(Verb.DELETE, event_id="EVENT-2", from_host="")
    assert isinstance(started_site.perform(delete, times=20), ActUnderWay)
    assert started_site.hosts.disks == {"web-1"}
    started_site.behaviour.unreachable.clear()
    assert started_site.perform_until_done(delete).ok
    assert (started_site.hosts.states("web-1"), started_site.hosts.disks) == ({}, set())


def test_a_start_waits_while_another_program_migrates_the_vm_of_a_given_up_start(started_site: MachineSite) -> None:
    started_site.behaviour.unreachable.clear()
    started_site.hosts.machines["host-2"]["web-1"].state = MachineState.SENT
    answer = started_site.perform(START_ON_3, times=20)
    assert isinstance(answer, ActUnderWay)
    assert "web-1 is sent on host-2 in a migration that is not known here" in answer.note


@pytest.mark.parametrize("kind", [Disturbance.KILL_BEFORE, Disturbance.KILL_AFTER])
def test_a_vm_runs_once_although_its_start_was_given_up_at_any_call(tmp_path: Path, kind: Disturbance) -> None:
    site = MachineSite(tmp_path)
    calls = DisturbedCalls()
    site.hosts.disks.add("web-1")
    assert site.perform_until_done(START_ON_2, calls=calls).ok
    for number in range(calls.calls):
        vm = f"vm-{number}"
        site.hosts.disks.add(vm)
        first = machine_act(Verb.START, vm=vm, from_host="", to_host="host-2")
        site.perform(first, calls=DisturbedCalls(number=number, kind=kind), times=1)
        second = machine_act(Verb.START, vm=vm, event_id="EVENT-2", from_host="", to_host="host-3")
        done = site.perform_until_done(second)
        running = [host for host, state in site.hosts.states(vm).items() if state is MachineState.RUNNING]
        assert running == (["host-3"] if done.ok else ["host-2"]), f"{kind} call {number}: {done.note}"
