"""The pages about the agent: their examples are valid, and the reference names every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.agent.approval import PROFILES
from forewarn.agent.config import DEFAULT_LISTEN_ADDRESS, DEFAULT_STATE_DIRECTORY, parse_config

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "agent.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "reference" / "agent.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", GUIDE + PAGE, re.DOTALL)


def keys(title: str) -> set[str]:
    """The keys in the first column of the table below this title."""
    section = PAGE.partition(f"{title}\n")[2]
    rows = re.search(r"\n\| key \|.*?\n\n", section, re.DOTALL)
    assert rows is not None
    return {key for row in rows.group().strip().splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def known(text: str) -> set[str]:
    """The keys that the message about an unknown key offers."""
    with pytest.raises(Exception, match="write one of") as caught:
        parse_config(text)
    (line,) = [line for line in str(caught.value).splitlines() if "write one of" in line]
    return set(line.partition("write one of ")[2].split(", "))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_is_a_valid_configuration(number: int) -> None:
    assert parse_config(EXAMPLES[number]).rules


def test_the_page_has_examples_and_the_actual_defaults() -> None:
    assert len(EXAMPLES) >= 2
    assert f"`{DEFAULT_STATE_DIRECTORY}`" in PAGE
    assert f"`{DEFAULT_LISTEN_ADDRESS}`" in PAGE


def test_the_page_explains_exactly_the_existing_keys() -> None:
    assert keys("## Configuration file") | {"steps", "rules"} == known("[[rules]]\n[zzzzzz]\n")
    assert keys("## Rules") | {"name"} == known("[[rules]]\nzzzzzz = 1\n")
    step = known('[[rules]]\n[steps.a]\nuse = "command"\nbudget = "1s"\nrun = "x"\nzzzzzz = 1\n')
    assert keys("## Steps") == step - {"run", "undo", "check"}


def test_the_page_explains_every_profile() -> None:
    rows = PAGE.partition("## Profiles")[2].partition("##")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", rows, re.MULTILINE)) == set(PROFILES)


def test_the_sample_file_is_a_valid_configuration() -> None:
    assert parse_config((ROOT / "deploy" / "agent.toml").read_text(encoding="utf-8")).steps
