"""Moves go where the hypervisor knows of enough memory and a fitting CPU (spec §6.4)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from forewarn.core.event import EventState
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.machines.ledger import EffectLedger
from forewarn.machines.simulated import SimulatedHypervisor
from tests.support.world import World, a_host, a_vm

MINUTE = 60.0


class KnowingHypervisor(SimulatedHypervisor):
    """Simulates acts, and knows what is given about its hosts and VMs; by default that h3 has more memory than h2."""

    def __init__(
        self,
        *,
        free_mib: Mapping[str, int] | None = None,
        vm_mib: Mapping[str, int] | None = None,
        incompatible_hosts: Mapping[str, frozenset[str]] | None = None,
        silent_hosts: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(EffectLedger(None))
        self.free_mib = {"h2": 2_500, "h3": 4_500} if free_mib is None else free_mib
        self.size_mib = {"Small": 2_000}
        self.vm_mib = vm_mib or {}
        self.incompatible_hosts = incompatible_hosts or {}
        self.silent_hosts = silent_hosts


def a_world(hypervisor: KnowingHypervisor, *vms: str) -> World:
    """Three hosts, with these VMs on the first one."""
    return World(
        vms=[a_vm(name, host="h1", size="Small") for name in vms],
        hosts=[a_host(f"h{number}") for number in range(1, 4)],
        hypervisor=hypervisor,
    )


def migrate(world: World) -> None:
    """Migrate everything from the first host, and wait until that is over."""
    world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.MIGRATE, hosts=("h1",)), who="op"))
    world.settle()
    for event in world.events(EventState.SCHEDULED):
        world.approve(event.vms[0], event.id)
    world.advance(10 * MINUTE)


def redeploy(world: World) -> None:
    world.ask(RequestedOperation.REDEPLOY, "db", short_notice=True)
    world.advance(10 * MINUTE)


def test_moves_go_where_the_hypervisor_knows_of_free_memory_and_spread_by_what_is_left() -> None:
    """One request that moves several VMs does not fill one host."""
    names = ("vm-0", "vm-1", "vm-2")
    world = a_world(KnowingHypervisor(), *names)
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.advance(10 * MINUTE)
    assert sorted(world.vm(name).host for name in names) == ["h2", "h3", "h3"]
    world.close()


@pytest.mark.parametrize(("vm_mib", "hosts"), [({}, ["h2", "h2"]), ({"a": 4_000}, ["h2", "h3"])])
def test_the_real_memory_of_a_vm_on_its_way_counts_instead_of_that_of_its_size(
    vm_mib: dict[str, int], hosts: list[str]
) -> None:
    world = a_world(KnowingHypervisor(free_mib={"h2": 5_000, "h3": 2_900}, vm_mib=vm_mib), "a", "b")
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.advance(10 * MINUTE)
    assert [world.vm(name).host for name in ("a", "b")] == hosts
    world.close()


def test_a_full_host_is_not_chosen_although_it_has_fewer_vms() -> None:
    hypervisor = KnowingHypervisor(free_mib={"h2": 500})
    world = World(
        vms=[a_vm("db", host="h1", size="Small"), a_vm("web", host="h3", size="Small")],
        hosts=[a_host(f"h{number}") for number in range(1, 4)],
        hypervisor=hypervisor,
    )
    redeploy(world)
    assert world.vm("db").host == "h3"
    world.close()


@pytest.mark.parametrize(("move", "host"), [(migrate, "h2"), (redeploy, "h3")])
def test_a_live_migration_goes_only_where_the_cpu_fits_and_a_redeployment_anywhere(move: object, host: str) -> None:
    world = a_world(KnowingHypervisor(incompatible_hosts={"db": frozenset({"h3"})}), "db")
    assert callable(move)
    move(world)
    assert world.vm("db").host == host
    world.close()


@pytest.mark.parametrize(
    ("hypervisor", "host"),
    [
        (KnowingHypervisor(free_mib={"H2": 500}), "h3"),
        (KnowingHypervisor(free_mib={}, silent_hosts=frozenset({"H2"})), "h3"),
        (KnowingHypervisor(incompatible_hosts={"db": frozenset({"H3"})}), "h2"),
    ],
    ids=["memory", "silence", "CPU"],
)
def test_what_is_known_of_a_host_counts_in_any_letter_case_of_its_name(
    hypervisor: KnowingHypervisor, host: str
) -> None:
    world = a_world(hypervisor, "db")
    migrate(world)
    assert world.vm("db").host == host
    world.close()


def test_a_vm_that_no_host_can_run_live_stays_and_the_history_says_why() -> None:
    world = a_world(KnowingHypervisor(incompatible_hosts={"db": frozenset({"h2", "h3"})}), "db")
    migrate(world)
    assert world.vm("db").host == "h1"
    texts = [entry.text for entry in world.store.history()]
    problem = "no healthy host in westeurope has a CPU that it can be migrated to live: redeploy it instead"
    assert any(problem in text for text in texts), texts
    world.close()


def test_a_host_that_does_not_answer_is_avoided_even_if_no_act_waits_for_it() -> None:
    world = a_world(KnowingHypervisor(silent_hosts=frozenset({"h3"})), "db")
    redeploy(world)
    assert world.vm("db").host == "h2"
    world.close()
