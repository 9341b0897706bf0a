"""A turn does everything that is due, whatever goes wrong with a part of it."""

from __future__ import annotations

import pytest

from forewarn.core.commit import Commit
from forewarn.core.event import EventState
from forewarn.core.request import RequestedOperation
from forewarn.store.memory import MemoryStore
from tests.support.world import World, a_host, a_vm


class Grudging(MemoryStore):
    """A store that has something against one scope, once it is told to."""

    against = ""

    async def commit(self, commit: Commit) -> int:
        if self.against and any(scope.id == self.against for scope in commit.scopes):
            raise RuntimeError("not this one")
        return await super().commit(commit)


def test_trouble_with_one_scope_keeps_no_other_from_its_turn() -> None:
    store = Grudging()
    world = World(store=store, hosts=[a_host("h1")], vms=[a_vm("bad"), a_vm("good")])
    events = {name: world.ask(RequestedOperation.RESTART, name)[0] for name in ("bad", "good")}
    for name in events:
        world.do(world.control.guests.approve(world.vm(name).key, (events[name].id,)))
    store.against = world.scope("bad").id

    with pytest.raises(RuntimeError, match="not this one"):
        world.settle()

    assert world.store.event(events["good"].id).status is EventState.STARTED  # type: ignore[union-attr]
    assert [effect.vm for effect in world.ledger.effects()] == ["sub/lab/good"]

    store.against = ""
    world.advance(60)
    assert {event.status for event in world.events()} == {EventState.OVER}
    world.close()
