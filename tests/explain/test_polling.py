"""Who pays attention: every rule by which a VM counts as prepared or not."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Event, EventState
from forewarn.core.history import EventDelivery
from forewarn.explain.polling import (
    SILENCE_LIMIT_S,
    EventAwareness,
    PollingPace,
    PollingState,
    ScopePoller,
    can_still_prepare,
    event_awareness,
    polling_state,
    vms_given_before_start,
)

PUBLISHED = 1000.0
LIVELY, SILENT = PollingPace(1.0, 1.0), PollingPace(SILENCE_LIMIT_S + 1, 1.0)


def an_event(**facts: Any) -> Event:
    given: dict[str, Any] = {
        "id": "E",
        "scope_id": "set:sub/lab/web",
        "request_id": "r",
        "cause": Cause.USER_RESTART,
        "who": "ann",
        "vms": ("web-0",),
        "published_at": PUBLISHED,
        "not_before": PUBLISHED + 900,
    }
    return Event(**{**given, **facts})


def one(pace: PollingPace | None = LIVELY, *, at: float = PUBLISHED - 5, version: str = "2020-07-01") -> ScopePoller:
    return ScopePoller(pace=pace, at=at, version=version)


@pytest.mark.parametrize(
    ("pace", "is_off", "word"),
    [
        (None, False, PollingState.NEVER),
        (LIVELY, False, PollingState.ACTIVE),
        (PollingPace(SILENCE_LIMIT_S), False, PollingState.ACTIVE),
        (SILENT, False, PollingState.STOPPED),
        (None, True, PollingState.OFF),
        (LIVELY, True, PollingState.OFF),
    ],
)
def test_whether_a_vm_asks(pace: PollingPace | None, is_off: bool, word: PollingState) -> None:
    assert polling_state(pace, is_off=is_off) is word


@pytest.mark.parametrize(
    ("facts", "is_awaited"),
    [
        ({}, True),
        ({"status": EventState.STARTED}, False),
        ({"status": EventState.OVER}, False),
        ({"listed": False}, False),
        ({"cause": Cause.REIMAGE}, False),
    ],
    ids=["scheduled", "started", "over", "unlisted", "without a kind"],
)
def test_vms_can_prepare_for_what_is_scheduled_and_listed(facts: dict[str, Any], is_awaited: bool) -> None:
    assert can_still_prepare(an_event(**facts)) is is_awaited


def test_only_what_was_given_before_the_start_counts() -> None:
    def sighting(vm: str, status: str) -> EventDelivery:
        return EventDelivery(
            event_id="E", scope_id="s", vm=vm, status=status, version="2020-07-01", incarnation=2, at=PUBLISHED
        )

    assert vms_given_before_start([sighting("a", "scheduled"), sighting("a", "started"), sighting("b", "started")]) == {
        "a"
    }


def test_a_vm_that_was_given_its_event_is_prepared() -> None:
    assert event_awareness(an_event(), "a", given={"a"}, scope={}) is EventAwareness.GIVEN


def test_a_neighbour_who_was_given_it_may_prepare_for_the_vm() -> None:
    assert event_awareness(an_event(), "a", given={"b"}, scope={"a": one(SILENT)}) is EventAwareness.NEIGHBOUR


def test_where_nobody_ever_asked_nobody_is_told() -> None:
    assert event_awareness(an_event(), "a", given=set(), scope={}) is EventAwareness.NOBODY


@pytest.mark.parametrize(
    ("neighbour", "cause", "word"),
    [
        (one(), Cause.USER_RESTART, EventAwareness.SOON),
        (one(at=PUBLISHED), Cause.USER_RESTART, EventAwareness.SOON),
        (one(at=PUBLISHED + 1), Cause.USER_RESTART, EventAwareness.NOBODY),
        (one(SILENT), Cause.USER_RESTART, EventAwareness.NOBODY),
        (one(None), Cause.USER_RESTART, EventAwareness.NOBODY),
        (one(version="2017-08-01"), Cause.USER_RESTART, EventAwareness.SOON),
        (one(version="2017-08-01"), Cause.EVICTION, EventAwareness.NOBODY),
        (one(version="2017-11-01"), Cause.EVICTION, EventAwareness.SOON),
        (one(version="2017-11-01"), Cause.USER_DELETE, EventAwareness.NOBODY),
        (one(version="from another time"), Cause.USER_RESTART, EventAwareness.NOBODY),
    ],
    ids=[
        "it asks, and has not since",
        "it asked at that very moment",
        "it asked since, and was not given it",
        "it stopped asking",
        "it asked before a restart that nobody remembers",
        "an old version that shows a Reboot",
        "an old version that hides a Preempt",
        "the version that brought Preempt",
        "a version that hides a Terminate",
        "a version that is not known",
    ],
)
def test_whoever_still_asks_will_be_told_if_their_version_shows_it(
    neighbour: ScopePoller, cause: Cause, word: EventAwareness
) -> None:
    """Spec §3: a version shows only the kinds it knows."""
    assert event_awareness(an_event(cause=cause), "a", given=set(), scope={"b": neighbour}) is word
