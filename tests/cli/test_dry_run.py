"""--dry-run: what a command would do, and nothing is done."""

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
    ("rollout", "start", "--scope", "db"),
    ("rollout", "start", "--all-hosts", "--impact", "reboot"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_is_changed_and_everything_is_told(lab: Any, words: tuple[str, ...]) -> None:
    before = lab.json("history")
    told = lab.json(*words, "--dry-run")
    assert told["events"]
    assert "Nothing was changed." in lab.good(*words, "--dry-run")
    assert lab.json("history") == before


def test_a_rollout_is_told_wave_by_wave(lab: Any) -> None:
    text = lab.good("rollout", "start", "--scope", "db", "--impact", "reboot", "--dry-run")
    assert "2 events over 2 VMs, in 2 waves, one update domain of a scope at a time." in text
    lines = [line.split() for line in text.splitlines() if "Reboot" in line]
    assert [line[:4] for line in lines] == [["1", "Reboot", "db-0", "0"], ["2", "Reboot", "db-1", "1"]]


def test_what_happens_without_an_event_is_told_with_its_reason(lab: Any) -> None:
    text = lab.good("delete", "web", "--dry-run")
    assert "delete of web at once, without an event: web has no terminate notification." in text


@pytest.mark.parametrize("words", [("evict", "web"), ("restart", "nobody"), ("rollout", "start", "--host", "h9")])
def test_refusals_are_those_of_the_command_itself(lab: Any, words: tuple[str, ...]) -> None:
    assert lab.refused(*words, "--dry-run") == lab.refused(*words)
