"""The status of rollouts and hosts in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.cause import Cause
from forewarn.core.event import Event
from forewarn.core.explain.explanation import ScopeFacts
from forewarn.core.explain.status import (
    EventWithFacts,
    RolloutProgress,
    host_explanation,
    rollout_explanation,
    rollout_title,
)
from forewarn.core.fleet import Host, HostHealth
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.request import (
    MaintenanceRequest,
    RequestedOperation,
    Rollout,
    RolloutImpact,
    RolloutState,
    RolloutTally,
    WaveSpec,
)
from forewarn.core.scope import Scope

NONE = dict.fromkeys(RolloutTally.__struct_fields__, 0)


def a_request(rollout: Rollout) -> MaintenanceRequest:
    return MaintenanceRequest(
        id="r1",
        operation=RequestedOperation.ROLLOUT,
        requested_by="Ops",
        requested_at=0.0,
        targets=rollout.hosts,
        rollout=rollout,
    )


PROGRESS: list[tuple[dict[str, Any], dict[str, int], str]] = [
    ({}, {"total": 3, "done": 1, "started": 1, "waiting": 1}, "It is running: 1 of 3 VMs done, 1 started, 1 waiting."),
    (
        {"progress": RolloutState.PAUSED},
        {"total": 2, "scheduled": 2},
        "It is paused and publishes no events until it is resumed: 0 of 2 VMs done, 2 scheduled.",
    ),
    (
        {"progress": RolloutState.STOPPED, "closed": True, "reason": "1 VM failed, and it stops after 1 (a: no power)"},
        {"total": 2, "failed": 1, "waiting": 1},
        "It stopped by itself: 0 of 2 VMs done, 1 failed, 1 never started. "
        "Reason: 1 VM failed, and it stops after 1 (a: no power).",
    ),
    (
        {"progress": RolloutState.COMPLETED, "closed": True, "reason": "a: no power"},
        {"total": 4, "done": 1, "failed": 3},
        "It completed with 3 failed VMs: 1 of 4 VMs done, 3 failed. Reason: a: no power.",
    ),
    ({"progress": RolloutState.COMPLETED, "closed": True}, {"total": 1, "done": 1}, "It completed: 1 of 1 VMs done."),
]


@pytest.mark.parametrize(("facts", "counts", "sentence"), PROGRESS)
def test_a_rollout_says_its_progress_and_why_it_ended(facts: Any, counts: dict[str, int], sentence: str) -> None:
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",), **facts)
    progress = RolloutProgress(tally=RolloutTally(**{**NONE, **counts}))
    assert rollout_explanation(a_request(rollout), rollout, progress, [], []).now == (sentence,)


WAVES = (WaveSpec(name="canary", vms=1), WaveSpec(name="rest"))


@pytest.mark.parametrize(
    ("facts", "progress", "sentence"),
    [
        ({}, {"next_update_domains": (0,)}, "Next is update domain 0 of its scopes."),
        (
            {},
            {"next_update_domains": (0,), "is_settling": True},
            "The next wave begins when wave 1 of 2 (canary) has settled.",
        ),
        (
            {"progress": RolloutState.PAUSED},
            {"next_update_domains": (0,), "is_settling": True},
            "The next wave begins when wave 1 of 2 (canary) has settled and it is resumed.",
        ),
        ({"wave": 1}, {"is_settling": True}, "It completes when wave 2 of 2 (rest) has settled."),
    ],
)
def test_a_rollout_says_what_comes_next(facts: Any, progress: Any, sentence: str) -> None:
    """While a wave settles, no update domain comes next: the next wave does, or the end."""
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=("h1",), waves=WAVES, **facts)
    explanation = rollout_explanation(
        a_request(rollout), rollout, RolloutProgress(tally=RolloutTally(**NONE), **progress), [], []
    )
    assert explanation.now[1:] == (sentence,)


def test_a_rollout_lists_the_history_entries_about_the_whole_rollout() -> None:
    rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h1", "h2"))
    entries = [
        HistoryEntry(at=1.0, kind=EntryKind.REQUESTED, text="Ops requested it"),
        HistoryEntry(at=2.0, kind=EntryKind.PUBLISHED, text="an event's own", event_id="E1"),
        HistoryEntry(at=3.0, kind=EntryKind.PAUSED, text="paused by Ops"),
    ]
    explanation = rollout_explanation(
        a_request(rollout), rollout, RolloutProgress(tally=RolloutTally(**NONE)), [], entries
    )
    assert explanation.title == "Rollout r1, reboot over hosts h1 and h2, requested by Ops"
    assert [line.text for line in explanation.lines] == ["Ops requested it", "paused by Ops"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"hosts": ("h1",)}, "rollout r1, update over host h1"),
        ({"hosts": tuple(f"h{n}" for n in range(6))}, "rollout r1, update over 6 hosts"),
        ({"scope_id": "set:sub/lab/web"}, "rollout r1, update over web"),
    ],
)
def test_a_rollout_is_named_by_what_it_does_and_where(facts: Any, words: str) -> None:
    rollout = Rollout(impact=RolloutImpact.UPDATE, **facts)
    assert rollout_title(a_request(rollout), rollout) == words


@pytest.mark.parametrize(
    ("health", "sentence"),
    [
        (HostHealth.HEALTHY, "h1 is healthy."),
        (HostHealth.DEGRADED, "h1 is predicted to fail: its VMs will be moved to other hosts."),
        (HostHealth.FAILED, "h1 has failed: its VMs are redeployed to other hosts."),
    ],
)
def test_a_host_says_its_health(health: HostHealth, sentence: str) -> None:
    explanation = host_explanation(Host(name="h1", location="here", zone="2", health=health), [], [])
    assert explanation.title == "host h1, in here, zone 2"
    assert explanation.now == (sentence, "No VM is on it.", "Nothing is pending on it.")


def test_many_pending_events_are_listed_for_the_first_and_counted_for_the_rest() -> None:
    facts_of_scope = ScopeFacts(now=0.0, scope=Scope(id="s"), title="VM a")
    given: dict[str, Any] = {"scope_id": "s", "request_id": "r1", "cause": Cause.HOST_UPDATE, "requested_by": "Ops"}
    events = [Event(id=f"E{n}", vms=("a",), published_at=0.0, not_before=900.0, **given) for n in range(10)]
    explanation = host_explanation(
        Host(name="h1", location="here"), [], [EventWithFacts(event=e, facts=facts_of_scope) for e in events]
    )
    assert len(explanation.lines) == 8
    assert explanation.now[2] == "Freeze of a (E0): It is scheduled and starts now. It was not delivered to a yet."
    assert explanation.now[-1] == "2 more are pending."
