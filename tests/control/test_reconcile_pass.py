"""A reconcile pass does everything that is due, even if a part of it fails."""

from __future__ import annotations

import asyncio

import pytest

from forewarn.core.cause import Cause
from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm


class FailingScopeStore(MemoryStore):
    """A store that fails commits of the scope `failing_scope`."""

    failing_scope = ""

    async def commit(self, commit: Commit) -> int:
        if self.failing_scope and any(scope.id == self.failing_scope for scope in commit.scopes):
            raise RuntimeError("this scope fails")
        return await super().commit(commit)


class RequestReadingStore(MemoryStore):
    """Counts the requests that were read, and the reads of VMs."""

    reads = 0
    vm_reads = 0

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        self.vm_reads += 1
        return super().vms(scope_id=scope_id, host=host, removed=removed)

    def request(self, request_id: str) -> MaintenanceRequest | None:
        self.reads += 1
        return super().request(request_id)


def test_publishing_reads_the_request_of_a_rollout_once_and_not_for_each_event() -> None:
    """A request names all its hosts: read for each of their events, it makes a large rollout quadratic."""
    reads = []
    for count in (5, 50):
        store = RequestReadingStore()
        hosts = [a_host(f"h{n}") for n in range(count)]
        world = World(store=store, hosts=hosts, vms=[a_vm(f"vm-{n}", host=f"h{n}") for n in range(count)])
        rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=tuple(host.name for host in hosts))
        world.do(world.control.rollout_requests.start(rollout, who="ann"))
        world.settle()
        assert len(world.events(EventState.SCHEDULED)) == count
        reads.append(store.reads)
        world.close()
    assert reads[0] == reads[1]


def test_the_vms_of_most_hosts_of_the_fleet_are_read_at_once() -> None:
    store = RequestReadingStore()
    hosts = [a_host(f"h{n}") for n in range(120)]
    world = World(store=store, hosts=hosts, vms=[a_vm(f"vm-{n}", host=f"h{n}") for n in range(120)])
    names = tuple(host.name for host in reversed(hosts))
    store.vm_reads = 0
    vms = world.control.rollouts.vms_of(Rollout(impact=RolloutImpact.UPDATE, hosts=names))
    assert ([vm.host for vm in vms], store.vm_reads) == (list(names), 1)
    world.close()


def test_an_error_in_one_scope_does_not_block_the_others() -> None:
    store = FailingScopeStore()
    world = World(store=store, hosts=[a_host("h1")], vms=[a_vm("bad"), a_vm("good")])
    events = {name: world.ask(RequestedOperation.RESTART, name)[0] for name in ("bad", "good")}
    for name in events:
        world.do(world.control.guests.approve(world.vm(name).key, (events[name].id,)))
    store.failing_scope = world.scope("bad").id

    with pytest.raises(RuntimeError, match="this scope fails"):
        world.settle()

    assert world.store.event(events["good"].id).status is EventState.STARTED  # type: ignore[union-attr]
    assert [effect.vm for effect in world.ledger.effects()] == ["sub/lab/good"]

    store.failing_scope = ""
    world.advance(60)
    assert {event.status for event in world.events()} == {EventState.OVER}
    world.close()


def test_acts_elsewhere_start_while_the_acts_of_one_scope_on_a_failed_host_cannot_be_ended() -> None:
    """Only acts that need the failed host must not start, wherever the error is (spec §6.4)."""
    store = FailingScopeStore()
    vms = [a_vm("bad"), a_vm("neighbour"), a_vm("good", host="h2")]
    world = World(store=store, hosts=[a_host("h1"), a_host("h2"), a_host("h3")], vms=vms)
    (reboot,) = world.ask(RequestedOperation.RESTART, "bad", short_notice=True)
    store.failing_scope = world.scope("bad").id

    async def fail_and_restart() -> None:
        await world.control.requests.fail_host("h1", who="op")
        good = [world.vm("good")]
        await world.control.requests.request_for_vms(RequestedOperation.RESTART, good, who="ann", short_notice=True)

    world.do(fail_and_restart())
    for _ in range(8):  # each pass ends with the error, so the acts that it started go on in the next one
        world.clock.apply_setting(world.clock.setting_after_jump(world.now + 60))
        with pytest.raises(RuntimeError, match="this scope fails"):
            world.settle()

    ended = {(effect.vm, effect.verb) for effect in world.ledger.effects() if effect.ended}
    assert ended == {("sub/lab/good", "reboot"), ("sub/lab/neighbour", "redeploy")}
    assert [effect.performs for effect in world.ledger.effects("sub/lab/bad")] == [1]

    store.failing_scope = ""
    world.advance(600)
    (stored,) = [event for event in world.events() if event.id == reboot.id]
    assert [act.outcome.note for act in stored.acts if act.outcome] == ["host h1 failed"]
    (recovery,) = [event for event in world.events() if event.cause is Cause.HOST_FAILED and event.vms == ("bad",)]
    assert recovery.status is EventState.OVER
    assert world.vm("bad").host in ("h2", "h3")
    world.close()


def test_a_pass_that_is_cancelled_keeps_the_outcomes_that_it_has_not_recorded() -> None:
    world = World(vms=[a_vm(f"web-{n}") for n in range(3)], hosts=[a_host("h1")])
    world.ask(RequestedOperation.REAPPLY, *(f"web-{n}" for n in range(3)))

    async def cancel_a_pass() -> None:
        world.clock.apply_setting(world.clock.setting_after_jump(world.now + 3600))
        world.control.executor.start_due_acts()
        while world.control.executor.answering_acts:
            await world.control.executor.wait_for_any()
        reconciling = asyncio.create_task(world.control.reconciler.reconcile())
        await asyncio.sleep(0)  # it has taken the outcomes, and no scope has had its turn
        reconciling.cancel()
        await asyncio.gather(reconciling, return_exceptions=True)

    world.do(cancel_a_pass())
    assert len(world.events(EventState.STARTED)) == 3
    world.settle()
    assert not world.events(EventState.STARTED)
    world.close()
