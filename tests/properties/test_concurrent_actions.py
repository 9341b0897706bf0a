"""Concurrent callers, and acts on the same VM or host: regression tests found by the state machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from forewarn.control.fleet import FleetChange
from forewarn.core.cause import Verb
from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Ending, EventState
from forewarn.core.fleet import PowerState, Priority
from forewarn.core.history import EntryKind
from forewarn.core.release import WaitReason, start_wait
from forewarn.core.request import RequestedOperation
from forewarn.errors import Refused
from tests.properties.crashing_stores import CrashingMemoryStore, CrashingWorld
from tests.support.world import a_host, a_vm


@pytest.fixture
def world() -> Iterator[CrashingWorld]:
    vms = [a_vm("web"), a_vm("db"), a_vm("mail"), a_vm("spot", priority=Priority.SPOT)]
    hosts = [a_host("h1"), a_host("h2"), a_host("h3")]
    world = CrashingWorld(CrashingMemoryStore(), vms=vms, hosts=hosts, policy=Policy(enablement=EnablementMode.ALWAYS))
    yield world
    world.close()


def test_one_of_two_concurrent_withdrawals_is_refused(world: CrashingWorld) -> None:
    """Spec §6.1: an event ends once, and the incarnation counts the removal once."""
    [event] = world.ask(RequestedOperation.RESTART, "web")
    world.failures.yields = 1
    withdraw = world.control.requests.withdraw

    async def both() -> Sequence[object]:
        return await asyncio.gather(
            withdraw(event.id, who="ann"), withdraw(event.id, who="bob"), return_exceptions=True
        )

    results = world.do(both())

    assert [type(result) for result in results].count(Refused) == 1
    assert len([entry for entry in world.store.history() if entry.kind is EntryKind.WITHDRAWN]) == 1
    assert world.scope("web").incarnation == 3


def test_a_request_accepted_during_a_reconcile_pass_is_published_too(world: CrashingWorld) -> None:
    """Spec §9: a request over several scopes is accepted first, and its events follow."""
    ask, reconcile = world.control.requests.request_for_vms, world.control.reconciler.reconcile
    world.failures.yields = 3

    async def ask_during_a_pass() -> None:
        await ask(RequestedOperation.RESTART, [world.vm("web"), world.vm("db")], who="ann")
        running = asyncio.create_task(reconcile())
        await ask(RequestedOperation.RESTART, [world.vm("spot"), world.vm("mail")], who="ann")
        await running

    world.do(ask_during_a_pass())
    world.settle()
    assert {event.vms[0] for event in world.events()} == {"web", "db", "spot", "mail"}


def test_nothing_is_performed_on_a_vm_after_it_was_taken_off_its_host(world: CrashingWorld) -> None:
    """Spec §4.2: a VM that is gone is skipped. An event that became ready meanwhile waits, and is not needed then."""
    world.ask(RequestedOperation.EVICT, "spot", short_notice=True)
    [event] = world.ask(RequestedOperation.REDEPLOY, "spot", short_notice=True)
    wait = start_wait(world.scope("spot"), event, world.control.transactions.context_for(world.scope("spot")))
    assert wait is not None
    assert (event.status, wait.reason) == (EventState.SCHEDULED, WaitReason.MOVE)
    world.do(world.control.requests.withdraw(event.id, who="ann"))
    with pytest.raises(Refused, match="eviction of VM 'spot' has started"):
        world.ask(RequestedOperation.POWER_OFF, "spot")
    [restart] = world.ask(RequestedOperation.RESTART, "spot", short_notice=True)
    world.advance(600)

    assert (world.vm("spot").power, world.vm("spot").host) == (PowerState.DEALLOCATED, "")
    assert [event.ending for event in world.events() if event.id == restart.id] == [Ending.WITHDRAWN]
    assert [effect.verb for effect in world.ledger.effects(world.vm("spot").key)] == [Verb.EVICT]


def test_an_act_that_waits_for_a_move_is_performed_where_the_vm_has_arrived(world: CrashingWorld) -> None:
    """That the host which the VM has left fails then does not matter."""
    [event] = world.ask(RequestedOperation.REDEPLOY, "spot", short_notice=True)
    [move] = event.acts
    [eviction] = world.ask(RequestedOperation.EVICT, "spot", short_notice=True)
    assert eviction.acts[0].from_host == move.from_host == "h1"
    world.advance(121)
    world.do(world.control.requests.fail_host("h1", who="op"))
    world.advance(600)

    [_, evicted] = world.ledger.effects(move.vm)
    assert (evicted.verb, evicted.from_host, evicted.ended) == (Verb.EVICT, move.to_host, True)
    assert world.vm("spot").power is PowerState.DEALLOCATED


def test_vms_that_move_to_a_failing_host_are_redeployed_elsewhere(world: CrashingWorld) -> None:
    """Spec §6.4: no VM stays on a failed host."""
    [event] = world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    [act] = event.acts
    world.do(world.control.requests.fail_host(act.to_host, who="op"))
    world.advance(600)

    assert world.vm("web").host not in ("h1", act.to_host)


def test_a_host_cannot_be_removed_while_a_vm_is_moving_to_it(world: CrashingWorld) -> None:
    [event] = world.ask(RequestedOperation.REDEPLOY, "web", short_notice=True)
    [act] = event.acts
    with pytest.raises(Refused, match="is moving to it"):
        world.do(world.control.fleet.apply_change(FleetChange(removed_hosts=(act.to_host,)), who="op"))


def test_a_planned_event_follows_a_vm_to_its_new_update_domain(world: CrashingWorld) -> None:
    """Spec §7.3: Resources stay within one update domain, also for events planned before the change."""
    requests, fleets, web = world.control.requests, world.control.fleet, world.vm("web")
    world.do(requests.request_for_vms(RequestedOperation.RESTART, [web, world.vm("db")], who="ann"))
    world.do(fleets.apply_change(FleetChange(removed=(web,)), who="op"))
    world.do(fleets.apply_change(FleetChange(vms=(replace(web, update_domain=2),)), who="op"))
    world.settle()

    assert {event.vms: event.update_domain for event in world.events()} == {("web",): 2, ("db",): 0}


def test_a_request_for_a_scope_that_is_idle_but_not_yet_disabled_is_performed_at_once() -> None:
    """Spec §8.2. The clock has moved on, and no pass of the reconciler has come to the scope yet."""
    world = CrashingWorld(CrashingMemoryStore(), vms=[a_vm("web")], hosts=[a_host("h1")], policy=Policy())
    world.do(world.control.guests.enable_scope_of(world.vm("web").key))
    world.clock.apply_setting(world.clock.setting_after_jump(world.now + 24 * 3600))
    receipt = world.do(world.control.requests.request_for_vms(RequestedOperation.RESTART, [world.vm("web")], who="ann"))
    assert [event.listed for event in receipt.events] == [False]
    assert not world.scope("web").is_enabled
    world.close()
