"""Budgets on the command line and in the API (spec §13.2): set, list, remove, and what a rollout says."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_budget_is_set_listed_and_removed(lab: Any) -> None:
    assert "Budget all: at most 1 VM out of service at once." in lab.good("budget", "set", "all", "--at-most", "1")
    assert "There are no budgets." not in lab.good("budget", "list")
    assert lab.good("budget", "remove", "ALL") == "Budget all is removed.\n"
    assert "There are no budgets." in lab.good("budget", "list")
    assert "budget 'all' does not exist: `forewarn budget list` lists them" in lab.refused("budget", "remove", "all")


def test_a_rollout_and_its_explanation_name_the_budget_that_they_wait_for(lab: Any) -> None:
    lab.good("budget", "set", "all", "--at-most", "1")
    view = lab.json("rollout", "start", "--all-hosts", "--impact", "migrate")
    (wait,) = view["waits_for"]
    assert wait.startswith('the budget "all" allows 1 of ')
    assert wait in " ".join(lab.good("rollout", "show", view["id"]).split())
    assert f"It waits: {wait}." in " ".join(lab.good("explain", view["id"]).split())
    (group,) = lab.json("budget", "list")["budgets"][0]["groups"]
    assert (group["out_of_service"], group["limit"], group["reserved"], group["rollouts"]) == (1, 1, 1, [view["id"]])
    assert "1 of 1, 1 reserved (" in lab.good("budget", "list")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at-most", "0"], "a budget of 0 would keep every rollout waiting forever"),
        (["--at-most", "0%"], "a budget of 0 would keep every rollout waiting forever"),
        (["--at-most", "101%"], "101 % of the VMs are more than all of them: give at most 100 %"),
        (["--at-most", "some"], "'some' is not a limit: write a number of VMs like 2, or a whole percentage like 10%"),
        (["--at-most", "1", "--tag", "nothing=x"], "no VM has the tag 'nothing'"),
        (["--at-most", "1", "--location", "mars"], "no VM is in location 'mars'"),
        (["--at-most", "1", "--per", "rack"], "a budget counts VMs per everything, location"),
    ],
)
def test_a_wrong_budget_is_refused_with_one_sentence_and_changes_nothing(
    lab: Any, options: list[str], message: str
) -> None:
    assert message in " ".join(lab.refused("budget", "set", "web", *options).split())
    assert lab.json("budget", "list") == {"budgets": []}
