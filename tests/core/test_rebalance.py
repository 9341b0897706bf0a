"""SpotRebalanceRecommendation, an event without impact in api-version 2024-07-09 (spec §14.4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from forewarn.core.decision import EnablementMode, Policy
from forewarn.core.event import Ending, Event, EventState
from forewarn.core.fleet import Priority
from forewarn.core.projection import document_for
from forewarn.core.request import RequestedOperation
from forewarn.errors import Refused
from forewarn.protocol.codec import encode_document
from tests.support.world import World, a_host, a_vm

RECOMMEND, EVICT = RequestedOperation.RECOMMEND_REBALANCE, RequestedOperation.EVICT


def make_world(*, on: bool) -> World:
    policy = Policy(enablement=EnablementMode.ALWAYS, recommends_rebalancing=on)
    vms = [a_vm("spot", host="h1", priority=Priority.SPOT), a_vm("plain", host="h1")]
    return World(vms=vms, hosts=[a_host("h1")], policy=policy)


@pytest.fixture
def world() -> Iterator[World]:
    made = make_world(on=True)
    yield made
    made.close()


def recommend(world: World) -> Event:
    (event,) = world.ask(RECOMMEND, "spot")
    return event


def shown(world: World, version: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(encode_document(document_for(world.scope("spot")), version))["Events"]
    return events


def stored(world: World, event: Event) -> Event:
    found = world.store.event(event.id)
    assert found is not None
    return found


def test_only_the_new_version_lists_a_recommendation(world: World) -> None:
    event = recommend(world)
    (listed,) = shown(world, "2024-07-09")
    assert (listed["EventId"], listed["EventType"], listed["EventStatus"]) == (
        event.id,
        "SpotRebalanceRecommendation",
        "Scheduled",
    )
    assert (listed["EventSource"], listed["DurationInSeconds"]) == ("Platform", 0)
    assert shown(world, "2020-07-01") == []


def test_a_recommendation_is_gone_after_ten_minutes_and_nothing_was_done(world: World) -> None:
    event = recommend(world)
    world.advance(599)
    assert stored(world, event).status is EventState.SCHEDULED
    world.advance(2)
    over = stored(world, event)
    assert (over.ending, over.reason, over.acts) == (Ending.NOT_NEEDED, "it was listed for ten minutes", ())
    assert shown(world, "2024-07-09") == []
    assert world.vm("spot").host == "h1"


def test_an_approval_of_a_recommendation_changes_nothing(world: World) -> None:
    event = recommend(world)
    assert world.approve("spot", event.id) is None
    world.advance(60)
    assert stored(world, event) == event


def test_a_preempt_takes_the_place_of_the_recommendation(world: World) -> None:
    event = recommend(world)
    (preempt,) = world.ask(EVICT, "spot")
    assert [each["EventId"] for each in shown(world, "2024-07-09")] == [preempt.id]
    assert (stored(world, event).ending, stored(world, event).reason) == (Ending.NOT_NEEDED, "replaced by eviction")
    with pytest.raises(Refused, match="the eviction of VM 'spot' is pending"):
        world.ask(RECOMMEND, "spot")


def test_a_second_recommendation_and_one_for_a_regular_vm_are_refused(world: World) -> None:
    recommend(world)
    with pytest.raises(Refused, match="the rebalance recommendation of VM 'spot' is pending"):
        world.ask(RECOMMEND, "spot")
    with pytest.raises(Refused, match="'plain' is not a Spot VM"):
        world.ask(RECOMMEND, "plain")


def test_recommendations_are_off_by_default() -> None:
    world = make_world(on=False)
    with pytest.raises(Refused, match="recommendations are off: switch the setting preview_versions on"):
        world.ask(RECOMMEND, "spot")
    assert world.events() == []
    world.close()
