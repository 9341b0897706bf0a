"""Gates that are not ready: their wake-ups are saved in one commit, and none misses a change."""

from __future__ import annotations

from forewarn.core.commit import Commit
from forewarn.core.event import EventState, Gate
from forewarn.core.request import Rollout, RolloutImpact
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm

HOSTS = ("h1", "h2", "h3")


class GateRecordingStore(MemoryStore):
    """Records the gates of commits that save wake-ups; wakes gate `wake_first` right before one."""

    def __init__(self) -> None:
        super().__init__()
        self.saved_gates: list[tuple[Gate, ...]] = []
        self.wake_first = ""

    async def commit(self, commit: Commit) -> int:
        if commit.gates and not commit.planned and not commit.entries:
            if self.wake_first and any(gate.id == self.wake_first for gate in commit.gates):
                gate_id, self.wake_first = self.wake_first, ""
                await super().commit(Commit(wake_gates=(gate_id,)))
            self.saved_gates.append(commit.gates)
        return await super().commit(commit)


def _approve_one_of_two_vms_per_host(store: GateRecordingStore) -> World:
    vms = [a_vm(f"{host}-{n}", host=host) for host in HOSTS for n in (0, 1)]
    world = World(store=store, hosts=[a_host(host) for host in HOSTS], vms=vms)
    world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.UPDATE, hosts=HOSTS), who="ann"))
    world.settle()
    store.saved_gates.clear()
    for host in HOSTS:
        _approve(world, f"{host}-0")
    return world


def _approve(world: World, vm: str) -> None:
    (event,) = (event for event in world.events() if event.vms == (vm,))
    world.do(world.control.guests.approve(world.vm(vm).key, (event.id,)))


def test_gates_that_are_not_ready_are_saved_in_one_commit() -> None:
    store = GateRecordingStore()
    world = _approve_one_of_two_vms_per_host(store)
    world.settle()
    assert [len(gates) for gates in store.saved_gates] == [3]
    assert store.due_gates(world.now) == []
    world.close()


def test_a_gate_that_is_woken_meanwhile_stays_due_and_the_others_do_not() -> None:
    store = GateRecordingStore()
    world = _approve_one_of_two_vms_per_host(store)
    woken, *others = store.due_gates(world.now)
    store.wake_first = woken.id
    world.do(world.control.reconciler.reconcile())
    assert [gate.id for gate in store.due_gates(world.now)] == [woken.id]
    world.settle()
    assert store.due_gates(world.now) == []
    assert others
    world.close()


def test_the_events_of_a_host_start_once_all_are_approved() -> None:
    world = _approve_one_of_two_vms_per_host(GateRecordingStore())
    world.settle()
    assert {event.status for event in world.events()} == {EventState.SCHEDULED}
    _approve(world, "h2-1")
    world.do(world.control.reconciler.catch_up())
    assert {event.host for event in world.events() if event.status is not EventState.SCHEDULED} == {"h2"}
    world.close()
