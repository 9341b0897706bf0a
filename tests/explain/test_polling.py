"""Polling states, and every rule by which a VM knows of a scheduled event or not."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Event, EventState
from forewarn.core.explain.polling import (
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
from forewarn.core.history import EventDelivery

PUBLISHED = 1000.0
ACTIVE, SILENT = PollingPace(1.0, 1.0), PollingPace(SILENCE_LIMIT_S + 1, 1.0)


def an_event(**facts: Any) -> Event:
    given: dict[str, Any] = {
        "id": "E",
        "scope_id": "set:sub/lab/web",
        "request_id": "r",
        "cause": Cause.USER_RESTART,
        "requested_by": "ann",
        "vms": ("web-0",),
        "published_at": PUBLISHED,
        "not_before": PUBLISHED + 900,
    }
    return Event(**{**given, **facts})


def poller(pace: PollingPace | None = ACTIVE, *, at: float = PUBLISHED - 5, version: str = "2020-07-01") -> ScopePoller:
    return ScopePoller(pace=pace, at=at, version=version)


@pytest.mark.parametrize(
    ("pace", "is_off", "expected"),
    [
        (None, False, PollingState.NEVER),
        (ACTIVE, False, PollingState.ACTIVE),
        (PollingPace(SILENCE_LIMIT_S), False, PollingState.ACTIVE),
        (SILENT, False, PollingState.STOPPED),
        (None, True, PollingState.OFF),
        (ACTIVE, True, PollingState.OFF),
    ],
)
def test_the_polling_state_follows_from_the_time_since_the_last_poll(
    pace: PollingPace | None, is_off: bool, expected: PollingState
) -> None:
    assert polling_state(pace, is_off=is_off) is expected


@pytest.mark.parametrize(
    ("facts", "can_prepare"),
    [
        ({}, True),
        ({"status": EventState.STARTED}, False),
        ({"status": EventState.OVER}, False),
        ({"listed": False}, False),
        ({"cause": Cause.REIMAGE}, False),
    ],
    ids=["scheduled", "started", "over", "unlisted", "without a kind"],
)
def test_vms_can_prepare_for_scheduled_and_listed_events(facts: dict[str, Any], can_prepare: bool) -> None:
    assert can_still_prepare(an_event(**facts)) is can_prepare


def test_only_deliveries_before_the_start_count() -> None:
    def delivery(vm: str, status: str) -> EventDelivery:
        return EventDelivery(
            event_id="E", scope_id="s", vm=vm, status=status, version="2020-07-01", incarnation=2, at=PUBLISHED
        )

    deliveries = [delivery("a", "scheduled"), delivery("a", "started"), delivery("b", "started")]
    assert vms_given_before_start(deliveries) == {"a"}


def test_a_vm_knows_of_an_event_that_was_delivered_to_it() -> None:
    assert event_awareness(an_event(), "a", given={"a"}, scope={}) is EventAwareness.DELIVERED


def test_a_neighbour_that_knows_of_the_event_may_prepare_for_the_vm() -> None:
    assert event_awareness(an_event(), "a", given={"b"}, scope={"a": poller(SILENT)}) is EventAwareness.NEIGHBOUR


def test_no_vm_learns_of_an_event_in_a_scope_that_has_never_polled() -> None:
    assert event_awareness(an_event(), "a", given=set(), scope={}) is EventAwareness.NO_VM


@pytest.mark.parametrize(
    ("neighbour", "cause", "expected"),
    [
        (poller(), Cause.USER_RESTART, EventAwareness.PENDING),
        (poller(at=PUBLISHED), Cause.USER_RESTART, EventAwareness.PENDING),
        (poller(at=PUBLISHED + 1), Cause.USER_RESTART, EventAwareness.NO_VM),
        (poller(SILENT), Cause.USER_RESTART, EventAwareness.NO_VM),
        (poller(None), Cause.USER_RESTART, EventAwareness.NO_VM),
        (poller(version="2017-08-01"), Cause.USER_RESTART, EventAwareness.PENDING),
        (poller(version="2017-08-01"), Cause.EVICTION, EventAwareness.NO_VM),
        (poller(version="2017-11-01"), Cause.EVICTION, EventAwareness.PENDING),
        (poller(version="2017-11-01"), Cause.USER_DELETE, EventAwareness.NO_VM),
        (poller(version="2099-01-01"), Cause.USER_RESTART, EventAwareness.NO_VM),
    ],
    ids=[
        "it polls, but has not since the publication",
        "it polled in the moment of the publication",
        "it polled since, without a delivery",
        "it stopped polling",
        "it polled before a restart, and its pace is unknown",
        "an old version that shows a Reboot",
        "an old version that hides a Preempt",
        "the version that brought Preempt",
        "a version that hides a Terminate",
        "an unknown version",
    ],
)
def test_a_polling_vm_will_learn_of_the_event_if_its_version_lists_the_kind(
    neighbour: ScopePoller, cause: Cause, expected: EventAwareness
) -> None:
    """Spec §3: a version lists only the kinds it knows."""
    assert event_awareness(an_event(cause=cause), "a", given=set(), scope={"b": neighbour}) is expected
