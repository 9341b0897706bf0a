"""The standing order on the command line: set, show, remove."""

from __future__ import annotations

from typing import Any


def test_a_standing_order_is_set_shown_and_removed(lab: Any) -> None:
    assert "There is no standing order." in lab.good("rollout", "standing", "show")
    shown = lab.good("rollout", "standing", "set", "--within", "30d", "--window", "sat 02:00 4h")
    assert "Standing order: update every host within 30 d" in shown
    view = lab.json("rollout", "standing", "show")
    assert (view["is_set"], view["visited"], view["late"]) == (True, 0, 0)
    assert view["hosts"][0]["state"] == "in progress"
    assert view["hosts"][0]["rollout"] in {rollout["id"] for rollout in lab.json("rollout", "list")["rollouts"]}
    assert lab.good("rollout", "standing", "remove") == "The standing order is removed.\n"
    assert "there is no standing order" in lab.refused("rollout", "standing", "remove")


def test_a_wrong_standing_order_is_refused_with_one_sentence(lab: Any) -> None:
    message = lab.refused("rollout", "standing", "set", "--within", "1m")
    assert "hosts cannot be visited within 1 min: give 1 h to 366 d" in " ".join(message.split())
    assert not lab.json("rollout", "standing", "show")["is_set"]


def test_a_notice_that_is_too_short_is_rejected_without_an_option_that_does_not_exist(lab: Any) -> None:
    text = lab("rollout", "standing", "set", "--within", "30d", "--notice", "1m").stderr
    assert "give 15 min or more with --notice, or omit it" in " ".join(text.split())
    assert "--short-notice" not in text
