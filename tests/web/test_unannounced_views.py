"""What others did to a VM is shown by explanations, the history, the portal and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.control.directory import FleetDirectory
from forewarn.core.access import owner_principal
from forewarn.core.fleet import LastSeen, PowerState, VmCondition
from forewarn.core.request import RequestedOperation
from forewarn.core.unannounced import StateCause
from forewarn.machines.driver import MachineState
from forewarn.metadata.request_counters import RequestTotals
from forewarn.web.metrics import ServiceMetrics
from forewarn.web.polling_report import polling_report
from tests.portal.conftest import PortalUser
from tests.support.machine_world import MachineWorld
from tests.support.operator_api import Api
from tests.support.world import a_vm

MOVED = "web is on h2 instead of h1: moved by somebody else, without notice"
VM = "/subscriptions/sub/resourceGroups/lab/providers/Microsoft.Compute/virtualMachines/web"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MachineWorld]:
    world = MachineWorld(tmp_path, [a_vm("web"), a_vm("db")])
    world.compare()
    yield world
    world.close()


@pytest.fixture
def api(world: MachineWorld) -> Api:
    return Api(world)


def move_by_hand(world: MachineWorld) -> None:
    world.fake.remove_by_hand("h1", "web")
    world.fake.change_by_hand("h2", "web", MachineState.RUNNING)
    world.compare()


def test_an_explanation_has_unannounced_changes_between_the_events(world: MachineWorld, api: Api) -> None:
    world.advance(10)
    assert world.perform(RequestedOperation.RESTART) == "finished"
    world.advance(10)
    move_by_hand(world)
    world.advance(10)
    assert world.perform(RequestedOperation.RESTART) == "finished"
    explanation = api.get("/explain/web")
    texts = [line["text"] for line in explanation["lines"]]
    restart = "Reboot, requested by ann (user restart): finished"
    assert texts == [restart, MOVED, restart]
    assert explanation["now"][0] == "web is running on h2."
    assert "somebody else" not in str(api.get("/explain/db"))


@pytest.mark.parametrize(
    ("power", "condition", "sentence"),
    [
        (PowerState.RUNNING, VmCondition.PAUSED, "It is paused, and not by an act."),
        (PowerState.RUNNING, VmCondition.CRASHED, "Its guest has crashed and does not run: restart it."),
        (PowerState.STOPPED, VmCondition.CRASHED, "It stopped without being asked to: start it."),
        (PowerState.STOPPED, VmCondition.MISSING, "No host has it: define it again"),
        (PowerState.RUNNING, VmCondition.DUPLICATE, "Several hosts have it in memory: end all but one now"),
    ],
)
def test_an_explanation_says_what_is_unusual_about_a_vm(
    tmp_path: Path, power: PowerState, condition: VmCondition, sentence: str
) -> None:
    world = MachineWorld(tmp_path, [a_vm("web", power=power, seen=LastSeen(condition=condition))])
    assert Api(world).get("/explain/web")["now"][1].startswith(sentence)
    world.close()


def test_the_history_has_a_kind_of_its_own_for_them_and_owners_of_the_vm_see_it(world: MachineWorld, api: Api) -> None:
    move_by_hand(world)
    for reader in (api, api.holding("Reader", VM)):
        (entry,) = [e for e in reader.get("/history?vm=web")["entries"] if e["kind"] == "unannounced"]
        assert (entry["text"], entry["vm"], entry["host"]) == (MOVED, "web", "h2")
    stranger_sees = api.holding("Reader", VM.replace("/web", "/db")).get("/history")["entries"]
    assert [entry for entry in stranger_sees if entry["kind"] == "unannounced"] == []


def test_the_pages_of_the_vm_and_of_the_history_show_them(world: MachineWorld, api: Api) -> None:
    move_by_hand(world)
    portal = PortalUser(api, owner_principal("local user ann"))
    assert MOVED in portal.get("/portal/vms/web").text
    history = portal.get("/portal/history").text
    assert MOVED in history
    assert "unannounced" in history


def test_a_host_that_does_not_answer_is_explained_and_so_are_its_vms(world: MachineWorld, api: Api) -> None:
    world.site.behaviour.unreachable.add("h1")
    world.compare()
    world.advance(300)
    host = api.get("/explain/h1")
    assert host["lines"][-1]["text"].startswith("host h1 does not answer, and its VMs may be running")
    assert "It is unreachable: it does not answer the hypervisor" in str(host["now"])
    assert "Its host h1 has not answered for 5 min: whether web runs is not known." in api.get("/explain/web")["now"]
    world.do(world.control.host_statements.confirm_down("h1", who="ann"))


def test_metrics_count_changes_by_kind_and_show_copies_and_unreachable_hosts(world: MachineWorld) -> None:
    async def open_metrics() -> ServiceMetrics:
        directory = FleetDirectory(world.store)
        return ServiceMetrics(
            world.control,
            request_totals=RequestTotals,
            worker_lags=list,
            count_polling=lambda live: polling_report(directory, lambda key: None, list, live),
        )

    metrics = world.do(open_metrics())

    def lines() -> set[str]:
        return {*world.do(metrics.render_all()).decode().splitlines()}

    expected = {"forewarn_hosts_unreachable 0.0", "forewarn_vms_duplicated 0.0"}
    assert expected | {'forewarn_unannounced_changes_total{kind="crashed"} 0.0'} <= lines()
    world.fake.change_by_hand("h1", "db", MachineState.OFF, StateCause.CRASH)
    world.fake.change_by_hand("h2", "web", MachineState.RUNNING)
    world.site.behaviour.unreachable.add("h3")
    world.compare()
    assert {
        'forewarn_unannounced_changes_total{kind="crashed"} 1.0',
        'forewarn_unannounced_changes_total{kind="duplicated"} 1.0',
        'forewarn_unannounced_changes_total{kind="host_lost"} 1.0',
        'forewarn_unannounced_changes_total{kind="moved"} 0.0',
        "forewarn_hosts_unreachable 1.0",
        "forewarn_vms_duplicated 1.0",
    } <= lines()
    metrics.close()
