"""Compares every scenario with its transcript; `conftest` explains the format."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))
Play = Callable[[str], str]
SHORT = """\
# The document of a VM (spec §4.2)
host h1
vm web-0 host=h1

> see web-0
document 1 of epoch 1
> advance 1m
(nothing)
"""


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenario_matches_its_transcript(path: Path, play: Play) -> None:
    transcript = path.read_text(encoding="utf-8")
    assert transcript.startswith("# "), f"{path.name} does not begin with a title: `# ...`"
    assert "spec §" in transcript.split("\n\n")[0], f"{path.name} names no section of the specification"
    assert "\n> " in transcript, f"{path.name} has no step"
    actual = play(transcript)
    diff = difflib.unified_diff(transcript.splitlines(), actual.splitlines(), "transcript", "played", lineterm="")
    assert transcript == actual, "\n".join(["the scenario differs from its transcript:", *diff])


def test_more_than_thirty_scenarios_are_found() -> None:
    assert len(SCENARIOS) > 30


def test_a_correct_transcript_is_reproduced(play: Play) -> None:
    assert play(SHORT) == SHORT


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param("document 1 of epoch 1\n", id="of a document"),
        pytest.param("(nothing)\n", id="of nothing"),
    ],
)
def test_a_missing_expectation_fails_a_scenario(missing: str, play: Play) -> None:
    """An expectation is never invented: a line that the transcript lacks is not accepted."""
    incomplete = SHORT.replace(missing, "")
    assert play(incomplete) == SHORT != incomplete


def test_a_surplus_expectation_fails_a_scenario(play: Play) -> None:
    assert play(SHORT + "05 12:01:00 started    by magic\n") == SHORT


def test_an_unknown_command_in_a_scenario_is_an_error(play: Play) -> None:
    with pytest.raises(AttributeError, match="do_conjure"):
        play(SHORT + "> conjure web-0\n")
