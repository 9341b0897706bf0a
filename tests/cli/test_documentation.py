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
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if path.parent.name != "decisions"
}


def commands(page: str) -> Iterator[str]:
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        yield from re.findall(r"^(forewarn [^|\n]*)", block, re.MULTILINE)
        yield from re.findall(r"\$\((forewarn [^|)\n]*)", block)
    yield from re.findall(r"`(forewarn [^`…]*?)`", page.replace("\n", " "))


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, page in PAGES.items() for line in commands(page)])
def test_a_command_of_the_page_exists_with_its_options(name: str, line: str) -> None:
    arguments = iter(shlex.split(line, comments=True)[1:])
    command: click.Command = forewarn
    for word in arguments:
        if word == "--":
            break
        if word.startswith("--"):
            known = {name: parameter for parameter in command.params for name in parameter.opts}
            assert word in known or word == "--help", line
            option = known.get(word)
            if isinstance(option, click.Option) and not option.is_flag:
                next(arguments, None)
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            assert found is not None, line
            command = found


def test_every_role_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGES["reference/access.md"], re.MULTILINE) == list(ROLES)


def test_every_variable_that_env_sets_is_documented(lab: Any) -> None:
    message = lab.json("env", "--with-secret")["variables"]
    assert all(f"`{name}`" in PAGES["how-to/azure.md"] for name in (*message, "AZURE_POD_IDENTITY_AUTHORITY_HOST"))


def test_the_list_of_commands_shows_the_help_of_each() -> None:
    context = click.Context(forewarn, info_name="forewarn")
    listed = " ".join(forewarn.get_help(context).split())
    for name in forewarn.list_commands(context):
        command = forewarn.get_command(context, name)
        assert command is not None
        assert f"{name} {command.get_short_help_str(70)}" in listed
