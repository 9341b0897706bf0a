"""The reports of a hypervisor about acts that are under way, from the executor to those who read them."""

from __future__ import annotations

from forewarn.control.executor import ActProgress
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.request import RequestedOperation
from forewarn.machines.interface import ActUnderWay
from tests.support.reporting_hypervisor import ReportingHypervisor
from tests.support.world import World, a_host, a_vm

ACT = Act(id="E:a", vm="s/g/a", name="a", verb=Verb.MIGRATE, event_id="E")


def test_the_latest_note_of_an_act_is_kept_until_the_act_ends() -> None:
    hypervisor = ReportingHypervisor(note="43 %, 120 MiB left")
    world = World(vms=[a_vm("web")], hosts=[a_host("h1")], hypervisor=hypervisor)
    (event,) = world.ask(RequestedOperation.RESTART, "web")
    progress = world.control.executor.progress
    assert progress.notes() == {}
    world.approve("web", event.id)
    assert progress.notes() == {f"{event.id}:web": "43 %, 120 MiB left"}

    hypervisor.note = "88 %, 20 MiB left"
    world.advance(1)
    assert progress.note(f"{event.id}:web") == "88 %, 20 MiB left"

    world.advance(60)
    assert progress.notes() == {}
    assert progress.note(f"{event.id}:web") == ""
    world.close()


def test_a_report_that_says_nothing_replaces_an_earlier_one() -> None:
    progress = ActProgress()
    progress.record(ACT, ActUnderWay(at=1.0, note="10 %", waits_for_host="h2"))
    assert progress.unreachable_hosts() == {"h2"}
    progress.record(ACT, ActUnderWay(at=2.0))
    assert (progress.notes(), progress.awaited_hosts(), progress.unreachable_hosts()) == ({}, {}, frozenset())


def test_listeners_are_told_of_changed_reports_only() -> None:
    progress, told = ActProgress(), list[str]()
    unsubscribe = progress.subscribe(lambda act: told.append(f"{act.name} {progress.note(act.id)}"))
    for note in ("10 %", "10 %", "20 %"):
        progress.record(ACT, ActUnderWay(at=1.0, note=note))
    progress.forget(ACT)
    unsubscribe()
    progress.record(ACT, ActUnderWay(at=1.0, note="30 %"))
    assert told == ["a 10 %", "a 20 %"]


def test_an_act_whose_host_fails_has_no_report_any_more() -> None:
    hypervisor = ReportingHypervisor(note="waiting", waits_for_host="h1")
    world = World(vms=[a_vm("web")], hosts=[a_host("h1"), a_host("h2")], hypervisor=hypervisor)
    (event,) = world.ask(RequestedOperation.RESTART, "web")
    world.approve("web", event.id)
    progress = world.control.executor.progress
    assert progress.unreachable_hosts() == {"h1"}
    hypervisor.waits_for_host = hypervisor.note = ""
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.settle()
    assert progress.note(f"{event.id}:web") == ""
    assert progress.unreachable_hosts() == frozenset()
    world.close()
