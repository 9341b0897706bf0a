"""Every story of this folder, played and compared with what it says. `conftest` tells how a scenario is written."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
Play = Callable[[str], str]
SHORT = """\
# Somebody looks at a VM (spec §4.2)
host h1
vm web-0 host=h1

> see web-0
document 1 of epoch 1
> advance 1m
(nothing)
"""


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_scenario_matches_its_transcript(path: Path, play: Play) -> None:
    told = path.read_text(encoding="utf-8")
    assert told.startswith("# "), f"{path.name} does not begin with what it is about: `# ...`"
    assert "spec §" in told.split("\n\n")[0], f"{path.name} names no section of the specification"
    assert "\n> " in told, f"{path.name} has no step: nothing is told"
    really = play(told)
    difference = difflib.unified_diff(told.splitlines(), really.splitlines(), "told", "played", lineterm="")
    assert told == really, "\n".join(["the story goes otherwise:", *difference])


def test_more_than_thirty_scenarios_are_found() -> None:
    assert len(STORIES) > 30


def test_a_correct_transcript_is_reproduced(play: Play) -> None:
    assert play(SHORT) == SHORT


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param("document 1 of epoch 1\n", id="of what is seen"),
        pytest.param("(nothing)\n", id="of nothing"),
    ],
)
def test_a_missing_expectation_fails_a_scenario(missing: str, play: Play) -> None:
    """An expectation is never made up: what is not told is not accepted."""
    told = SHORT.replace(missing, "")
    assert play(told) == SHORT != told


def test_a_surplus_expectation_fails_a_scenario(play: Play) -> None:
    assert play(SHORT + "05 12:01:00 started    by magic\n") == SHORT


def test_an_unknown_command_in_a_scenario_is_an_error(play: Play) -> None:
    with pytest.raises(AttributeError, match="do_conjure"):
        play(SHORT + "> conjure web-0\n")
