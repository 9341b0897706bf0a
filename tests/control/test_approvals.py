"""What approvals write: the first of an event its fact, any other nothing (spec §5.2)."""

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


class Shut(MemoryStore):
    """Takes nothing any more, once it is told to."""

    is_shut = False

    async def commit(self, commit: Commit) -> int:
        if self.is_shut:
            raise Unavailable("the store is out of reach: try again later")
        return await super().commit(commit)


@pytest.fixture
def store() -> Shut:
    return Shut()


@pytest.fixture
def world(store: Shut) -> Iterator[World]:
    world = World(store=store, hosts=[a_host("h1")], vms=[a_vm("web-0"), a_vm("web-1")])
    yield world
    world.close()


def approve(world: World, *event_ids: str) -> str | None:
    """With no turn after it."""
    return world.do(world.control.guests.approve(world.vm("web-0").key, event_ids))


UNTIL: dict[EventState, Callable[[World], object]] = {
    EventState.SCHEDULED: lambda world: None,
    EventState.STARTED: lambda world: world.do(world.control.reconciler.reconcile()),
    EventState.OVER: lambda world: world.advance(3600),
}


@pytest.mark.parametrize("until", UNTIL)
def test_an_approval_that_changes_nothing_is_not_written(world: World, store: Shut, until: EventState) -> None:
    [event] = world.ask(RequestedOperation.RESTART, "web-0")
    assert approve(world, event.id) is None
    UNTIL[until](world)
    assert [found.status for found in world.events()] == [until]

    store.is_shut = True
    assert approve(world, event.id) is None
    assert approve(world, event.id, "NEVER-WAS") == "NEVER-WAS"
    store.is_shut = False

    approvals = [entry for entry in store.history(event_id=event.id) if entry.what is EntryKind.APPROVED]
    assert [entry.who for entry in approvals] == ["web-0"]


def test_an_approval_that_changes_something_is_written_or_fails(world: World, store: Shut) -> None:
    [first] = world.ask(RequestedOperation.RESTART, "web-0")
    store.is_shut = True
    with pytest.raises(Unavailable):
        approve(world, first.id)
    store.is_shut = False
    assert approve(world, first.id) is None
    assert [entry.what for entry in store.history(event_id=first.id)].count(EntryKind.APPROVED) == 1
