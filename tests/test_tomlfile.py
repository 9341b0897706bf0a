"""The line of every table and key of a TOML text, which `tomllib` does not report."""

from __future__ import annotations

import json
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.base.tomlfile import MAX_KEY_PARTS, TomlPath, index_lines, load_limited_toml, toml_value
from forewarn.errors import InvalidFile

TRICKY = '''# [[vms]] in a comment
title = "a # b" # and [x] after it

[defaults]
"quoted key" = 1
tags.team = "shop"
tags . owner = 'ann'
note = """
[[vms]]
name = "not a table" \\"""
still the string""""
raw = \'\'\'
[hosts]\'\'\'\'
after = 2

[[vms]]
name = "web"
zones = [ # a list
  "1",
  "]", # with a bracket
  [2, 3],
]
when = 1979-05-27 07:32:00
[vms.tags]
a = { b = { c = 1 }, d = [{ e = 2 }] }
[[vms]]
[[vms.disks]]
size = 1
[[vms.disks]]
size = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("defaults",), 4),
        (("defaults", "quoted key"), 5),
        (("defaults", "tags"), 6),
        (("defaults", "tags", "owner"), 7),
        (("defaults", "note"), 8),
        (("defaults", "raw"), 12),
        (("defaults", "after"), 14),
        (("vms", 0), 16),
        (("vms", 0, "zones"), 18),
        (("vms", 0, "zones", 1), 20),
        (("vms", 0, "zones", 2, 1), 21),
        (("vms", 0, "when"), 23),
        (("vms", 0, "tags"), 24),
        (("vms", 0, "tags", "a", "d", 0, "e"), 25),
        (("vms", 1), 26),
        (("vms", 1, "disks", 1, "size"), 30),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_a_key_is_found_among_strings_lists_and_comments(path: TomlPath, line: int) -> None:
    assert index_lines(TRICKY).line_of(path) == line


def test_a_missing_key_has_the_line_of_its_table() -> None:
    lines = index_lines(TRICKY)
    assert lines.line_of(("vms", 1, "name")) == 26
    assert lines.line_of(("hosts", 0)) == 1


def test_a_key_with_an_escape_of_toml_1_1_has_the_line_of_its_table() -> None:
    index = index_lines('[[vms]]\n\n"n\\x61me" = "web-0"\nhost = "h1"\n')
    assert index.line_of(("vms", 0, "name")) == 1
    assert index.line_of(("vms", 0, "host")) == 4


def test_a_windows_line_end_counts_as_one_line() -> None:
    assert index_lines(TRICKY.replace("\n", "\r\n")).line_of(("vms", 1)) == 26


class Writer:
    """Writes data as TOML in one of many styles, and notes the line of every path: what the locator must find."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.text = ""
        self.lines: dict[TomlPath, int] = {}

    def note(self, path: TomlPath) -> None:
        self.lines[path] = self.text.count("\n") + 1

    def pick(self, *choices: str) -> str:
        choice: str = self.draw(st.sampled_from(choices))
        return choice

    def gap(self) -> str:
        """Between lines."""
        return self.pick("", "", "\n", "# [[x]] = '\n", '  # """\n\n')

    def key(self, key: str) -> str:
        bare = key.isascii() and key.isalnum()
        return self.pick(key, quoted(key)) if bare else quoted(key)

    def value(self, value: object, path: TomlPath) -> None:
        if isinstance(value, dict):
            self.inline_table(value, path)
        elif isinstance(value, list):
            self.array(value, path)
        elif isinstance(value, str):
            self.text += self.string(value)
        else:
            self.text += json.dumps(value)

    def string(self, value: str) -> str:
        loose = value.replace("\\", "\\\\").replace('"', '\\"')
        choices = [quoted(value), f'"""\n{loose}"""']
        if not any(c in value for c in "'\\\n\t\x7f") and value.isprintable():
            choices += [f"'{value}'", f"'''{value}'''", f"'''\n{value}'''"]
        return self.pick(*choices)

    def array(self, items: list[Any], path: TomlPath) -> None:
        self.text += "["
        for number, item in enumerate(items):
            self.text += self.pick("", " ", "\n", " # ] ,\n  ")
            self.note((*path, number))
            self.value(item, (*path, number))
            self.text += self.pick(",", " ,", ",\n") if number < len(items) - 1 else self.pick("", ",", ",\n# [\n")
        self.text += self.pick("", "\n") + "]"

    def inline_table(self, table: dict[str, Any], path: TomlPath) -> None:
        self.text += "{ "
        for number, (key, value) in enumerate(table.items()):
            self.text += ", " if number else ""
            self.note((*path, key))
            self.text += f"{self.key(key)} = "
            self.value(value, (*path, key))
        self.text += " }"

    def pair(self, key: str, value: Any, path: TomlPath, dotted: str = "") -> None:
        """`key = value`, or for a table of one key perhaps `key.its_key = value`."""
        self.note((*path, key))
        written = dotted + self.key(key)
        if isinstance(value, dict) and len(value) == 1 and self.draw(st.booleans()):
            self.pair(*next(iter(value.items())), (*path, key), f"{written}{self.pick('.', ' . ')}")
            return
        self.text += self.pick("", "  ") + written + self.pick("=", " = ")
        self.value(value, (*path, key))
        self.text += self.pick("\n", " # end = [\n")

    def table(self, table: dict[str, Any], path: TomlPath, names: list[str]) -> None:
        later: list[tuple[str, Any]] = []
        for key, value in table.items():
            self.text += self.gap()
            own_header = isinstance(value, dict) or (value and is_tables(value))
            if own_header and self.draw(st.booleans()):
                later.append((key, value))
            else:
                self.pair(key, value, path)
        for key, value in later:
            self.headed(key, value, path, [*names, self.key(key)])

    def headed(self, key: str, value: Any, path: TomlPath, names: list[str]) -> None:
        for number, item in enumerate(value if isinstance(value, list) else [value]):
            self.text += self.gap()
            here = (*path, key, number) if isinstance(value, list) else (*path, key)
            if number == 0:
                self.note((*path, key))
            self.note(here)
            header = self.pick(".", " . ").join(names)
            self.text += f"[[{header}]]\n" if isinstance(value, list) else f"[ {header} ] # ]\n"
            self.table(item, here, names)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def is_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


words = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\"'#[]=\\"), max_size=8
)
keys = st.sampled_from(["a", "b", "name", "vms", "k1"]) | words
leaves = st.booleans() | st.integers(-9, 99) | words
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
documents = st.dictionaries(keys, values, max_size=4)


def paths_of(value: object, path: TomlPath = ()) -> set[TomlPath]:
    found = {path} if path else set()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found.union(*(paths_of(item, (*path, key)) for key, item in items))


@given(documents, st.data())
@settings(max_examples=300, deadline=None)
def test_every_path_of_a_random_document_has_the_line_where_it_is_written(data: dict[str, Any], draws: Any) -> None:
    writer = Writer(draws.draw)
    writer.table(data, (), [])
    assert tomllib.loads(writer.text) == data  # the writer wrote what it meant

    lines = index_lines(writer.text)

    assert lines.paths() == paths_of(data)
    assert {path: lines.line_of(path) for path in writer.lines} == writer.lines


@pytest.mark.parametrize(
    "text",
    [
        f"a{'.b' * 16} = 1",
        f"[a{' . b' * 16}]",
        f"[[a{'.b' * 16}]]",
        "x = { 'a'" + '."b"' * 16 + " = 1 }",
        "\n".join(f"k{n}{'.a' * 50_000} = 1" for n in range(100)),
    ],
    ids=["key", "table", "list of tables", "inline table", "many"],
)
def test_a_key_with_many_parts_is_rejected_before_it_is_parsed(text: str) -> None:
    with pytest.raises(InvalidFile) as raised:
        load_limited_toml(text, "f.toml")
    assert [problem.line for problem in raised.value.problems] == [1]


def test_no_quotes_at_the_end_of_a_text_hide_a_key() -> None:
    long_key = "a." * MAX_KEY_PARTS + "b"
    for quotes in ('"' * 3, "'" * 3):
        text = f"x = {quotes}text{quotes}{quotes[0]} #\\\n{long_key} = 1 # {quotes[0]}\n"
        with pytest.raises(InvalidFile, match="toml:2: a key has more than 16 parts"):
            load_limited_toml(text, "f.toml")


@pytest.mark.parametrize("text", ['"\\', '\\"""\n', '"""\\', "'''\n\"", "9" * 998 + ",\n"])
def test_a_text_that_is_not_toml_is_rejected_soon(text: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidFile):
        load_limited_toml("a = [" + text * (60_000 // len(text)) + "1" * 4400, "f.toml")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "text",
    [
        f"a = 'x{'.b' * 40}'",
        f'a = "x{".b" * 40}" # c{".d" * 40}',
        f'a = """\nx{".b" * 40} = "1\n"""\nb = \'\'\'{"a." * 40}\'\'\'',
        f"a{'.b' * 15} = 1.5",
        f"a = [{'1.5, ' * 40}]\nb = [{'2026-01-01T00:00:00.5Z, ' * 40}]",
        TRICKY,
    ],
)
def test_dots_in_texts_comments_and_numbers_are_no_parts_of_a_key(text: str) -> None:
    assert load_limited_toml(text, "f.toml")


@pytest.mark.parametrize("value", ["", 'a "b" \\ \x7f ü\n', 3, True, ["a", "\x7f"], {"0x1": "a", "a b": {"c.d": [1]}}])
def test_a_value_that_is_written_is_read_again(value: object) -> None:
    assert tomllib.loads(f"key = {toml_value(value)}") == {"key": value}
