"""On which line of a TOML text a table or key stands: the one thing that readers of TOML do not tell.

A path is what leads to a value in the parsed data: `("vms", 3, "tags", "team")`. Only text that a reader has
accepted is scanned, so the scanner may be trusting: it follows structure and skips over everything else.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left

Path = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
# A multi-line string may end in one or two quotes of its own before the closing three.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}#\n]+")
# What nearly every line is: a key, and a value that ends with the line and has nothing inside.
_PLAIN = re.compile(
    r"""([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"[^"\\\n]*"|'[^'\n]*'|[^\s"'\[{#][^\n#]*)[ \t]*(?:#[^\n]*)?(?:\n|\Z)"""
)


class Lines:
    """The lines of one text, by path."""

    def __init__(self, found: dict[Path, int]) -> None:
        self._found = found

    def of(self, path: Path) -> int:
        """The line of what is at `path`, or of the nearest thing around it that is written down."""
        while path and path not in self._found:
            path = path[:-1]
        return self._found.get(path, 1)

    def paths(self) -> frozenset[Path]:
        return frozenset(self._found)


def lines_of(text: str) -> Lines:
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return Lines(scanner.found)


def faulty_line(message: str, text: str) -> int:
    """The line that an error of `tomllib`, or of `tomli`, is about: its message names one, or means the end."""
    match = re.search(r"at line (\d+)", message)
    return int(match.group(1)) if match else text.rstrip("\n").count("\n") + 1


class _Scanner:
    """A cursor over the text, and what it has found so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Path, int] = {}
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._tables: dict[Path, int] = {}  # how many [[tables]] of that path there are so far

    def document(self) -> None:
        inside: Path = ()
        self._skip(_GAP)
        while self.at < len(self.text):
            if plain := _PLAIN.match(self.text, self.at):
                self.found[(*inside, plain[1])] = self._line()
                self.at = plain.end()
            elif self._peek("["):
                inside = self._header()
            else:
                self._pair(inside)
            self._skip(_GAP)

    def _header(self) -> Path:
        line = self._line()
        repeated = self._peek("[[")
        self.at += 2 if repeated else 1
        keys = self._keys()
        self.at += 2 if repeated else 1

        parent = self._opened((), keys[:-1], line)
        path = (*parent, keys[-1])
        self.found.setdefault(path, line)
        if not repeated:
            # [a] after [a.b]: the table was there, but this is where it is written.
            self.found[path] = line
            return path
        number = self._tables.get(path, 0)
        self._tables[path] = number + 1
        self.found[(*path, number)] = line
        return (*path, number)

    def _opened(self, inside: Path, keys: list[str], line: int) -> Path:
        """The path that `keys` lead to; a name of [[tables]] stands for the latest one."""
        path = inside
        for key in keys:
            path = (*path, key)
            self.found.setdefault(path, line)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _pair(self, inside: Path) -> None:
        line = self._line()
        keys = self._keys()
        path = (*self._opened(inside, keys[:-1], line), keys[-1])
        self.found[path] = line
        self.at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(path)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(_BLANK)
            keys.append(_plain(self._take(_KEY)))
            self._skip(_BLANK)
            if not self._peek("."):
                return keys
            self.at += 1

    def _value(self, path: Path) -> None:
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif self._peek('"') or self._peek("'"):
            self._take(_STRING)
        else:
            self._take(_BARE)

    def _array(self, path: Path) -> None:
        self.at += 1
        self._skip(_GAP)
        number = 0
        while not self._peek("]"):
            if self._peek(","):
                self.at += 1
            else:
                self.found[(*path, number)] = self._line()
                self._value((*path, number))
                number += 1
            self._skip(_GAP)
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        self._skip(_GAP)
        while not self._peek("}"):
            if self._peek(","):
                self.at += 1
            else:
                self._pair(path)
            self._skip(_GAP)
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
            raise ValueError(f"line {self._line()} is not TOML: give the locator only text that tomllib has read")
        self.at = match.end()
        return match.group()


def _plain(key: str) -> str:
    if key[0] not in "\"'":
        return key
    plain: str = tomllib.loads(f"key = {key}")["key"]
    return plain
