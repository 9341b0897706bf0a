"""Reads TOML of users within limits, and finds the line on which a table or key is written, for error messages.

`tomllib` does not report lines of valid text. A path leads to a value of the parsed data: `("vms", 3, "tags",
"team")`. The scanner expects text that `tomllib` or `tomli` has accepted; it follows the structure and skips
everything else.
"""

from __future__ import annotations

import math
import re
import tomllib
from bisect import bisect_left
from typing import Any

TomlPath = tuple[str | int, ...]  # keys of tables and indexes of arrays

_SPACE = re.compile(r"[ \t]*")
_SPACE_AND_COMMENTS = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
# A multi-line string may end in one or two quotes of its own before the closing three.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")
# Nearly every line is like this: a key, and a plain value that ends with the line.
_SIMPLE_LINE = re.compile(
    r"""([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"[^"\\\n]*"|'[^'\n]*'|[^\s"'\[{#][^\n#]*)[ \t]*(?:#[^\n]*)?(?:\n|\Z)"""
)


MAX_KEY_PARTS = 16
_MAX_CHARACTERS = 10_000  # of one text
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
# Strings and comments are matched so that what is in them counts as no key, bare words so that none is read twice.
_LONG_KEY = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r"|'''.*?'''"
    r"|#[^\n]*+"
    rf"|(?P<key>{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}})"
    rf"|{_PART}",
    re.DOTALL,
)
_LONG_NUMBER = re.compile(r"[0-9][0-9_]{999}")


class InvalidToml(ValueError):
    """A text that is not TOML, or beyond the limits of `load_toml`; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def load_toml(text: str) -> dict[str, Any]:
    """Return the data of a TOML text that a user has sent, or raise InvalidToml.

    Keys have at most MAX_KEY_PARTS parts, because a parser needs memory for each beginning of a dotted key. Whole
    numbers have at most 63 bits, other numbers are finite, and texts have at most 10,000 characters.
    """
    import tomli  # of the extra `server`: the agent reads its own file without it

    for found in _LONG_KEY.finditer(text):
        if found["key"]:
            line = text.count("\n", 0, found.start()) + 1
            raise InvalidToml(f"a key has more than {MAX_KEY_PARTS} parts", line)
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise InvalidToml(
            f"this is not TOML ({str(error).partition(' (at')[0]})", error_line(str(error), text)
        ) from error
    except ValueError as error:  # of `int`, which takes 4,300 digits
        found_number = _LONG_NUMBER.search(text)
        line = text.count("\n", 0, found_number.start()) + 1 if found_number else 1
        raise InvalidToml("a number has too many digits", line) from error
    except RecursionError as error:
        raise InvalidToml("values are nested too deeply", 1) from error
    _require_values_within_limits(data, text)
    return data


def _require_values_within_limits(data: dict[str, Any], text: str) -> None:
    waiting: list[tuple[TomlPath, Any]] = [((), data)]
    while waiting:
        path, value = waiting.pop()
        problem = ""
        if isinstance(value, dict):
            waiting += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [((*path, number), item) for number, item in enumerate(value)]
        elif isinstance(value, str) and len(value) > _MAX_CHARACTERS:
            problem = f"the text is longer than {_MAX_CHARACTERS:,} characters"
        elif isinstance(value, int) and value.bit_length() > 63:
            problem = "the number has too many digits"
        elif isinstance(value, float) and not math.isfinite(value):
            problem = "the number is not finite"
        if problem:
            name = next((f"{part}: " for part in reversed(path) if isinstance(part, str)), "")
            raise InvalidToml(f"{name}{problem}", index_lines(text).line_of(path))


class TomlLineIndex:
    """The line numbers, from 1, of the tables, keys and array elements of one TOML text, by path."""

    def __init__(self, found: dict[TomlPath, int]) -> None:
        self._found = found

    def line_of(self, path: TomlPath) -> int:
        """Return the line, from 1, of the table, key or element at `path`."""
        while path and path not in self._found:
            path = path[:-1]
        return self._found.get(path, 1)

    def paths(self) -> frozenset[TomlPath]:
        """Return the paths of all tables, keys and array elements of the text."""
        return frozenset(self._found)


def index_lines(text: str) -> TomlLineIndex:
    """Return an index of the line on which each table, key and array element of a TOML text begins."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.scan()
    return TomlLineIndex(scanner.found)


def error_line(message: str, text: str) -> int:
    """Return the line, from 1, of a syntax error of `tomllib` or `tomli` in `text`."""
    match = re.search(r"at line (\d+)", message)
    return int(match.group(1)) if match else text.rstrip("\n").count("\n") + 1


class _Scanner:
    """Scans a TOML text once and records the line of each path."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[TomlPath, int] = {}
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._tables: dict[TomlPath, int] = {}  # the number of [[tables]] of that path so far

    def scan(self) -> None:
        inside: TomlPath = ()
        self._skip(_SPACE_AND_COMMENTS)
        while self.at < len(self.text):
            if plain := _SIMPLE_LINE.match(self.text, self.at):
                self.found[(*inside, plain[1])] = self._line()
                self.at = plain.end()
            elif self._peek("["):
                inside = self._header()
            else:
                self._key_and_value(inside)
            self._skip(_SPACE_AND_COMMENTS)

    def _header(self) -> TomlPath:
        line = self._line()
        repeated = self._peek("[[")
        self.at += 2 if repeated else 1
        keys = self._keys()
        self.at += 2 if repeated else 1

        parent = self._resolve_path((), keys[:-1], line)
        path = (*parent, keys[-1])
        self.found.setdefault(path, line)
        if not repeated:
            # [a] after [a.b]: the table exists already, but this line is its header.
            self.found[path] = line
            return path
        number = self._tables.get(path, 0)
        self._tables[path] = number + 1
        self.found[(*path, number)] = line
        return (*path, number)

    def _resolve_path(self, inside: TomlPath, keys: list[str], line: int) -> TomlPath:
        """Return the path that `keys` lead to; the name of [[tables]] means the latest of them."""
        path = inside
        for key in keys:
            path = (*path, key)
            self.found.setdefault(path, line)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _key_and_value(self, inside: TomlPath) -> None:
        line = self._line()
        keys = self._keys()
        path = (*self._resolve_path(inside, keys[:-1], line), keys[-1])
        self.found[path] = line
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            keys.append(_unquoted_key(self._take(_KEY)))
            self._skip(_SPACE)
            if not self._peek("."):
                return keys
            self.at += 1

    def _value(self, path: TomlPath) -> None:
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif self._peek('"') or self._peek("'"):
            self._take(_STRING)
        else:
            self._take(_BARE_VALUE)

    def _array(self, path: TomlPath) -> None:
        self.at += 1
        self._skip(_SPACE_AND_COMMENTS)
        number = 0
        while not self._peek("]"):
            if self._peek(","):
                self.at += 1
            else:
                self.found[(*path, number)] = self._line()
                self._value((*path, number))
                number += 1
            self._skip(_SPACE_AND_COMMENTS)
        self.at += 1

    def _inline_table(self, path: TomlPath) -> None:
        self.at += 1
        self._skip(_SPACE_AND_COMMENTS)
        while not self._peek("}"):
            if self._peek(","):
                self.at += 1
            else:
                self._key_and_value(path)
            self._skip(_SPACE_AND_COMMENTS)
        self.at += 1

    def _line(self) -> int:
        return bisect_left(self._ends, self.at) + 1

    def _peek(self, wanted: str) -> bool:
        return self.text.startswith(wanted, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"line {self._line()} is not TOML: give index_lines only text that tomllib has read")
        self.at = match.end()
        return match.group()


def _unquoted_key(key: str) -> str:
    if key[0] not in "\"'":
        return key
    try:
        plain: str = tomllib.loads(f"key = {key}")["key"]
    except tomllib.TOMLDecodeError:  # an escape of TOML 1.1, which only tomli reads: its table's line is found instead
        return key
    return plain
