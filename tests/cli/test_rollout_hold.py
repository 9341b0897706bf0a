"""The hold on all rollouts, on the command line and on the pages of the portal."""

from __future__ import annotations

from typing import Any


def test_all_rollouts_are_held_and_released_with_one_command_each(lab: Any) -> None:
    lab.good("rollout", "start", "--scope", "db")
    assert "All rollouts are on hold." in lab.good("rollout", "hold", "--reason", "an incident")
    shown = lab("rollout", "list")
    assert "all rollouts are on hold: an incident" in " ".join(shown.stderr.split())
    assert "an incident" in shown.stderr
    assert "lift that hold first" in lab.refused("rollout", "hold", "--reason", "another")
    assert lab.good("rollout", "lift-hold") == "The hold on all rollouts is lifted.\n"
    assert lab("rollout", "list").stderr == ""


def test_a_rollout_that_starts_during_a_hold_says_that_it_waits_for_its_end(lab: Any) -> None:
    lab.good("rollout", "hold", "--reason", "an incident")
    started = lab.json("rollout", "start", "--scope", "db", "--no-wait")
    wait = "for the end of the hold on all rollouts (an incident)"
    assert started["waits_for"] == [wait]
    assert wait in " ".join(lab.good("rollout", "show", started["id"]).split())
    assert f"It waits: {wait}." in " ".join(lab.good("explain", started["id"]).split())
    lab.good("rollout", "lift-hold")
    assert lab.json("rollout", "show", started["id"])["waits_for"] == []


def test_a_hold_is_printed_as_json(lab: Any) -> None:
    view = lab.json("rollout", "hold", "--reason", "an incident")
    assert (view["is_held"], view["reason"]) == (True, "an incident")
    assert lab.json("rollout", "lift-hold")["is_held"] is False
