"""Every generated page in docs/ is what its generator writes."""

from __future__ import annotations

import re

import pytest

from forewarn.cli.root_command import forewarn
from tools.docs.__main__ import DOCS, pages
from tools.docs.cli_reference import all_commands, called_commands

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name], f"docs/{name} is old: run `make docs`"


def test_the_reference_of_the_command_line_has_a_section_for_every_command() -> None:
    text = "\n".join(page for name, page in PAGES.items() if name.startswith("reference/cli/"))
    sections = re.findall(r"^## (forewarn .+)$", text, re.MULTILINE)
    assert sections == [path for path, _ in called_commands(forewarn, "forewarn")]


@pytest.mark.parametrize("folder", ["reference/cli", "reference/crash-test-cases"])
def test_a_folder_of_generated_pages_has_no_page_of_a_group_that_is_gone(folder: str) -> None:
    there = {page.relative_to(DOCS).as_posix() for page in (DOCS / folder).iterdir()}
    assert there == {name for name in PAGES if name.startswith(f"{folder}/")}


# How the help of an option begins that says what the option is like, and not what it does.
_FRAGMENT = re.compile(r"(With --\S+: )?(such|not|what|seed|probe|outside|name of|the|an?)\b", re.IGNORECASE)


def test_every_option_of_the_command_line_says_what_it_does() -> None:
    for path, command in all_commands(forewarn, "forewarn"):
        for option in command.params:
            is_hidden = getattr(option, "hidden", False) or option.param_type_name == "argument"
            text = getattr(option, "help", None) or ""
            assert is_hidden or (text and not _FRAGMENT.match(text)), f"{path} {option.opts}: {text}"
