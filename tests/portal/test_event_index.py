"""The event index: after any sequence of changes it equals one that is built anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.fleet import Vm
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.errors import ForewarnError
from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from forewarn.store.memory import MemoryStore
from forewarn.web.portal.event_index import RECENT_S, EventIndex
from forewarn.web.portal.fleet_overview import VisibleScopes
from forewarn.web.portal.rollout_index import STALL_S
from tests.portal.test_fleet_overview import steps
from tests.support.operator_api import make_world
from tests.support.world import NOON, World, a_host, a_vm


def build_index(world: World) -> EventIndex:
    index = EventIndex(world.control)
    world.do(index.ensure_built())
    return index


@contextmanager
def open_world() -> Iterator[World]:
    world = make_world()
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def world() -> Iterator[World]:
    with open_world() as world:
        yield world


def contents(index: EventIndex) -> dict[str, Any]:
    """Everything that the index tells, except failures: it forgets those of removed VMs."""
    totals = index.notice.totals_by_column(NOON - 86_400, NOON + 86_400, 300, None)
    return {
        "scheduled": [event.id for event in index.scheduled()],
        "started": {event.id for event in index.started()},
        "counts": (index.count_scheduled(), index.count_started()),
        "notice": {
            column: (total.reasons, total.noticed, total.promised_s, total.given_s) for column, total in totals.items()
        },
        "rollouts": {tracker.request.id: tracker.tally for tracker in index.rollouts.open_rollouts()},
        "stalls": {tracker.request.id: tracker.stalled_s(NOON + 5_000) for tracker in index.rollouts.open_rollouts()},
    }


def assert_filtered_by_scope(index: EventIndex) -> None:
    for wanted in (None, frozenset({"vm:sub/lab/db", "set:sub/lab/web"})):
        scopes = VisibleScopes({"sub/lab": wanted, "sub/other": None})
        scheduled = [event for event in index.scheduled() if scopes.has(event.scope_id)]
        assert list(index.scheduled(scopes)) == scheduled
        assert index.count_scheduled(scopes) == len(scheduled)
        assert index.scheduled_after(NOON, scopes) == next(
            (e.not_before for e in scheduled if e.not_before > NOON), None
        )
        started = [event for event in index.started() if scopes.has(event.scope_id)]
        assert list(index.started(scopes)) == started
        assert index.count_started(scopes) == len(started)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=12))
def test_an_updated_index_equals_a_newly_built_one(steps_taken: list[Callable[[World], object]]) -> None:
    with open_world() as world:
        index = build_index(world)
        for step in steps_taken:
            try:
                step(world)
            except ForewarnError:
                pass  # such as a start of a running VM: it is refused
            assert contents(index) == contents(build_index(world))
            scheduled = sorted(world.events(EventState.SCHEDULED), key=lambda event: (event.not_before, event.id))
            assert [event.id for event in index.scheduled()] == [event.id for event in scheduled]
            assert {event.id for event in index.started()} == {event.id for event in world.events(EventState.STARTED)}
            assert_filtered_by_scope(index)
            for tracker in index.rollouts.open_rollouts():
                snapshot = world.control.rollouts.snapshot_of(tracker.request, tracker.rollout)
                assert tracker.tally == world.control.rollouts.tally_of(tracker.request, tracker.rollout, snapshot)


def test_a_commit_during_the_build_is_in_the_index(world: World) -> None:
    index = EventIndex(world.control)

    async def build_and_restart() -> None:
        vm = world.vm("db")
        await world.control.requests.request_for_vms(RequestedOperation.RESTART, [vm], who="ann")
        await index.ensure_built()

    world.do(build_and_restart())
    world.settle()
    assert [event.vms for event in index.scheduled()] == [("db",)]


def test_the_time_of_the_next_event_is_known(world: World) -> None:
    index = build_index(world)
    assert index.scheduled_after(NOON) is None
    world.ask(RequestedOperation.RESTART, "db")
    assert index.scheduled_after(NOON) == NOON + 900
    assert index.scheduled_after(NOON + 900) is None


def test_notice_is_counted_since_the_first_end_that_was_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index(world)
    for name in ("db", "spot", "web-0"):
        world.ask(RequestedOperation.RESTART, name)
        world.advance(3_600)
    assert index.notice.complete_since(None) is None
    assert build_index(world).notice.complete_since(None) is None
    monkeypatch.setattr("forewarn.web.portal.event_index._MAX_EVENTS_READ", 2)
    cut = build_index(world).notice
    since = cut.complete_since(None)
    assert since is not None
    assert NOON + 3_600 + 900 < since <= NOON + 3_600 + 1_800
    assert cut.first_start(NOON, None) == NOON + 2 * 3_600 + 900


def test_a_failed_act_is_kept_until_another_one_succeeds_on_the_vm(world: World) -> None:
    index = build_index(world)
    world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(note="no power"),)))
    world.ask(RequestedOperation.RESTART, "db")
    world.advance(1_000)
    for known in (index, build_index(world)):
        (failed,) = known.failures_since(NOON)
        assert (failed.name, failed.verb, failed.note) == ("db", "reboot", "no power")
        assert known.failures_since(world.now) == []
    world.hypervisor.set_behaviour(SimulatedBehaviour())
    world.ask(RequestedOperation.RESTART, "db")
    world.advance(1_000)
    assert index.failures_since(NOON) == build_index(world).failures_since(NOON) == []


@pytest.mark.parametrize("batch", [1, 2, 1_000])
def test_a_failed_act_is_found_after_a_restart_however_many_events_ended_since(
    world: World, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(note="no power"),)))
    for name in ("db", "spot"):
        world.ask(RequestedOperation.RESTART, name)
    world.advance(1_000)
    world.hypervisor.set_behaviour(SimulatedBehaviour())
    world.ask(RequestedOperation.RESTART, "spot")
    world.advance(1_000)
    for name in ("web-0", "web-1", "web-2"):  # these end at the same time
        world.ask(RequestedOperation.RESTART, name)
    world.advance(1_000)
    monkeypatch.setattr("forewarn.web.portal.event_index._MAX_EVENTS_READ", 1)
    monkeypatch.setattr("forewarn.web.portal.event_index._BATCH_SIZE", batch)
    assert [failed.name for failed in build_index(world).failures_since(NOON)] == ["db"]
    world.advance(RECENT_S)
    assert build_index(world).failures_since(world.now - RECENT_S) == []


def start_rollout(world: World, **facts: Any) -> str:
    rollout = Rollout(**{"impact": RolloutImpact.UPDATE, "scope_id": "set:sub/lab/web", **facts})
    request = world.do(world.control.rollout_requests.start(rollout, who="bob"))
    world.settle()
    return request.id


def test_vms_that_another_rollout_serves_count_by_what_it_does_to_them(world: World) -> None:
    index = build_index(world)
    start_rollout(world)
    second = start_rollout(world)
    seen = set()
    for _ in range(4):
        for checked in (index, build_index(world)):
            for tracker in checked.rollouts.open_rollouts():
                assert tracker.tally == world.control.rollouts.tally_of(tracker.request, tracker.rollout)
                if tracker.request.id == second:
                    seen |= {name for name in ("scheduled", "done") if getattr(tracker.tally, name)}
        world.advance(600)
    assert seen == {"scheduled", "done"}


class VmReadingStore(MemoryStore):
    """Records the hosts whose VMs were read."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts_read: list[str | None] = []

    def vms(self, *, scope_id: str | None = None, host: str | None = None, removed: bool = False) -> list[Vm]:
        self.hosts_read.append(host)
        return super().vms(scope_id=scope_id, host=host, removed=removed)


def test_the_vms_of_a_new_rollout_are_counted_host_by_host_while_others_work() -> None:
    store = VmReadingStore()
    hosts = [a_host(f"h{n}") for n in range(20)]
    vms = [a_vm(f"vm-{n}", host=host.name) for n, host in enumerate(hosts)]
    world = World(vms=vms, hosts=hosts, store=store)
    index = build_index(world)
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=tuple(host.name for host in hosts))
    request = MaintenanceRequest(
        id="r1",
        operation=RequestedOperation.ROLLOUT,
        requested_by="bob",
        requested_at=world.now,
        targets=rollout.hosts,
        rollout=rollout,
    )
    reads_per_turn: list[int] = []

    async def start_and_remove() -> None:
        store.hosts_read.clear()
        index.rollouts.on_commit(Commit(requests=(request,)), world.now)
        assert store.hosts_read == []
        await asyncio.sleep(0)
        index.rollouts.on_commit(Commit(vms=(replace(vms[0], removed_at=world.now),)), world.now)  # counted already
        index.rollouts.on_commit(Commit(vms=(replace(vms[1], host="h0"),)), world.now)  # not counted yet
        while len(store.hosts_read) < len(hosts):
            read = len(store.hosts_read)
            await asyncio.sleep(0)
            reads_per_turn.append(len(store.hosts_read) - read)

    world.do(start_and_remove())
    (tracker,) = index.rollouts.open_rollouts()
    assert max(reads_per_turn) == 1
    assert tracker.tally.waiting == len(vms) - 1
    world.close()


def test_a_paused_rollout_is_not_stalled(world: World) -> None:
    index = build_index(world)
    rollout = start_rollout(world)
    world.do(world.control.rollout_requests.change_state(rollout, RolloutState.PAUSED, who="bob"))
    (tracker,) = index.rollouts.open_rollouts()
    assert tracker.stalled_s(world.now + 1_000_000) is None


def test_a_rollout_is_stalled_when_progress_is_overdue(world: World) -> None:
    index = build_index(world)
    start_rollout(world)
    (tracker,) = index.rollouts.open_rollouts()
    assert tracker.stalled_s(NOON + 900 + STALL_S) is None
    assert tracker.stalled_s(NOON + 901 + STALL_S) == 901 + STALL_S


def test_a_stopped_rollout_is_kept_until_its_target_has_another(world: World) -> None:
    index = build_index(world)
    world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(),)))
    rollout = start_rollout(world)
    world.advance(1_000)
    for known in (index, build_index(world)):
        assert [stopped.request.id for stopped in known.rollouts.stopped_since(NOON)] == [rollout]
        assert list(known.rollouts.stopped_since(world.now + 1)) == []
    start_rollout(world)
    for known in (index, build_index(world)):
        assert list(known.rollouts.stopped_since(NOON)) == []
