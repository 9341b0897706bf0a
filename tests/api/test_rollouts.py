"""Rollouts: started over hosts or a scope, followed, paused, resumed and aborted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forewarn.machines.simulated import FailRule, SimulatedBehaviour
from forewarn.store.sqlite import SqliteStore


def test_a_new_rollout_is_answered_with_its_progress(api: Any) -> None:
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
        "not_needed": 0,
    }
    assert rollout["next_update_domains"] == [0, 1]


def test_a_rollout_is_shown_with_its_events_by_a_unique_id_prefix(api: Any) -> None:
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


def test_the_tally_of_a_rollout_outlives_its_events(api: Any) -> None:
    """The history still mentions the rollout when its events, which ended days before, are pruned."""
    started = api.post("/rollouts", {"impact": "migrate", "scope": "web"})
    api.world.advance(1000)
    api.post(f"/rollouts/{started['id']}/pause")
    api.world.advance(3 * 86400)
    aborted = api.post(f"/rollouts/{started['id']}/abort")
    assert (aborted["reason"], aborted["tally"]["total"]) == ("local user ann ended it", 3)
    api.world.advance(3600)
    closed = api.get(f"/rollouts/{started['id']}")
    assert closed["closed"]
    assert (closed["tally"]["done"], closed["tally"]["waiting"]) == (2, 1)

    api.post("/fleet/vms", {"name": "late", "availability_set": "web"})
    api.post("/history/prune", {"older_than_s": 86400})
    pruned = api.get(f"/rollouts/{started['id']}")
    assert pruned["events"] == []
    assert (pruned["tally"], pruned["reason"]) == (closed["tally"], closed["reason"])

    api.world.advance(2 * 86400)
    api.post("/history/prune", {"older_than_s": 86400})
    assert api.refused("GET", f"/rollouts/{started['id']}")[:2] == (404, "NotFound")


def test_a_rollout_that_stopped_says_why(api: Any) -> None:
    api.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="web-0", note="no power"),)))
    started = api.post("/rollouts", {"impact": "update", "scope": "web"})
    api.world.advance(3600)
    stopped = api.get(f"/rollouts/{started['id']}")
    assert (stopped["progress"], stopped["reason"]) == (
        "stopped",
        "1 VM failed, and it stops after 1 (web-0: no power)",
    )
    assert (stopped["tally"]["done"], stopped["tally"]["failed"], stopped["tally"]["waiting"]) == (0, 1, 2)


def test_a_rollout_without_a_failure_limit_says_how_many_failed(api: Any) -> None:
    api.world.hypervisor.set_behaviour(SimulatedBehaviour((FailRule(vm="web-*", note="no power"),)))
    started = api.post("/rollouts", {"impact": "update", "scope": "web", "max_failures": 0})
    api.world.advance(2 * 3600)
    done = api.get(f"/rollouts/{started['id']}")
    assert (done["progress"], done["tally"]["done"], done["tally"]["failed"]) == ("completed", 0, 3)
    last = api.get(f"/history?request={started['id']}")["entries"][-1]["text"]
    assert "completed with 3 failed VMs: web-0: no power; web-1: no power; web-2: no power" in last


def test_a_rollout_is_paused_resumed_and_aborted(api: Any) -> None:
    """Aborting withdraws events that have not started."""
    rollout = api.post("/rollouts", {"impact": "update", "scope": "web"})["id"]
    assert api.post(f"/rollouts/{rollout}/pause")["progress"] == "paused"
    assert api.refused("POST", f"/rollouts/{rollout}/pause")[0] == 409
    assert api.post(f"/rollouts/{rollout}/resume")["progress"] == "running"
    aborted = api.post(f"/rollouts/{rollout}/abort")
    assert (aborted["progress"], aborted["closed"], aborted["tally"]["withdrawn"]) == ("aborted", True, 1)
    assert api.refused("POST", f"/rollouts/{rollout}/resume")[0] == 409
    assert api.get(f"/requests/{rollout}")["state"] == "canceled"


def test_a_rollout_is_found_by_its_id_in_any_case_and_never_without_a_name(api: Any) -> None:
    rollout = api.post("/rollouts", {"impact": "update", "scope": "web"})["id"]
    assert api.get(f"/rollouts/{rollout.upper()}")["id"] == rollout
    assert api.world.control.rollout_requests.find(rollout.upper()).id == rollout
    status, _, message = api.refused("POST", "/rollouts/%20/abort")
    assert (status, message.partition(":")[0]) == (404, "the name of the rollout is empty")


def test_a_rollout_starts_events_in_its_maintenance_windows(api: Any) -> None:
    body = {"impact": "update", "scope": "web", "windows": ["wed 02:00 4h Europe/Berlin"], "blackouts": ["2026-01-07"]}
    started = api.post("/rollouts", body)
    assert started["windows"] == "wed 02:00 4h Europe/Berlin; not on 2026-01-07"
    (event,) = api.get(f"/rollouts/{started['id']}")["events"]
    assert event["not_before"] == "2026-01-14T01:00:00.000Z"
    explained = api.get(f"/explain/{event['id']}")
    assert "its maintenance window is open from Wed 2026-01-14 02:00 CET" in json.dumps(explained)


def test_a_rollout_covers_all_hosts(api: Any) -> None:
    rollout = api.post("/rollouts", {"impact": "update", "all_hosts": True})
    assert rollout["hosts"] == ["h1", "h2", "h3"]
    both = {"impact": "update", "all_hosts": True, "hosts": ["h1"]}
    assert "give one of the two" in api.refused("POST", "/rollouts", both)[2]


BAD = [
    ({"impact": "update"}, 400, "give exactly one of them"),
    ({"impact": "update", "hosts": ["h1"], "scope": "web"}, 400, "give exactly one of them"),
    ({"impact": "explode", "hosts": ["h1"]}, 400, "impact"),
    ({"impact": "update", "hosts": ["h7"]}, 404, "host 'h7' does not exist"),
    ({"impact": "update", "hosts": ["h1", "H1"]}, 400, "'H1' is named twice"),
    ({"impact": "update", "scope": "nothing"}, 404, "scope 'nothing' does not exist"),
    ({"impact": "update", "hosts": ["h1"], "max_failures": -1}, 400, "max_failures"),
    ({"impact": "update", "hosts": ["h1"], "notice_s": 60}, 400, "shorter than the 15 min"),
    (
        {"impact": "update", "hosts": ["h1"], "windows": ["sat 02:00 4h Mars/Base"]},
        400,
        "time zone 'Mars/Base' does not",
    ),
    ({"impact": "update", "hosts": ["h1"], "windows": ["2020-01-05T02:00 4h UTC"]}, 400, "no maintenance window"),
    ({"impact": "update", "hosts": ["h1"], "blackouts": ["2026-12-24"]}, 400, "give a window, too"),
    (
        {"impact": "update", "hosts": ["h1"], "windows": ["02:00 4h"], "blackouts": ["soon"]},
        400,
        "'soon' is not a date",
    ),
    (
        {"impact": "update", "hosts": ["h1"], "windows": ["02:00 4h"], "deadline": "2020-01-01T00:00Z"},
        400,
        "is over: give a later one",
    ),
    (
        {"impact": "update", "hosts": ["h1"], "windows": ["02:00 4h"], "deadline": 1.8e9},
        400,
        "is not a time",
    ),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD)
def test_an_invalid_rollout_is_rejected(api: Any, body: Any, status: int, words: str) -> None:
    found, _, message = api.refused("POST", "/rollouts", body)
    assert found == status
    assert words in message


def test_a_request_that_is_not_a_rollout_is_not_found_as_one(api: Any) -> None:
    (event,) = api.restart_of("db")
    assert api.refused("GET", f"/rollouts/{event['request_id']}")[0] == 404


def test_the_reason_of_a_hold_has_a_limit(api: Any) -> None:
    assert api.call("POST", "/rollouts/hold", {"reason": "x" * 301}).status == 400
    assert api.post("/rollouts/hold", {"reason": "x" * 300})["is_held"]


def test_a_rollout_with_a_deadline_is_stored(api_of: Any, tmp_path: Path) -> None:
    api = api_of(store=SqliteStore.open(tmp_path / "forewarn.db"))
    body = {"impact": "update", "hosts": ["h1"], "windows": ["02:00 4h"], "deadline": "2026-02-01T00:00:00Z"}
    started = api.post("/rollouts", body)
    assert "2026-02-01" in api.get(f"/rollouts/{started['id']}")["windows"]
