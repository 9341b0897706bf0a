"""Who is expected to learn of a pending event: a neighbour counts only if it sees the event (spec §7.2, §14.6)."""

from __future__ import annotations

import pytest

from forewarn.core.explain.polling import EventAwareness, PollingPace
from forewarn.core.history import LastPoll
from forewarn.core.request import RequestedOperation
from forewarn.web.polling_report import expected_events
from tests.support.world import World, a_host, a_vm


@pytest.mark.parametrize(
    ("narrow", "polls", "awareness"),
    [
        (False, "web-1", EventAwareness.PENDING),
        (True, "web-1", EventAwareness.NO_VM),
        (True, "web-0", EventAwareness.PENDING),
    ],
    ids=["a neighbour will see it", "a neighbour will not see it", "the VM itself will see it"],
)
def test_a_polling_neighbour_can_prepare_only_if_it_sees_the_event(
    narrow: bool, polls: str, awareness: EventAwareness
) -> None:
    vms = [a_vm(f"web-{n}", availability_set="web", narrow_delivery=narrow) for n in (0, 1)]
    world = World(vms=vms, hosts=[a_host("h1")])
    try:
        polled = LastPoll(vm=world.vm(polls).key, scope_id=world.vm(polls).scope_id, at=world.now, version="2020-07-01")
        world.do(world.store.record_observations([polled], []))
        world.ask(RequestedOperation.RESTART, "web-0")
        expected = world.do(expected_events(world.store, {polled.vm: PollingPace(1.0)}.get))
        assert {key: one.awareness for key, one in expected.items()} == {world.vm("web-0").key: awareness}
    finally:
        world.close()
