"""--dry-run shows what a command would do, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

COMMANDS = [
    ("restart", "web", "db-0"),
    ("redeploy", "web"),
    ("evict", "spot"),
    ("delete", "web"),
    ("power", "web", "off"),
    ("degrade", "h1"),
    ("fail", "h2"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_dry_run_changes_nothing_and_shows_every_event(lab: Any, arguments: tuple[str, ...]) -> None:
    before = lab.json("history")
    message = lab.json(*arguments, "--dry-run")
    assert message["events"]
    assert "Nothing was changed." in lab.good(*arguments, "--dry-run")
    assert lab.json("history") == before


def test_a_dry_run_says_why_there_is_no_event(lab: Any) -> None:
    text = lab.good("delete", "web", "--dry-run")
    assert "Delete of web at once, without an event: no terminate notification is set." in text


@pytest.mark.parametrize("arguments", [("evict", "web"), ("restart", "nobody"), ("rollout", "start", "--host", "h9")])
def test_a_dry_run_refuses_what_the_command_refuses(lab: Any, arguments: tuple[str, ...]) -> None:
    assert lab.refused(*arguments, "--dry-run") == lab.refused(*arguments)
