"""docs/reactions.md: its examples are taken, and it names every reaction and every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.agent import config
from forewarn.agent.reactions import REACTIONS
from forewarn.agent.reactions.event_text import event_variables
from tests.support.reaction_harness import make_step_context

PAGE = (Path(__file__).parents[3] / "docs/reactions.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
EXAMPLES: list[str] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.partition("\n")[0])
def test_an_example_is_taken(example: str) -> None:
    whole = 'profile = "fifteen-minutes"\n' + example.replace('user = "app"', 'user = "root"')
    assert config.parse_config(whole).steps


def test_every_reaction_has_its_section_and_its_row() -> None:
    assert list(SECTIONS) == list(REACTIONS)
    assert re.findall(r"(?m)^\| `([a-z-]+)` \| ", PAGE) == ["use", *REACTIONS]


@pytest.mark.parametrize("name", REACTIONS)
def test_every_option_is_explained(name: str) -> None:
    said = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`\n]+`|(?m:^[a-z_]+ =)", SECTIONS[name]))))
    assert [option for option in REACTIONS[name].options if option not in said] == []


def test_every_variable_of_a_command_is_named(tmp_path: Path) -> None:
    assert [name for name in event_variables(make_step_context(tmp_path)) if f"`{name}`" not in PAGE] == []
