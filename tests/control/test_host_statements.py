"""An operator states that a host is certainly down: when that is accepted, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forewarn.control.fleet import FleetChange
from forewarn.core.fleet import HostHealth
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation
from forewarn.errors import NotFound, Refused, full_message
from tests.support.reporting_hypervisor import ReportingHypervisor
from tests.support.world import World, a_host, a_vm


@pytest.fixture
def world() -> Iterator[World]:
    hosts = [a_host("h1"), a_host("h2"), a_host("h3")]
    world = World(vms=[a_vm("web"), a_vm("db", host="h2")], hosts=hosts, hypervisor=ReportingHypervisor())
    yield world
    world.close()


def confirm_down(world: World, host: str) -> None:
    world.do(world.control.host_statements.confirm_down(host, who="ann"))


def make_unreachable(world: World, host: str) -> None:
    """Start a restart of `web` that waits for the host."""
    assert isinstance(world.hypervisor, ReportingHypervisor)
    world.hypervisor.waits_for_host = host
    (event,) = world.ask(RequestedOperation.RESTART, "web")
    world.approve("web", event.id)


def test_a_failed_host_can_be_confirmed_down_and_the_history_names_who_did_it(world: World) -> None:
    world.do(world.control.requests.fail_host("h1", who="op"))
    assert not world.control.placement.is_confirmed_down("h1")
    confirm_down(world, "H1")
    assert world.control.placement.is_confirmed_down("h1")
    entry = world.store.history()[-1]
    assert (entry.kind, entry.actor) == (EntryKind.HOST, "ann")
    assert entry.text == "host h1 confirmed down by ann: its VMs may be started elsewhere"


def test_an_unreachable_host_can_be_confirmed_down_and_no_vm_comes_to_it(world: World) -> None:
    make_unreachable(world, "h1")
    confirm_down(world, "h1")
    (host,) = [host for host in world.store.hosts() if host.name == "h1"]
    assert (host.health, host.confirmed_down) == (HostHealth.HEALTHY, True)
    assert world.control.placement.find_destination(world.vm("db")) == "h3"
    with pytest.raises(Refused, match="host 'h1' is confirmed down and can take no VMs"):
        world.do(world.control.fleet.apply_change(FleetChange(vms=(a_vm("new"),)), who="op"))


def test_a_host_that_nothing_suspects_cannot_be_confirmed_down(world: World) -> None:
    before = world.store.last_seq()
    with pytest.raises(Refused) as caught:
        confirm_down(world, "h1")
    assert full_message(caught.value) == (
        "host 'h1' is healthy and no act waits for it, so it cannot be confirmed down: "
        "if it has failed, mark host h1 as failed first"
    )
    assert world.store.last_seq() == before


def test_a_host_is_confirmed_down_once(world: World) -> None:
    world.do(world.control.requests.fail_host("h1", who="op"))
    confirm_down(world, "h1")
    with pytest.raises(Refused, match="host 'h1' is confirmed down already"):
        confirm_down(world, "h1")


def test_an_unknown_host_cannot_be_confirmed_down(world: World) -> None:
    with pytest.raises(NotFound, match="host 'h9' does not exist"):
        confirm_down(world, "h9")
    assert not world.control.placement.is_confirmed_down("h9")


def test_a_repair_takes_the_statement_back_also_of_a_host_that_has_not_failed(world: World) -> None:
    make_unreachable(world, "h1")
    confirm_down(world, "h1")
    repaired = world.do(world.control.requests.repair_host("h1", who="op"))
    assert not repaired.confirmed_down
    assert not world.control.placement.is_confirmed_down("h1")
    assert world.control.placement.find_destination(world.vm("db")) is not None


def test_the_statement_outlives_a_restart_a_failure_and_a_change_of_the_fleet_file(world: World) -> None:
    make_unreachable(world, "h1")
    confirm_down(world, "h1")
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.restart()
    assert world.control.placement.is_confirmed_down("h1")
