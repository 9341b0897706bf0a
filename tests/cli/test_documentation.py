"""The commands in the docs exist with their options, and the lists in the docs are complete."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from forewarn.cli.access import ROLES
from forewarn.cli.root_command import forewarn

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("remote.md", "azure.md", "agent.md")}


def commands(page: str) -> Iterator[str]:
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        yield from re.findall(r"(?:^|\$\()(forewarn [^|)\n]*)", block, re.MULTILINE)
    yield from re.findall(r"`(forewarn [^`…]*?)`", page.replace("\n", " "))


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, page in PAGES.items() for line in commands(page)])
def test_a_command_of_the_page_exists_with_its_options(name: str, line: str) -> None:
    arguments = iter(shlex.split(line, comments=True)[1:])
    command: click.Command = forewarn
    for word in arguments:
        if word == "--profile" and command is forewarn:
            next(arguments)
        elif isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            assert found is not None, line
            command = found
        elif word.startswith("--") and word != "--":
            known = {option for parameter in command.params for option in parameter.opts}
            assert word in known, line


def test_every_role_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGES["remote.md"], re.MULTILINE) == list(ROLES)


def test_every_variable_that_env_sets_is_documented(lab: Any) -> None:
    message = lab.json("env", "--with-secret")["variables"]
    assert all(f"`{name}`" in PAGES["azure.md"] for name in (*message, "AZURE_POD_IDENTITY_AUTHORITY_HOST"))
