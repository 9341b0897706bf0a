"""What acts do to real VMs, verb by verb, and what they say about it."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forewarn.core.cause import Verb
from forewarn.machines.driver import MachineState
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay
from tests.support.fake_machines import FakeBehaviour
from tests.support.machine_acts import START, MachineSite, machine_act


@pytest.fixture
def site(tmp_path: Path) -> MachineSite:
    site = MachineSite(tmp_path)
    site.hosts.add("host-1", "web-1")
    return site


def log_of(site: MachineSite) -> list[str]:
    return [f"{entry.what} on {entry.host}" for entry in site.hosts.log]


def test_a_freeze_pauses_the_vm_for_the_announced_seconds_of_lab_time(site: MachineSite) -> None:
    act = machine_act(Verb.FREEZE, duration_s=9)
    assert site.perform(act, times=1) == ActUnderWay(at=START + 9, note="web-1 is paused")
    assert site.hosts.states("web-1") == {"host-1": MachineState.PAUSED}
    assert site.perform_until_done(act) == ActDone(ok=True, note="freeze took 0 s, paused for 9 s")
    assert log_of(site) == ["paused on host-1", "resumed on host-1"]


def test_a_reboot_lets_the_guest_shut_down_and_then_boots_it(site: MachineSite) -> None:
    assert site.perform_until_done(machine_act(Verb.REBOOT)) == ActDone(ok=True, note="reboot took 1 s")
    assert log_of(site) == ["off on host-1", "booted on host-1"]


def test_a_guest_that_ignores_acpi_is_reset(site: MachineSite) -> None:
    site.behaviour.shutdown_s = math.inf
    done = site.perform_until_done(machine_act(Verb.REBOOT))
    assert done.ok
    assert "; the guest ignored ACPI for 2 s and was reset" in done.note
    assert log_of(site) == ["paused on host-1", "booted on host-1"]


def test_a_guest_that_cannot_be_asked_is_reset_at_once(site: MachineSite) -> None:
    site.behaviour.refused["press_power_button"] = "the VM has no power button"
    done = site.perform_until_done(machine_act(Verb.REBOOT))
    assert done.note == "reboot took 0 s; the guest could not be asked through ACPI and was reset"


def test_a_reset_that_is_refused_does_not_leave_the_vm_paused(site: MachineSite) -> None:
    site.behaviour.shutdown_s = math.inf
    site.behaviour.refused["reset"] = "the VM has no reset button"
    assert site.perform_until_done(machine_act(Verb.REBOOT)) == ActDone(ok=False, note="the VM has no reset button")
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [Verb.FREEZE, Verb.REBOOT])
def test_a_vm_that_its_user_stopped_is_neither_paused_nor_started(site: MachineSite, verb: Verb) -> None:
    site.hosts.add("host-1", "web-2", MachineState.OFF)
    done = site.perform_until_done(machine_act(verb, vm="web-2", is_stopped=True))
    assert done.note == f"{verb} took 0 s; web-2 is stopped, and stays stopped"
    assert log_of(site) == []


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY, Verb.REBOOT])
def test_an_act_goes_on_as_soon_as_its_host_reports_a_change(site: MachineSite, verb: Verb) -> None:
    site.behaviour.migration_s = site.behaviour.shutdown_s = 0.1
    site.behaviour.reports_changes = True
    begin = site.hosts.clock.now()
    assert site.perform_until_done(machine_act(verb)).ok
    assert site.hosts.clock.now() - begin == pytest.approx(0.1)


def test_a_vm_that_was_sent_is_resumed_before_anything_is_stored_with_it(site: MachineSite) -> None:
    site.behaviour.refused["write_mark on host-2"] = "no space is left"
    assert site.perform_until_done(machine_act(Verb.MIGRATE)).ok
    assert site.hosts.states("web-1") == {"host-2": MachineState.RUNNING}


def test_a_move_that_waits_because_of_a_refusal_says_why(site: MachineSite) -> None:
    site.behaviour.refused["resume"] = "its disk does not exist"
    for perform_wait_s in (0.5, 1.0, 1.5):  # whether it has tried just before it answers, or not
        site.policy = msgspec.structs.replace(site.policy, perform_wait_s=perform_wait_s)
        answer = site.perform(machine_act(Verb.MIGRATE), times=5)
        assert isinstance(answer, ActUnderWay)
        assert answer.note == "its disk does not exist"


def test_a_live_migration_shows_its_progress_and_says_how_long_the_vm_was_paused(site: MachineSite) -> None:
    site.behaviour.migration_s = 3
    act = machine_act(Verb.MIGRATE)
    assert site.perform(act, times=1) == ActUnderWay(at=START + 1, note="75 % sent, 1 MiB remain")
    done = site.perform_until_done(act)
    assert done == ActDone(ok=True, note="migrate took 3 s, paused for 0.04 s, now on 'host-2'")
    assert site.hosts.states("web-1") == {"host-2": MachineState.RUNNING}
    assert log_of(site) == ["arrived on host-2", "removed on host-1"]


def test_a_migration_that_does_not_converge_is_aborted_and_the_vm_goes_on_where_it_was(site: MachineSite) -> None:
    site.behaviour.migration_s = math.inf
    done = site.perform_until_done(machine_act(Verb.MIGRATE))
    assert done == ActDone(
        ok=False, note="web-1 could not be migrated in time (75 % sent, 1 MiB remain): it continues on host-1"
    )
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
@pytest.mark.parametrize("operation", ["copy_definition", "prepare_to_receive", "send"])
def test_a_move_that_the_destination_refuses_leaves_the_vm_running_where_it_was(
    site: MachineSite, verb: Verb, operation: str
) -> None:
    if verb is Verb.REDEPLOY and operation != "copy_definition":
        return
    site.behaviour.refused[operation] = "host-2 has 512 MiB free, and web-1 needs 1024 MiB"
    done = site.perform_until_done(machine_act(verb))
    assert done == ActDone(ok=False, note="host-2 has 512 MiB free, and web-1 needs 1024 MiB")
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}
    assert "off on host-1" not in log_of(site)


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_a_move_to_a_host_with_another_vm_of_that_name_touches_neither(site: MachineSite, verb: Verb) -> None:
    site.hosts.add("host-2", "web-1", MachineState.OFF)
    site.behaviour.refused["copy_definition"] = "host-2 has another VM named web-1"
    done = site.perform_until_done(machine_act(verb))
    assert done == ActDone(ok=False, note="host-2 has another VM named web-1")
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING, "host-2": MachineState.OFF}


def test_a_frozen_vm_on_a_host_that_cannot_be_looked_at_for_a_while_is_resumed(site: MachineSite) -> None:
    act = machine_act(Verb.FREEZE)
    site.perform(act, times=1)
    site.behaviour.refused["state"] = "permission denied"
    answer = site.perform(act, times=3)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == "permission denied"

    del site.behaviour.refused["state"]

    assert site.perform_until_done(act).ok
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [Verb.FREEZE, Verb.REBOOT, Verb.MIGRATE])
def test_an_act_waits_for_a_host_that_refuses_to_be_read_when_it_begins(site: MachineSite, verb: Verb) -> None:
    site.behaviour.refused["read_mark"] = "host-1 is not in the settings"
    answer = site.perform(machine_act(verb), times=3)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == "host-1 is not in the settings"

    del site.behaviour.refused["read_mark"]

    assert site.perform_until_done(machine_act(verb)).ok


def test_a_vm_that_runs_on_one_host_is_not_started_on_another(site: MachineSite) -> None:
    site.hosts.add("host-1", "web-2", MachineState.OFF)
    first = machine_act(Verb.START, vm="web-2", from_host="", to_host="host-1")
    assert site.perform_until_done(first).ok

    again = machine_act(Verb.START, event_id="EVENT-2", vm="web-2", from_host="", to_host="host-2")

    assert site.perform_until_done(again) == ActDone(
        ok=False, note="web-2 runs on host-1 already, and was not started again"
    )
    assert site.hosts.states("web-2") == {"host-1": MachineState.RUNNING}


def test_a_redeploy_shuts_the_guest_down_and_boots_it_elsewhere_with_a_fresh_disk(site: MachineSite) -> None:
    done = site.perform_until_done(machine_act(Verb.REDEPLOY))
    assert done == ActDone(ok=True, note="redeploy took 1 s, down for 0 s, now on 'host-2'")
    assert log_of(site) == ["off on host-1", "booted on host-2", "fresh disk on host-2", "removed on host-1"]
    assert "web-1" in site.hosts.disks


def test_a_vm_that_the_destination_cannot_boot_comes_back_on_its_source(site: MachineSite) -> None:
    site.behaviour.refused["power_on on host-2"] = "host-2 cannot make the ephemeral disk"
    done = site.perform_until_done(machine_act(Verb.REDEPLOY))
    note = "host-2 cannot make the ephemeral disk; web-1 was started on host-1 again"
    assert done == ActDone(ok=False, note=note)
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}
    assert log_of(site) == ["off on host-1", "removed on host-2", "booted on host-1"]


def test_a_vm_that_no_host_can_boot_stays_off_and_the_outcome_says_why(site: MachineSite) -> None:
    site.behaviour.refused["power_on"] = "the image is broken"
    done = site.perform_until_done(machine_act(Verb.REDEPLOY))
    note = "the image is broken; web-1 is off on host-1, which could not start it again: the image is broken"
    assert done == ActDone(ok=False, note=note)
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF}


def test_a_vm_of_a_failed_host_that_the_destination_cannot_boot_stays_off_and_can_be_moved_again(
    site: MachineSite,
) -> None:
    site.behaviour.refused["power_on on host-2"] = "host-2 cannot make the ephemeral disk"
    done = site.perform_until_done(machine_act(Verb.REDEPLOY, abrupt=True))
    note = "host-2 cannot make the ephemeral disk; web-1 is off, because host-1 has failed: redeploy it to another host"
    assert done == ActDone(ok=False, note=note)
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF}
    again = machine_act(Verb.REDEPLOY, event_id="EVENT-2", to_host="host-3", abrupt=True)
    assert site.perform_until_done(again).ok
    assert site.hosts.states("web-1") == {"host-3": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_a_vm_whose_destination_went_down_after_the_release_boots_on_its_source(site: MachineSite, verb: Verb) -> None:
    site.behaviour.silent_after = "resume" if verb is Verb.MIGRATE else "power_on"
    answer = site.perform(machine_act(verb), times=10)
    assert isinstance(answer, ActUnderWay)
    assert answer.note.startswith("host-2 does not answer, and web-1 has left host-1: confirm that host-2 is down")
    assert answer.waits_for_host == "host-2"
    site.behaviour.silent_after = ""
    site.hosts.crash("host-2")
    site.confirmed_down.add("host-2")
    done = site.perform_until_done(machine_act(verb))
    note = "host-2 went down before web-1 was known to run there; web-1 was started on host-1 again"
    assert done == ActDone(ok=False, note=note)
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING, "host-2": MachineState.OFF}


def test_a_stopped_vm_moves_and_stays_off(site: MachineSite) -> None:
    site.hosts.add("host-1", "web-2", MachineState.OFF)
    done = site.perform_until_done(machine_act(Verb.REDEPLOY, vm="web-2", is_stopped=True))
    assert done.note == "redeploy took 0 s, off throughout, now on 'host-2'"
    assert site.hosts.states("web-2") == {"host-2": MachineState.OFF}


def test_a_vm_of_a_silent_host_starts_elsewhere_only_after_someone_confirmed_that_the_host_is_down(
    site: MachineSite,
) -> None:
    site.behaviour.unreachable.add("host-1")
    act = machine_act(Verb.REDEPLOY, abrupt=True)
    answer = site.perform(act, times=30)
    assert isinstance(answer, ActUnderWay)
    assert answer.note == (
        "host-1 does not answer, and web-1 may still run there: fence host-1, or confirm that it is down once it is "
        "certain that web-1 does not run there"
    )
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING, "host-2": MachineState.OFF}
    site.hosts.crash("host-1")
    site.confirmed_down.add("host-1")
    done = site.perform_until_done(act)
    assert done.ok
    assert done.note.endswith("host-1 did not answer, and still has its definition of web-1")
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF, "host-2": MachineState.RUNNING}


def test_a_host_that_failed_is_fenced_before_its_vm_starts_elsewhere(site: MachineSite) -> None:
    site.behaviour.unreachable.add("host-1")
    site.behaviour.can_fence = True
    assert site.perform_until_done(machine_act(Verb.REDEPLOY, abrupt=True)).ok
    assert site.hosts.states("web-1") == {"host-1": MachineState.OFF, "host-2": MachineState.RUNNING}


def test_a_silent_host_is_not_fenced_for_planned_work(site: MachineSite) -> None:
    site.behaviour.unreachable.add("host-1")
    site.behaviour.can_fence = True
    answer = site.perform(machine_act(Verb.REDEPLOY), times=30)
    assert isinstance(answer, ActUnderWay)
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


@pytest.mark.parametrize("verb", [verb for verb in Verb if verb not in (Verb.REAPPLY, Verb.MIGRATE)])
def test_an_act_waits_for_a_silent_host_without_failing(site: MachineSite, verb: Verb) -> None:
    site.behaviour.unreachable.add("host-1")
    answer = site.perform(machine_act(verb), times=60)
    assert isinstance(answer, ActUnderWay)
    assert "host-1 does not answer" in answer.note


def test_a_full_disk_of_the_service_is_not_taken_for_silence_of_a_host_that_is_observed(site: MachineSite) -> None:
    async def scenario() -> None:
        hypervisor = site.open()
        site.behaviour.full_disk = True
        try:
            with pytest.raises(ActNotTried):
                await hypervisor.observe("host-1")
        finally:
            await hypervisor.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", [Verb.MIGRATE, Verb.REDEPLOY])
def test_a_move_to_a_silent_host_fails_at_the_deadline(site: MachineSite, verb: Verb) -> None:
    site.behaviour.unreachable.add("host-2")
    done = site.perform_until_done(machine_act(verb))
    assert not done.ok
    assert done.note.startswith("host-2 did not answer")
    assert site.hosts.states("web-1") == {"host-1": MachineState.RUNNING}


@pytest.mark.parametrize(
    ("verb", "fields", "keeps_disks"),
    [
        (Verb.EVICT, {}, True),
        (Verb.EVICT, {"keeps_vm": False}, False),
        (Verb.DELETE, {}, False),
        (Verb.DEALLOCATE, {}, True),
    ],
    ids=["evict", "evict-and-delete", "delete", "deallocate"],
)
def test_a_vm_that_leaves_its_host_is_removed_with_or_without_its_disks(
    site: MachineSite, verb: Verb, fields: dict[str, Any], keeps_disks: bool
) -> None:
    assert site.perform_until_done(machine_act(verb, **fields)).ok
    assert site.hosts.states("web-1") == {}
    assert ("web-1" in site.hosts.disks) is keeps_disks


def test_a_guest_that_ignores_its_eviction_is_powered_off(site: MachineSite) -> None:
    site.behaviour.shutdown_s = math.inf
    done = site.perform_until_done(machine_act(Verb.EVICT))
    assert done.note.endswith("; the guest ignored ACPI for 2 s and was powered off")
    assert site.hosts.states("web-1") == {}


def test_a_deallocated_vm_can_be_started_on_another_host(site: MachineSite) -> None:
    assert site.perform_until_done(machine_act(Verb.DEALLOCATE)).ok
    start = machine_act(Verb.START, event_id="EVENT-2", from_host="", to_host="host-3")
    assert site.perform_until_done(start).ok
    assert site.hosts.states("web-1") == {"host-3": MachineState.RUNNING}
    assert log_of(site)[-2:] == ["booted on host-3", "fresh disk on host-3"]


def test_a_deallocated_vm_can_be_deleted(site: MachineSite) -> None:
    assert site.perform_until_done(machine_act(Verb.DEALLOCATE)).ok
    assert site.perform_until_done(machine_act(Verb.DELETE, event_id="EVENT-2", from_host="")).ok
    assert "web-1" not in site.hosts.disks


@pytest.mark.parametrize("verb", [Verb.FREEZE, Verb.REBOOT, Verb.MIGRATE, Verb.REDEPLOY, Verb.POWER_OFF, Verb.REIMAGE])
def test_an_act_on_a_vm_that_its_host_does_not_know_fails(tmp_path: Path, verb: Verb) -> None:
    done = MachineSite(tmp_path, FakeBehaviour()).perform_until_done(machine_act(verb))
    assert done == ActDone(ok=False, note="host-1 does not know web-1")


def test_a_vm_that_runs_on_the_destination_already_is_not_touched(site: MachineSite) -> None:
    site.hosts.add("host-2", "web-2")
    done = site.perform_until_done(machine_act(Verb.REDEPLOY, vm="web-2"))
    assert done == ActDone(ok=False, note="web-2 is running on host-2 already, and was not touched")
    assert site.hosts.states("web-2") == {"host-2": MachineState.RUNNING}
