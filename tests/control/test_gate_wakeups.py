"""Gates that are not ready: their wake-ups are saved in one commit, and none misses a change."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from forewarn.control.fleet import FleetChange
from forewarn.core.commit import Commit
from forewarn.core.event import EventState, Gate
from forewarn.core.history import EntryKind
from forewarn.core.request import Rollout, RolloutImpact
from forewarn.store.interface import Store
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite import SqliteStore
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


class ApprovalHoldingStore(MemoryStore):
    """Keeps commits of approvals waiting until `go_on` is set, once `are_approvals_held`."""

    def __init__(self) -> None:
        super().__init__()
        self.are_approvals_held = False
        self.approval_held = asyncio.Event()
        self.go_on = asyncio.Event()

    async def commit(self, commit: Commit) -> int:
        if self.are_approvals_held and any(entry.kind is EntryKind.APPROVED for entry in commit.entries):
            self.approval_held.set()
            await self.go_on.wait()
        return await super().commit(commit)


def _start_rollout(store: Store) -> World:
    """Return a world with three hosts of two VMs each, all with a scheduled update."""
    vms = [a_vm(f"{host}-{n}", host=host) for host in HOSTS for n in (0, 1)]
    world = World(store=store, hosts=[a_host(host) for host in HOSTS], vms=vms)
    world.do(world.control.rollout_requests.start(Rollout(impact=RolloutImpact.UPDATE, hosts=HOSTS), who="ann"))
    world.settle()
    return world


def _wake_all_gates(store: GateRecordingStore) -> World:
    world = _start_rollout(store)
    store.saved_gates.clear()
    world.do(store.commit(Commit(wake_gates=tuple({event.gate_id for event in world.events()}))))
    return world


def _approval(world: World, vm: str) -> Coroutine[Any, Any, object]:
    (event,) = (event for event in world.events() if event.vms == (vm,))
    return world.control.guests.approve(world.vm(vm).key, (event.id,))


def _approve(world: World, vm: str) -> None:
    world.do(_approval(world, vm))


def _hosts_with_started_events(world: World) -> set[str]:
    return {event.host for event in world.events() if event.status is not EventState.SCHEDULED}


def test_gates_that_are_not_ready_are_saved_in_one_commit() -> None:
    store = GateRecordingStore()
    world = _wake_all_gates(store)
    world.settle()
    assert [len(gates) for gates in store.saved_gates] == [3]
    assert store.due_gates(world.now) == []
    world.close()


def test_a_gate_that_is_woken_meanwhile_stays_due_and_the_others_do_not() -> None:
    store = GateRecordingStore()
    world = _wake_all_gates(store)
    woken, *others = store.due_gates(world.now)
    store.wake_first = woken.id
    world.do(world.control.reconciler.reconcile())
    assert [gate.id for gate in store.due_gates(world.now)] == [woken.id]
    world.settle()
    assert store.due_gates(world.now) == []
    assert others
    world.close()


def test_the_events_of_a_host_start_once_all_are_approved() -> None:
    world = _start_rollout(GateRecordingStore())
    for host in HOSTS:
        _approve(world, f"{host}-0")
    world.settle()
    assert _hosts_with_started_events(world) == set()
    _approve(world, "h2-1")
    world.do(world.control.reconciler.catch_up())
    assert _hosts_with_started_events(world) == {"h2"}
    world.close()


def test_a_gate_whose_other_vm_was_approved_in_an_earlier_process_releases() -> None:
    world = _start_rollout(GateRecordingStore())
    _approve(world, "h1-0")
    world.restart()
    _approve(world, "h1-1")
    world.do(world.control.reconciler.catch_up())
    assert _hosts_with_started_events(world) == {"h1"}
    world.close()


def test_an_event_starts_at_its_not_before_although_the_other_vm_has_approved() -> None:
    world = _start_rollout(GateRecordingStore())
    _approve(world, "h1-0")
    (not_before,) = {event.not_before for event in world.events() if event.host == "h1"}
    world.advance(not_before - world.now - 1)
    assert _hosts_with_started_events(world) == set()
    world.advance(1)
    assert "h1" in _hosts_with_started_events(world)
    world.close()


def test_approvals_of_all_vms_of_a_host_at_the_same_time_start_its_events(tmp_path: Path) -> None:
    world = _start_rollout(SqliteStore.open(tmp_path / "forewarn.db"))

    async def approve_all() -> None:
        await asyncio.gather(*(_approval(world, f"{host}-{n}") for host in HOSTS for n in (0, 1)))

    world.do(approve_all())
    world.settle()
    assert _hosts_with_started_events(world) == set(HOSTS)
    world.close()


def test_an_approval_while_the_other_vm_of_the_host_is_removed_starts_the_event() -> None:
    """The removal wakes the gate, and the gate is decided, while the commit of the approval is under way."""
    store = ApprovalHoldingStore()
    world = _start_rollout(store)
    removal = FleetChange(removed=(world.vm("h1-1"),))

    async def remove_while_approving() -> None:
        store.are_approvals_held = True
        approval = asyncio.create_task(_approval(world, "h1-0"))
        await store.approval_held.wait()
        await world.control.fleet.apply_change(removal, who="ann")
        reconciling = asyncio.create_task(world.control.reconciler.reconcile())
        for _ in range(100):
            await asyncio.sleep(0)  # the pass does all that it can do before the approval is committed
        store.go_on.set()
        await asyncio.gather(approval, reconciling)

    world.do(remove_while_approving())
    world.settle()
    (event,) = (event for event in world.events() if event.vms == ("h1-0",))
    assert event.status is not EventState.SCHEDULED
    world.close()
