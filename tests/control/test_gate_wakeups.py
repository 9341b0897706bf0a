"""Gates that somebody is not ready behind go back to sleep together, and none of them sleeps through a change."""

from __future__ import annotations

from forewarn.core.commit import Commit
from forewarn.core.event import EventState, Gate
from forewarn.core.request import Rollout, RolloutImpact
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm

HOSTS = ("h1", "h2", "h3")


class Watched(MemoryStore):
    """Keeps the gates of every commit that puts some to sleep; wakes one at the last moment, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.put_to_sleep: list[tuple[Gate, ...]] = []
        self.wake_first = ""

    async def commit(self, commit: Commit) -> int:
        if commit.gates and not commit.planned and not commit.entries:
            if self.wake_first and any(gate.id == self.wake_first for gate in commit.gates):
                gate_id, self.wake_first = self.wake_first, ""
                await super().commit(Commit(wake_gates=(gate_id,)))
            self.put_to_sleep.append(commit.gates)
        return await super().commit(commit)


def _one_of_two_approves_everywhere(store: Watched) -> World:
    vms = [a_vm(f"{host}-{n}", host=host) for host in HOSTS for n in (0, 1)]
    world = World(store=store, hosts=[a_host(host) for host in HOSTS], vms=vms)
    world.do(world.control.requests.start_rollout(Rollout(impact=RolloutImpact.UPDATE, hosts=HOSTS), who="ann"))
    world.settle()
    store.put_to_sleep.clear()
    for host in HOSTS:
        _approve(world, f"{host}-0")
    return world


def _approve(world: World, vm: str) -> None:
    (event,) = (event for event in world.events() if event.vms == (vm,))
    world.do(world.control.guests.approve(world.vm(vm).key, (event.id,)))


def test_they_are_put_to_sleep_in_one_commit() -> None:
    store = Watched()
    world = _one_of_two_approves_everywhere(store)
    world.settle()
    assert [len(gates) for gates in store.put_to_sleep] == [3]
    assert store.due_gates(world.now) == []
    world.close()


def test_one_that_is_woken_meanwhile_stays_awake_and_the_others_sleep() -> None:
    store = Watched()
    world = _one_of_two_approves_everywhere(store)
    woken, *others = store.due_gates(world.now)
    store.wake_first = woken.id
    world.do(world.control.reconciler.reconcile())
    assert [gate.id for gate in store.due_gates(world.now)] == [woken.id]
    world.settle()
    assert store.due_gates(world.now) == []
    assert others
    world.close()


def test_once_everybody_has_approved_the_events_start() -> None:
    world = _one_of_two_approves_everywhere(Watched())
    world.settle()
    assert {event.status for event in world.events()} == {EventState.SCHEDULED}
    _approve(world, "h2-1")
    world.do(world.control.reconciler.run_until_idle())
    assert {event.host for event in world.events() if event.status is not EventState.SCHEDULED} == {"h2"}
    world.close()
