"""Rollouts in waves over the API (spec §13.1, §13.6): by fields and as files, planned, started and explained."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.base.times import parse_time, time_text

FILE = """\
[rollout]
everything = true
impact = "migrate"
settle = "10m"

[[waves]]
name = "canary"
vms = 1
"""


def test_a_rollout_in_waves_shows_the_wave_and_why_it_waits(api: Any) -> None:
    started = api.post("/rollouts", {"everything": True, "impact": "migrate", "canary": "1", "settle_s": 600})
    assert (started["scope_title"], started["waves"], started["wave"]) == ("all VMs", ["canary", "rest"], 1)
    assert (started["settle_s"], started["settles_until"], started["waits_for"]) == (600, None, [])
    api.world.advance(905)
    shown = api.get(f"/rollouts/{started['id']}")
    assert shown["settles_until"] == time_text(api.world.now + 600)
    assert shown["waits_for"] == ["until 12:25 UTC: wave 1 of 2 (canary) settles"]
    explained = api.get(f"/explain/{started['id']}")
    assert "It waits: until 12:25 UTC: wave 1 of 2 (canary) settles." in str(explained)
    api.world.advance(600)
    assert api.get(f"/rollouts/{started['id']}")["wave"] == 2
    entries = [entry["text"] for entry in api.get("/history")["entries"] if entry["kind"] == "wave"]
    assert [text.partition(": ")[2] for text in entries] == [
        "wave 1 of 2 (canary) begins with 1 VM",
        "wave 1 of 2 (canary) is over and settles for 10m",
        f"wave 2 of 2 (rest) begins with {started['tally']['total'] - 1} VMs",
    ]


def test_a_running_rollout_shows_the_sizes_of_its_waves_and_its_end_as_its_plan_does(api: Any) -> None:
    """Spec §13.6: they are those of the plan at any time, if nobody approves and nothing interferes."""
    body = {"everything": True, "impact": "reboot", "canary": "1", "shares": [50], "settle_s": 600}
    plan = api.post("/rollouts/plan", body)
    rollout = api.post("/rollouts", body)
    for _ in range(4):
        shown = api.get(f"/rollouts/{rollout['id']}")
        assert shown["wave_vms"] == [wave["size"] for wave in plan["waves"]]
        assert (shown["ends_at"], shown["progress"]) == (plan["over_latest"], "running")
        assert api.get("/rollouts")["rollouts"][0]["ends_at"] == plan["over_latest"]
        api.world.advance(1000)
    api.world.advance(24 * 3600)
    shown = api.get(f"/rollouts/{rollout['id']}")
    assert (shown["closed"], shown["ends_at"], shown["wave_vms"]) == (True, None, [])


def test_the_expected_end_follows_the_pace_of_approvals_and_is_unknown_while_nothing_is_published(api: Any) -> None:
    rollout = api.post("/rollouts", {"everything": True, "impact": "migrate"})
    path = f"/rollouts/{rollout['id']}"
    (first, *_) = api.get(path)["events"]
    api.post(f"/events/{first['id']}/approve")
    api.world.advance(60)
    shown = api.get(path)
    assert shown["is_at_pace"]
    assert shown["ends_at"] < rollout["ends_at"]
    api.post("/rollouts/hold", {"reason": "an incident"})
    assert api.get(path)["ends_at"] is None
    api.post("/rollouts/hold/lift")
    api.post(f"{path}/pause")
    assert api.get(path)["ends_at"] is None
    assert api.get(path)["wave_vms"] == shown["wave_vms"]


def test_a_file_and_fields_describe_the_same_rollout(api: Any) -> None:
    fields = {"everything": True, "impact": "migrate", "settle_s": 600, "waves": [{"name": "canary", "vms": 1}]}
    by_file, by_fields = api.post("/rollouts/plan", {"file": FILE}), api.post("/rollouts/plan", fields)
    assert by_file == by_fields
    started = api.post("/rollouts", {"file": FILE})
    assert (started["impact"], started["waves"], started["settle_s"]) == ("migrate", ["canary", "rest"], 600)


def test_the_plan_is_what_happens_when_nothing_interferes(api: Any) -> None:
    """Spec §13.6."""
    plan = api.post("/rollouts/plan", {"file": FILE})
    assert api.get("/rollouts")["rollouts"] == [], "a plan starts nothing"
    started = api.post("/rollouts", {"file": FILE})
    api.world.advance(24 * 3600)
    events = api.get(f"/rollouts/{started['id']}")["events"]
    for wave in plan["waves"]:
        members = [event for event in events if set(event["vms"]) & set(wave["vms"])]
        assert wave["latest"]["begins_at"] == min(event["published_at"] for event in members)
        assert wave["latest"]["over_at"] == max(event["over_at"] for event in members)
        assert wave["starts"] == sorted({event["started_at"] for event in members})
    assert parse_time(plan["over_latest"]) == max(parse_time(event["over_at"]) for event in events) + 600
    assert plan["over_earliest"] < plan["over_latest"]
    assert (plan["is_partial"], plan["never_started"]) == (False, 0)


def test_the_plan_names_vms_without_a_polling_handler(api: Any) -> None:
    plan = api.post("/rollouts/plan", {"file": FILE})
    assert plan["without_handler"] == plan["vms"]
    assert any("not poll for events" in sentence for sentence in plan["summary"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[rollout]\nhosts = ['h1', 'nope']\n", "line 2 of the rollout file: host 'nope' does not exist"),
        ("[rollout]\nscope = 'nope'\n", "line 2 of the rollout file: scope 'nope' does not exist"),
        ("[rollout]\ntag = 'nope'\n", "line 2 of the rollout file: no VM of the fleet has the tag 'nope'"),
        ("[rollout]\nlocation = 'mars'\n", "line 2 of the rollout file: the fleet has no VM in 'mars'"),
        ("[rollout]\nimpact = 'update'\n", "line 1 of the rollout file: a rollout covers hosts, one scope,"),
        ("[rollout]\ntag = 'a'\neverything = true\n", "line 1 of the rollout file: a rollout covers hosts, one scope,"),
        (
            "[rollout]\neverything = true\nimpact = 'boom'\n",
            "line 3 of the rollout file: the impact 'boom'",
        ),
        ("[rollout]\neverything = true\nnotice = '1m'\n", "line 3 of the rollout file: notice"),
        ("[rollout]\neverything = true\nsettle = '40d'\n", "line 3 of the rollout file: a settling time of"),
        ("[rollout]\neverything = true\nmax_failures = -1\n", "line 3 of the rollout file: max_failures is -1"),
        ("[rollout]\neverything = true\nshort_notice = true\n", "line 3 of the rollout file: a short notice needs"),
        ("[rollout]\neverything = true\n[[waves]]\nshare = 0\n", "line 4 of the rollout file: wave 'canary' is empty"),
        ("[rollout]\neverything = true\n[[waves]]\nvms = 0\n", "line 4 of the rollout file: wave 'canary' is empty"),
        ("[rollout]\neverything = true\n[[waves]]\nvms = -1\n", "line 4 of the rollout file: wave 'canary' has -1 VMs"),
        ("[rollout]\neverything = true\n[[waves]]\ntag = 'no'\n", "line 4 of the rollout file: wave 'canary' is empty"),
        (
            "[rollout]\neverything = true\n[[waves]]\nshare = 60\n[[waves]]\nname = 'b'\nshare = 50\n",
            "line 7 of the rollout file: the shares make 110 %",
        ),
        (
            "[rollout]\neverything = true\n[[waves]]\nvms = 1\nshare = 50\n",
            "line 5 of the rollout file: wave 'canary' has several sizes",
        ),
        (
            "[rollout]\neverything = true\n[[waves]]\nname = 'a'\nvms = 1\n[[waves]]\nname = 'A'\nvms = 1\n",
            "line 7 of the rollout file: two waves are called 'A'",
        ),
        (
            "[rollout]\neverything = true\nnotice = '1m'\n",
            "or write short_notice = true to test with less",
        ),
        ("[rollout]\neverything = true\n[windows]\nopen = ['x']\n", "line 4 of the rollout file: 'x' is not a maint"),
        (
            "[rollout]\neverything = true\n[windows]\nopen = ['2020-01-01T00:00 1h']\n",
            "line 4 of the rollout file: no maintenance window",
        ),
        (
            f"[rollout]\neverything = true\n[windows]\ndeadline = '1d'\nopen = {['02:00 1h'] * 101}\n",
            "line 5 of the rollout file: 101 maintenance windows are too many: give at most 100",
        ),
        (
            "[rollout]\neverything = true\n[windows]\ndeadline = '1d'\n",
            "line 4 of the rollout file: blackout dates",
        ),
        (
            "[rollout]\neverything = true\n[windows]\nblackouts = ['x']\n",
            "line 4 of the rollout file: 'x' is not a",
        ),
    ],
)
@pytest.mark.parametrize("route", ["/rollouts", "/rollouts/plan"])
def test_a_bad_file_is_answered_with_its_line_and_changes_nothing(
    api: Any, route: str, text: str, message: str
) -> None:
    assert message in api.refused("POST", route, {"file": text})[2]
    assert api.get("/rollouts")["rollouts"] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"everything": True, "shares": [0]}, "a share of 0 % is empty"),
        ({"everything": True, "canary": "0"}, "a canary of 0 VMs is empty"),
        ({"everything": True, "canary": "tag=no"}, "wave 'canary' is empty, because no VM of the rollout has the tag"),
        ({"everything": True, "waves": [{"name": "a", "share": 0}]}, "wave 'a' is empty, because its share is 0"),
        ({"everything": True, "canary": "1", "waves": [{"name": "a", "vms": 1}]}, "give one of the two"),
        ({"everything": True, "file": FILE}, "give no other field beside it"),
        ({"everything": True, "hosts": ["h1"]}, "give exactly one of them"),
    ],
)
def test_bad_waves_are_rejected_and_change_nothing(api: Any, fields: dict[str, Any], message: str) -> None:
    assert message in api.refused("POST", "/rollouts", fields)[2]
    assert api.get("/rollouts")["rollouts"] == []
