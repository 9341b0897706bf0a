"""Approvals: the first approval of an event is written, repeated ones write nothing (spec §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.history import EntryKind
from forewarn.core.request import RequestedOperation
from forewarn.errors import Unavailable
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm


class UnwritableStore(MemoryStore):
    """A store that rejects commits while `rejects_writes` is set."""

    rejects_writes = False

    async def commit(self, commit: Commit) -> int:
        if self.rejects_writes:
            raise Unavailable("the store is unavailable: try again later")
        return await super().commit(commit)


@pytest.fixture
def store() -> UnwritableStore:
    return UnwritableStore()


@pytest.fixture
def world(store: UnwritableStore) -> Iterator[World]:
    world = World(store=store, hosts=[a_host("h1")], vms=[a_vm("web-0"), a_vm("web-1")])
    yield world
    world.close()


def approve(world: World, *event_ids: str) -> str | None:
    """Approve events as web-0, without a reconcile pass afterwards."""
    return world.do(world.control.guests.approve(world.vm("web-0").key, event_ids))


REACH_STATE: dict[EventState, Callable[[World], object]] = {
    EventState.SCHEDULED: lambda world: None,
    EventState.STARTED: lambda world: world.do(world.control.reconciler.reconcile()),
    EventState.OVER: lambda world: world.advance(3600),
}


@pytest.mark.parametrize("state", REACH_STATE)
def test_a_repeated_approval_writes_nothing(world: World, store: UnwritableStore, state: EventState) -> None:
    [event] = world.ask(RequestedOperation.RESTART, "web-0")
    assert approve(world, event.id) is None
    REACH_STATE[state](world)
    assert [found.status for found in world.events()] == [state]

    store.rejects_writes = True
    assert approve(world, event.id) is None
    assert approve(world, event.id, "NEVER-WAS") == "NEVER-WAS"
    store.rejects_writes = False

    approvals = [entry for entry in store.history(event_id=event.id) if entry.kind is EntryKind.APPROVED]
    assert [entry.actor for entry in approvals] == ["web-0"]


def test_an_approval_that_cannot_be_written_fails(world: World, store: UnwritableStore) -> None:
    [first] = world.ask(RequestedOperation.RESTART, "web-0")
    store.rejects_writes = True
    with pytest.raises(Unavailable):
        approve(world, first.id)
    store.rejects_writes = False
    assert approve(world, first.id) is None
    assert [entry.kind for entry in store.history(event_id=first.id)].count(EntryKind.APPROVED) == 1
