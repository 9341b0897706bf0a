"""The page about reactions: its examples are valid, and it names every reaction and every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forewarn.agent import config
from forewarn.agent.reactions import REACTIONS
from forewarn.agent.reactions.step_context import event_variables
from tests.support.reaction_harness import make_step_context

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE = (REFERENCE / "reactions.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in re.sub(r"\n# .*\n", "\n", PAGE).split("\n## ")[1:])
EXAMPLES: list[str] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.partition("\n")[0])
def test_every_example_is_a_valid_configuration(example: str) -> None:
    text = 'profile = "fifteen-minutes"\n' + example.replace('user = "app"', 'user = "root"')
    assert config.parse_config(text).steps


def test_every_reaction_has_a_section_and_a_row() -> None:
    assert sorted(SECTIONS) == sorted(REACTIONS)
    assert re.findall(r"(?m)^\| `([a-z-]+)` \| ", PAGE) == ["use", *REACTIONS]


@pytest.mark.parametrize("name", REACTIONS)
def test_the_page_explains_every_option(name: str) -> None:
    explained = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`\n]+`|(?m:^[a-z_]+ =)", SECTIONS[name]))))
    assert [option for option in REACTIONS[name].options if option not in explained] == []


def test_the_page_names_every_variable_of_a_command(tmp_path: Path) -> None:
    assert [name for name in event_variables(make_step_context(tmp_path)) if f"`{name}`" not in PAGE] == []
