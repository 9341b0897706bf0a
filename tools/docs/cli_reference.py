"""Generates docs/reference/cli.md from the commands themselves (`make docs`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from forewarn.cli.root_command import HELP_SECTIONS, forewarn

_PAGE = """\
# The command line

*Generated from `src/forewarn/cli/` by `make docs`; change the commands there, not this page.*

`--help` behind a command shows the same. Durations are written like `90s`, `15m`, `1h30m` or `7d`. Commands take VMs,
hosts, scopes, events and requests by name, by id, or by the beginning of an id.

| exit code | meaning |
|---|---|
{exit_codes}

These options belong to every command that calls a service, and are not repeated below:

{common}

{sections}
"""
# Options of almost every command, by their spelling and help.
_COMMON = {
    (*option.opts, option.help)
    for option in forewarn.params
    if isinstance(option, click.Option) and option.opts != ["--version"]
}
_EXAMPLES = re.compile(r"(?:\A|\n)\s*Examples?:\n")


def cli_markdown() -> str:
    """The page docs/reference/cli.md: every command with its help, options and examples."""
    sections = (_section(title, names) for title, names in HELP_SECTIONS.items())
    exit_codes = inspect.getdoc(inspect.getmodule(type(forewarn))) or ""
    rows = re.findall(r"^(\d+)\s+(.+)$", exit_codes, re.MULTILINE)
    return _PAGE.format(
        exit_codes="\n".join(f"| {code} | {meaning} |" for code, meaning in rows),
        common=_option_table(_options(forewarn, is_common=True)),
        sections="\n\n".join(sections),
    )


def all_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and its subcommands, each with its full name; hidden ones are left out."""
    if command.hidden:
        return
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from all_commands(child, f"{path} {name}")


def _section(title: str, names: dict[str, str]) -> str:
    parts = [f"## {title}"]
    for name in names:
        root = forewarn.get_command(click.Context(forewarn), name)
        assert root is not None
        parts += [_command(path, command) for path, command in all_commands(root, f"forewarn {name}")]
    return "\n\n".join(parts)


def _command(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path, max_content_width=100)
    usage = command.get_usage(context).removeprefix("Usage: ").replace("\n", " ")
    parts = [f"### {path}", f"```text\n{re.sub(r' +', ' ', usage)}\n```", *_help_parts(command)]
    if options := _options(command, is_common=False):
        parts.append(_option_table(options))
    if command.epilog:
        parts.append(_examples(_EXAMPLES.sub("\n", command.epilog)))
    return "\n\n".join(parts)


def _help_parts(command: click.Command) -> Iterator[str]:
    """The paragraphs of the help; those that click keeps as they are become code blocks."""
    for paragraph in inspect.cleandoc((command.help or "").partition("\f")[0]).strip().split("\n\n"):
        if paragraph.startswith("\b"):
            yield _examples(_EXAMPLES.sub("\n", paragraph.removeprefix("\b")))
        else:
            yield " ".join(paragraph.split())


def _examples(text: str) -> str:
    lines = [line.strip() for line in inspect.cleandoc(text.replace("\b", "").strip("\n")).splitlines()]
    return "```text\n" + "\n".join(line for line in lines if line) + "\n```"


def _options(command: click.Command, *, is_common: bool) -> list[click.Option]:
    options = [option for option in command.params if isinstance(option, click.Option) and option.help]
    return [option for option in options if ((*option.opts, option.help) in _COMMON) is is_common]


def _option_table(options: list[click.Option]) -> str:
    rows = "".join(f"\n| `{_spelling(option)}` | {_option_help(option)} |" for option in options if option.help)
    return f"| option | what it does |\n|---|---|{rows}"


def _spelling(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {' or '.join(map(str, option.type.choices))}"
    is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return f"{names} {option.metavar or ('N' if is_number else option.type.name.upper())}".replace("|", " or ")


def _option_help(option: click.Option) -> str:
    text = " ".join((option.help or "").split()).replace("|", r"\|")
    if isinstance(option.show_default, str) or (option.show_default and option.default not in (None, False)):
        text += f" Default: {option.show_default if isinstance(option.show_default, str) else option.default}."
    if option.show_envvar and isinstance(option.envvar, str):
        text += f" Environment: `{option.envvar}`."
    return text
