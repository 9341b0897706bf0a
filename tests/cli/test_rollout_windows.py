"""Rollouts with maintenance windows on the command line, and the commands of the page about rollouts."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from forewarn.base.times import parse_time
from tests.support.markdown_pages import ROOT

PAGE = (ROOT / "docs/how-to/rollouts.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_a_rollout_shows_its_windows(lab: Any) -> None:
    options = ("--window", "wed 02:00 4h Europe/Berlin", "--blackout", "2099-12-24", "--deadline", "2099-12-31T22:00Z")
    text = lab.good("rollout", "start", "--scope", "db", *options)
    shown = "wed 02:00 4h Europe/Berlin; not on 2099-12-24; at the latest Thu 2099-12-31 23:00 CET"
    assert shown in " ".join(text.split())
    (rollout,) = lab.json("rollout", "list")["rollouts"]
    assert rollout["windows"] == shown


def test_a_deadline_may_be_a_duration_from_now(lab: Any) -> None:
    view = lab.json("rollout", "start", "--scope", "db", "--window", "2099-01-03T02:00 4h", "--deadline", "2d")
    (event,) = lab.json("rollout", "show", view["id"])["events"]
    assert parse_time(event["not_before"]) == pytest.approx(parse_time(view["requested_at"]) + 2 * 86_400, abs=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "sometimes"], "'sometimes' is not a maintenance window"),
        (["--window", "02:00 4h", "--deadline", "soon"], "'soon' is not a deadline: write it like 2026-12-31T22:00Z"),
        (["--deadline", "2d"], "give a window, too"),
    ],
)
def test_wrong_windows_are_answered_with_a_sentence(lab: Any, options: list[str], message: str) -> None:
    assert message in " ".join(lab.refused("rollout", "start", "--scope", "db", *options).split())
    assert lab.json("rollout", "list")["rollouts"] == []


@pytest.mark.parametrize("command", [line for line in COMMANDS if " start " in line or " plan " in line])
def test_the_commands_of_the_page_work(lab: Any, command: str) -> None:
    words = shlex.split(command)[1:]
    names = {"web": "db", "host-1": "h1"}  # those of this lab
    lab.good(*(names.get(word, word) for word in words))
