"""Rollouts: started over hosts or a scope, followed, steered."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_rollout_over_hosts_is_answered_with_how_far_it_is(api: Any) -> None:
    """Spec §6.2: one update domain of a scope at a time."""
    answer = api.call("POST", "/rollouts", {"impact": "reboot", "hosts": ["H1", "h2"]})
    assert answer.status == 202
    rollout = answer.json
    assert (rollout["impact"], rollout["hosts"], rollout["scope"]) == ("reboot", ["h1", "h2"], "")
    assert (rollout["progress"], rollout["closed"], rollout["max_failures"]) == ("running", False, 1)
    assert rollout["notice_s"] == 900
    assert rollout["tally"] == {
        "total": 6,
        "done": 0,
        "failed": 0,
        "withdrawn": 0,
        "started": 0,
        "scheduled": 4,
        "waiting": 2,
    }
    assert rollout["next_update_domains"] == [0, 1]


def test_a_rollout_is_shown_with_its_events_by_any_unique_beginning_of_its_id(api: Any) -> None:
    started = api.post("/rollouts", {"impact": "update", "scope": "web"})
    shown = api.get(f"/rollouts/{started['id'].upper()}")
    assert [event["vms"] for event in shown["events"]] == [["web-0"]]
    assert [rollout["id"] for rollout in api.get("/rollouts")["rollouts"]] == [started["id"]]
    assert api.get(f"/rollouts/{started['id'][:30]}")["id"] == started["id"]
    api.post("/rollouts", {"impact": "update", "hosts": ["h3"]})
    assert "ambiguous" in api.refused("GET", f"/rollouts/{started['id'][:8]}")[2]


def test_a_rollout_runs_to_its_end(api: Any) -> None:
    started = api.post("/rollouts", {"impact": "migrate", "scope": "set:sub/lab/web"})
    api.world.advance(2 * 3600)
    done = api.get(f"/rollouts/{started['id']}")
    assert (done["progress"], done["closed"]) == ("completed", True)
    assert done["tally"]["done"] == 3
    assert done["next_update_domains"] == []

    api.post("/fleet/vms", {"name": "late", "availability_set": "web"})
    assert api.get(f"/rollouts/{started['id']}")["tally"] == done["tally"]


def test_a_rollout_is_paused_resumed_and_aborted(api: Any) -> None:
    """Aborting withdraws what has not started."""
    rollout = api.post("/rollouts", {"impact": "update", "scope": "web"})["id"]
    assert api.post(f"/rollouts/{rollout}/pause")["progress"] == "paused"
    assert api.refused("POST", f"/rollouts/{rollout}/pause")[0] == 409
    assert api.post(f"/rollouts/{rollout}/resume")["progress"] == "running"
    aborted = api.post(f"/rollouts/{rollout}/abort")
    assert (aborted["progress"], aborted["closed"], aborted["tally"]["withdrawn"]) == ("aborted", True, 1)
    assert api.refused("POST", f"/rollouts/{rollout}/resume")[0] == 409
    assert api.get(f"/requests/{rollout}")["state"] == "withdrawn"


BAD = [
    ({"impact": "update"}, 400, "hosts or over one scope"),
    ({"impact": "update", "hosts": ["h1"], "scope": "web"}, 400, "hosts or over one scope"),
    ({"impact": "explode", "hosts": ["h1"]}, 400, "impact"),
    ({"impact": "update", "hosts": ["h7"]}, 404, "host 'h7' does not exist"),
    ({"impact": "update", "hosts": ["h1", "H1"]}, 400, "'H1' is named twice"),
    ({"impact": "update", "scope": "nothing"}, 404, "scope 'nothing' does not exist"),
    ({"impact": "update", "hosts": ["h1"], "max_failures": -1}, 400, "max_failures"),
    ({"impact": "update", "hosts": ["h1"], "notice_s": 60}, 400, "shorter than the 900 s"),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD)
def test_a_rollout_that_cannot_be_is_refused(api: Any, body: Any, status: int, words: str) -> None:
    told, _, message = api.refused("POST", "/rollouts", body)
    assert told == status
    assert words in message


def test_a_request_that_is_no_rollout_is_not_one(api: Any) -> None:
    (event,) = api.restart_of("db")
    assert api.refused("GET", f"/rollouts/{event['request_id']}")[0] == 404
