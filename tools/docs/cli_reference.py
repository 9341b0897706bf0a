"""Generates docs/reference/cli/: a page for each group of commands, from the commands themselves (`make docs`)."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click

from forewarn.cli.root_command import HELP_SECTIONS, forewarn

_INDEX = """\
# The command line

<!-- generated: src/forewarn/cli -->

`--help` behind a command shows what is on these pages. Durations are written like `90s`, `15m`, `1h30m` or `7d`.
Commands take VMs, hosts, scopes, events and requests by name, by id, or by the beginning of an id.

| group | commands |
|---|---|
{groups}

Commands that call a service also have:

{common}

| exit code | meaning |
|---|---|
{exit_codes}
"""
# Options of almost every command, by their spelling and help.
_COMMON = {
    (*option.opts, option.help)
    for option in forewarn.params
    if isinstance(option, click.Option) and option.opts != ["--version"]
}
_MOST_EXAMPLES = 2
_EXAMPLES = re.compile(r"(?:\A|\n)\s*Examples?:\n")


def cli_pages() -> dict[str, str]:
    """The pages of the command line, by their path in docs/."""
    pages = {f"reference/cli/{_slug(title)}.md": _page(title, names) for title, names in HELP_SECTIONS.items()}
    exit_codes = inspect.getdoc(inspect.getmodule(type(forewarn))) or ""
    groups = "\n".join(
        f"| [{title}]({_slug(title)}.md) | {_links(title, names)} |" for title, names in HELP_SECTIONS.items()
    )
    return pages | {
        "reference/cli/index.md": _INDEX.format(
            groups=groups,
            common=_option_list(_options(forewarn, is_common=True)),
            exit_codes="\n".join(
                f"| {code} | {meaning} |" for code, meaning in re.findall(r"^(\d+)\s+(.+)$", exit_codes, re.MULTILINE)
            ),
        )
    }


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


def called_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something themselves: not groups, which only have subcommands."""
    for name, found in all_commands(command, path):
        if not isinstance(found, click.Group) or found.invoke_without_command:
            yield name, found


def _slug(title: str) -> str:
    return re.sub(r"^the-", "", title.lower().replace(" ", "-"))


def _links(title: str, names: dict[str, str]) -> str:
    """A link to each command, with the words that several begin with once before them."""
    texts: list[str] = []
    for name in names:
        paths = [path for path, _ in _commands({name: ""})]
        links = {path: f"]({_slug(title)}.md#{path.replace(' ', '-')})" for path in paths}
        itself = links.pop(f"forewarn {name}", None)
        children = (f"[{path.removeprefix(f'forewarn {name} ')}{link}" for path, link in links.items())
        texts.append(f"{f'[{name}{itself}' if itself else name} {', '.join(children)}".rstrip())
    return "; ".join(texts)


def _commands(names: dict[str, str]) -> list[tuple[str, click.Command]]:
    commands: list[tuple[str, click.Command]] = []
    for name in names:
        root = forewarn.get_command(click.Context(forewarn), name)
        assert root is not None
        commands += called_commands(root, f"forewarn {name}")
    return commands


def _page(title: str, names: dict[str, str]) -> str:
    commands = _commands(names)
    options = [option for _, command in commands for option in _options(command, is_common=False)]
    uses = Counter(map(_row, options))
    shared = {row: option for option in options if uses[row := _row(option)] > 1}
    parts = [f"# {title}", "<!-- generated: src/forewarn/cli -->"]
    parts += [_command(path, command, set(shared)) for path, command in commands]
    if shared:
        parts += ["## Options of several commands", _option_list(list(shared.values()))]
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: click.Command, shared: set[str]) -> str:
    """The section of one command: what it does, how it is written with examples, and its options."""
    texts, examples = _help_parts(command)
    options = _options(command, is_common=False)
    usage = re.sub(r"\s+", " ", command.get_usage(click.Context(command, info_name=path)).removeprefix("Usage: "))
    calls = [line for line in examples if line.startswith("forewarn")]
    others = [line for line in examples if not line.startswith("forewarn")]  # such as a line for each shell
    shown = calls[:_MOST_EXAMPLES] if options else []
    synopsis = re.sub(r" \[OPTIONS\]| \[COMMAND\].*", "", usage)
    is_told = synopsis == path and bool(shown)  # an example shows it as well
    told_more = [call for call in shown if re.search(r" -|=", call)]  # more than a name in place of an argument
    lines = [*shown, *others] if is_told else [synopsis, *told_more[:1], *others]
    parts = [f"## {path}", " ".join(texts)]
    if lines != [path]:
        parts.append("```text\n" + "\n".join(dict.fromkeys(lines)) + "\n```")
    if own := [option for option in options if _row(option) not in shared]:
        parts.append(_option_list(own))
    if also := [f"`{option.opts[0]}`" for option in options if _row(option) in shared]:
        parts.append(f"[Shared](#options-of-several-commands): {', '.join(also)}")
    return "\n\n".join(parts)


def _help_parts(command: click.Command) -> tuple[list[str], list[str]]:
    """The paragraphs of the help, and the lines of its examples, which click keeps as they are."""
    texts, examples = [], []
    paragraphs = inspect.cleandoc(command.help or "").strip().split("\n\n")
    for paragraph in [*paragraphs, *([f"\b{command.epilog}"] if command.epilog else [])]:
        if paragraph.startswith("\b"):
            lines = _EXAMPLES.sub("\n", paragraph.replace("\b", "")).splitlines()
            examples += [line.strip() for line in lines if line.strip()]
        else:
            texts.append(" ".join(paragraph.split()))
    return texts, examples


def _options(command: click.Command, *, is_common: bool) -> list[click.Option]:
    options = [option for option in command.params if isinstance(option, click.Option) and option.help]
    return [option for option in options if ((*option.opts, option.help) in _COMMON) is is_common]


def _option_list(options: list[click.Option]) -> str:
    return "\n".join(f"- {_row(option)}" for option in options)


def _row(option: click.Option) -> str:
    return f"`{_spelling(option)}`: {_option_help(option)}"


def _spelling(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {' or '.join(map(str, option.type.choices))}"
    is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return f"{names} {option.metavar or ('N' if is_number else option.type.name.upper())}".replace("|", " or ")


def _option_help(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    if isinstance(option.show_default, str) or (option.show_default and option.default not in (None, False)):
        text += f" Default: {option.show_default if isinstance(option.show_default, str) else option.default}."
    if option.show_envvar and isinstance(option.envvar, str):
        text += f" Environment: `{option.envvar}`."
    return text
