"""Rollouts: progress, and the exit code for scripts (spec §6.2)."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.cli.api_client import ApiClient
from forewarn.cli.rollout import bar_cells, progress_bar, rollout_state


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=10**6), min_size=1, max_size=6), st.integers(1, 200))
def test_the_progress_bar_has_exactly_the_given_width(counts: list[int], width: int) -> None:
    cells = bar_cells(counts, width)
    assert min(cells) >= 0
    assert sum(cells) == (width if sum(counts) else 0)
    assert all(cell == 0 for cell, count in zip(cells, counts, strict=True) if count == 0)


def test_failed_vms_have_their_own_part_of_the_bar() -> None:
    tally = {"total": 5, "done": 1, "failed": 1, "withdrawn": 0, "not_needed": 1, "started": 1, "scheduled": 1}
    styles = [str(span.style) for span in progress_bar(tally | {"waiting": 0}, 5).spans]
    assert styles == ["green", "red", "bright_black", "cyan", "yellow"]


def pass_time(lab: Any, turns: int) -> None:
    """Advance the clock beyond the notice each time something is published."""

    def advance(api: ApiClient) -> None:
        pass_time(lab, turns - 1)
        api.post("clock", "advance", body={"by_s": 1200})

    if turns:
        lab.when("published", advance)


def test_a_rollout_over_a_scope_is_followed_update_domain_by_update_domain(lab: Any) -> None:
    pass_time(lab, 2)
    text = lab.good("rollout", "start", "--scope", "db", "--impact", "reboot", "--wait")
    assert "2 of 2 done" in text
    assert "completed" in text


def test_a_rollout_that_is_followed_in_a_pipe_prints_its_id_first(lab: Any) -> None:
    pass_time(lab, 2)
    first, *_, last_title = [
        line for line in lab.good("rollout", "start", "--scope", "db", "--wait").splitlines() if "over" in line
    ]
    (rollout,) = lab.json("rollout", "list")["rollouts"]
    assert first == f"Rollout {rollout['id']}: update over db  running"
    assert last_title == f"Rollout {rollout['id']}: update over db  completed"


def test_a_rollout_that_is_followed_with_json_prints_one_document(lab: Any) -> None:
    pass_time(lab, 2)
    assert lab.json("rollout", "start", "--scope", "db", "--wait")["progress"] == "completed"


def test_a_rollout_over_all_hosts_names_them(lab: Any) -> None:
    view = lab.json("rollout", "start", "--all-hosts", "--no-wait")
    assert sorted(view["hosts"]) == ["h1", "h2", "h3"]
    assert "3 hosts" not in lab.good("rollout", "list")
    assert "h1, h2, h3" in lab.good("rollout", "show", view["id"][:8])


def test_waiting_for_an_aborted_rollout_exits_with_1(lab: Any) -> None:
    lab.when("published", lambda api: api.post("rollouts", api.get("rollouts")["rollouts"][0]["id"], "abort"))
    result = lab("rollout", "start", "--scope", "db", "--wait")
    assert result.exit_code == 1
    assert "aborted: local user ann ended it" in result.stderr


def test_a_rollout_can_be_watched_from_another_command(lab: Any) -> None:
    view = lab.json("rollout", "start", "--scope", "web", "--no-wait")
    lab.json("rollout", "abort", view["id"])
    assert lab("rollout", "show", view["id"][:8], "--watch", "--json").exit_code == 1


def test_a_rollout_is_paused_and_resumed(lab: Any) -> None:
    rollout = lab.json("rollout", "start", "--scope", "db", "--no-wait")["id"]
    paused = lab.good("rollout", "pause", rollout)
    assert "paused" in paused
    assert "Scheduled events still start when approved" in paused
    assert f"forewarn rollout resume {rollout}" in lab.good("rollout", "show", rollout)
    assert "running" in lab.good("rollout", "resume", rollout)


def test_vms_that_an_ended_rollout_left_out_no_longer_wait(lab: Any) -> None:
    rollout = lab.json("rollout", "start", "--scope", "db", "--no-wait")["id"]
    assert "0 of 2 done · 1 withdrawn · 1 never started" in lab.good("rollout", "abort", rollout)
    assert "has ended and cannot be resumed; start another" in lab.refused("rollout", "resume", rollout)


def test_without_rollouts_the_list_says_how_to_start_one(lab: Any) -> None:
    assert "forewarn rollout start --all-hosts" in lab.good("rollout", "list")


@pytest.mark.parametrize(
    ("view", "text"),
    [
        pytest.param({"progress": "completed", "tally": {"failed": 0}}, "completed", id="well"),
        pytest.param({"progress": "completed", "tally": {"failed": 1}}, "completed with 1 failed VM", id="one"),
        pytest.param({"progress": "completed", "tally": {"failed": 3}}, "completed with 3 failed VMs", id="three"),
        pytest.param({"progress": "stopped", "tally": {"failed": 3}}, "stopped", id="stopped"),
    ],
)
def test_a_rollout_that_ended_with_failed_vms_says_so(view: Any, text: str) -> None:
    assert rollout_state(view).plain == text


def test_why_a_rollout_ended_is_shown(lab: Any) -> None:
    rollout = lab.json("rollout", "start", "--scope", "web", "--no-wait")["id"]
    lab.good("rollout", "abort", rollout)
    assert "why  local user ann ended it" in lab.good("rollout", "show", rollout)


def test_never_stopping_needs_keep_going(lab: Any) -> None:
    refused = lab.refused("rollout", "start", "--scope", "web", "--max-failures", "0")
    assert "0 is not in the range x>=1" in refused
    both = lab.refused("rollout", "start", "--scope", "web", "--max-failures", "2", "--keep-going")
    assert both.startswith("--max-failures and --keep-going exclude each other")


@pytest.mark.parametrize("option", ["--short-notice", "--notice 30m", "--max-failures 3", "--keep-going"])
def test_rollout_options_reach_the_service(lab: Any, option: str) -> None:
    arguments = ["--notice", "1m"] if option == "--short-notice" else []
    view = lab.json("rollout", "start", "--scope", "web", "--no-wait", *option.split(), *arguments)
    expected = {
        "--short-notice": ("notice_s", 60),
        "--notice 30m": ("notice_s", 1800),
        "--max-failures 3": ("max_failures", 3),
        "--keep-going": ("max_failures", 0),
    }
    name, value = expected[option]
    assert view[name] == value


def test_a_rollout_shows_the_size_of_its_wave_and_when_it_probably_ends(lab: Any) -> None:
    text = lab.good("rollout", "start", "--scope", "db", "--canary", "1")
    assert "wave  1 of 2: canary, 1 VM" in text
    (view,) = lab.json("rollout", "list")["rollouts"]
    assert "ends  about " in text
    assert re.search(r"\(in 30m( \d+s)?\), if nobody approves", text)
    assert "ENDS ABOUT" in lab.good("rollout", "list")
    assert view["wave_vms"] == [1, 1]
