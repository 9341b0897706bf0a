"""Reads TOML of users: the values of its tables, the line of each key, and all problems at once.

`tomllib` does not report lines of valid text. A path leads to a value of the parsed data: `("vms", 3, "tags",
"team")`. The scanner expects text that `tomllib` or `tomli` has accepted; it follows the structure and skips
everything else.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from forewarn.base.duration import exact_duration_text, parse_duration
from forewarn.errors import FileProblem, InvalidFile, Rejected

P = ParamSpec("P")
T = TypeVar("T")

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
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")
# Nearly every line is like this: a key, and a plain value that ends with the line.
_SIMPLE_LINE = re.compile(
    r"""([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"[^"\\\n]*"|'[^'\n]*'|[^\s"'\[{#][^\n#]*)[ \t]*(?:#[^\n]*)?(?:\n|\Z)"""
)


MAX_KEY_PARTS = 16
_MAX_CHARACTERS = 10_000  # of one text
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\[^\n])*+"|'[^'\n]*+')"""
# Strings and comments are matched so that what is in them counts as no key, bare words so that none is read twice.
# Strings without an end are no TOML, but to look for the end of each takes minutes for a text full of them.
_LONG_KEY = re.compile(
    r'"""(?:(?:\\.|[^\\])*?"""(?:"{0,2}+)|(?:\\.|[^\\])*+)'
    r"|'''(?:.*?'''(?:'{0,2}+)|.*+)"
    r"|#[^\n]*+"
    rf"|(?P<key>{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}})"
    rf"|{_PART}"
    r'|"(?:[^"\\\n]|\\[^\n])*+'
    r"|'[^'\n]*+",
    re.DOTALL,
)
_LONG_NUMBER = re.compile(r"(?<![0-9_])[0-9][0-9_]{999}")


def load_toml(
    text: str, source: str, loads: Callable[[str], dict[str, Any]] = tomllib.loads
) -> tuple[dict[str, Any], TomlLineIndex]:
    """Return the data of a TOML text and the lines of its keys. Raises InvalidFile, with one problem."""
    try:
        return loads(text), index_lines(text)
    except RecursionError as error:
        raise _invalid(source, 1, "values are nested too deeply") from error
    except ValueError as error:
        if type(error) is ValueError:  # of `int`, which takes 4,300 digits
            found = _LONG_NUMBER.search(text)
            line = _line_at(text, found.start()) if found else 1
            raise _invalid(source, line, "a number has too many digits") from error
        what = f"this is not TOML ({str(error).partition(' (at')[0]})"
        raise _invalid(source, _error_line(str(error), text), what) from error


def load_limited_toml(text: str, source: str) -> tuple[dict[str, Any], TomlLineIndex]:
    """Return what `load_toml` returns, of a text that a client has sent.

    Keys have at most MAX_KEY_PARTS parts, because a parser needs memory for each beginning of a dotted key. Whole
    numbers have at most 63 bits, other numbers are finite, and texts have at most 10,000 characters.
    """
    import tomli  # of the extra `server`: the agent reads its own file without it

    for found in _LONG_KEY.finditer(text):
        if found["key"]:
            raise _invalid(source, _line_at(text, found.start()), f"a key has more than {MAX_KEY_PARTS} parts")
    data, lines = load_toml(text, source, tomli.loads)
    _require_values_within_limits(data, lines, source)
    return data, lines


def _invalid(source: str, line: int, what: str) -> InvalidFile:
    return InvalidFile([FileProblem(line=line, message=what, remedy="correct that line")], source=source)


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _require_values_within_limits(data: dict[str, Any], lines: TomlLineIndex, source: str) -> None:
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
            raise _invalid(source, lines.line_of(path), f"{name}{problem}")


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


def _error_line(message: str, text: str) -> int:
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


# Values of a table: each function reads one key, and raises BadValue with the problem and a remedy.

RawTable = Mapping[str, Any]  # as TOML gives it, not validated


class BadValue(Rejected):
    """An invalid value in a table: its key ("": the whole table), what is wrong, and a remedy."""

    def __init__(self, key: str, what: str, remedy: str) -> None:
        self.key, self.what, self.remedy = key, what, remedy
        super().__init__(f"{what}: {remedy}")


_TEXT_LIST_EXAMPLE = '["…"]'


def read_text(raw: RawTable, key: str, default: str = "") -> str:
    """Return the non-empty string under `key`; `default` if the key is absent."""
    value = raw.get(key, default)
    if not isinstance(value, str) or (key in raw and not value):
        raise BadValue(key, f"{key} = {value!r} is not a string", f'write {key} = "…", or remove it')
    return value


def read_required_text(raw: RawTable, key: str, example: str) -> str:
    """Return the non-empty string under `key`. Raises BadValue if it is absent, empty or not a string."""
    if key not in raw:
        raise BadValue("", f"{key} is missing", f"write {key} = {example}")
    return read_text(raw, key)


def read_choice(raw: RawTable, key: str, choices: tuple[str, ...], default: str = "") -> Any:
    """Return the value under `key`, one of the choices, spelled exactly so; the first of them if it has no default."""
    order = dict.fromkeys((default or choices[0], *choices))
    value = raw.get(key, next(iter(order)))
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in order)
        raise BadValue(key, f"{key} = {value!r} is not one of the choices", f"write one of {known}")
    return value


def read_flag(raw: RawTable, key: str, *, default: bool) -> bool:
    """Return the boolean under `key`; `default` if absent. Raises BadValue if it is not a boolean."""
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise BadValue(key, f"{key} = {value!r} is neither true nor false", f"write {key} = true")
    return value


def read_seconds(raw: RawTable, key: str, default: T, *, least: float = 0.0, most: float = math.inf) -> float | T:
    """Return the duration under `key` in seconds: a number, or a string such as "20s", "1h30m" or "500ms"."""
    if key not in raw:
        return default
    value = raw[key]
    try:
        seconds: Any = parse_duration(value) if isinstance(value, str) else value
    except ValueError:
        seconds = -1.0
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not least <= seconds <= min(most, sys.float_info.max):  # a whole number may be greater
        limits = (f" of {exact_duration_text(least)} or more" if least else "") + (
            f", at most {exact_duration_text(most)}" if most < math.inf else ""
        )
        raise BadValue(key, f"{key} = {value!r} is not a duration{limits}", f'write {key} = "20s"')
    return float(seconds)


def read_texts(raw: RawTable, key: str, example: str = "") -> tuple[str, ...]:
    """Return the non-empty strings under `key`, given as a list or a single string; () if it is absent."""
    if example and key not in raw:
        raise BadValue("", f"{key} is missing", f"write {key} = {example}")
    value = raw.get(key, [])
    items = [value] if isinstance(value, str) else value
    if (
        not isinstance(items, list)
        or not all(isinstance(each, str) and each for each in items)
        or (example and not items)
    ):
        raise BadValue(
            key, f"{key} = {value!r} is not a list of strings", f"write {key} = {example or _TEXT_LIST_EXAMPLE}"
        )
    return tuple(items)


def read_command_line(raw: RawTable, key: str) -> tuple[str, ...]:
    """Return the command under `key` as its words, () if absent; `/bin/sh -c` runs a string."""
    value = raw.get(key, [])
    if isinstance(value, str) and value.strip():
        return ("/bin/sh", "-c", value)
    is_word_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if not is_word_list or (key in raw and not (value and value[0])):
        raise BadValue(key, f"{key} = {value!r} is not a command", f'write {key} = ["program", "argument"]')
    return tuple(value)


def read_path(raw: RawTable, key: str) -> Path | None:
    """Return the absolute path under `key`; a relative one is refused, since the working directory must not matter."""
    given = read_text(raw, key)
    if given and not given.startswith("/"):
        raise BadValue(key, f"{key} = {given!r} is not an absolute path", f'write {key} = "/…"')
    return Path(given) if given else None


def read_url(raw: RawTable, key: str, default: str = "") -> str:
    """Return the http or https URL under `key`; the default, which may be "", if the key is absent."""
    given = read_text(raw, key, default)
    if given:
        check_url(key, given)
    return given


def check_url(key: str, given: str) -> None:
    """Raise BadValue, for the option `key`, if `given` is not a valid http or https URL."""
    try:
        parts = urlsplit(given)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or any(character <= " " for character in given):
        raise BadValue(key, f"{key} = {given!r} is not a URL", f'write {key} = "https://host/path"')
    if parts.username or parts.password:
        raise BadValue(key, f"{key} contains a password", "put it into a file and give that file")


def read_number(raw: RawTable, key: str, default: T, least: int, most: int) -> int | T:
    """Return the whole number under `key`, from `least` to `most`, both included."""
    if key not in raw:
        return default
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadValue(key, f"{key} = {value!r} is not a whole number", f"write one from {least} to {most}")
    return value


def read_whole_numbers(raw: RawTable, key: str, least: int, most: int) -> tuple[int, ...]:
    """Return the whole numbers under `key`, given as a list or a single number, in the order of the list."""
    value = raw.get(key, [])
    items = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, int) or not least <= each <= most for each in items):
        raise BadValue(key, f"{key} = {value!r} is not a list of numbers", f"write numbers from {least} to {most}")
    return tuple(items)


def read_table(raw: RawTable, key: str) -> RawTable:
    """Return the table under `key`, not validated; {} if absent. Raises BadValue if it is not a table."""
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise BadValue(key, f"{key} = {value!r} is not a table", f"write {key} = {{ … }}")
    return value


def read_text_table(raw: RawTable, key: str) -> dict[str, str]:
    """Return the table of strings under `key`, by name; the strings may be empty. {} if the key is absent."""
    value = read_table(raw, key)
    for name, each in value.items():
        if not isinstance(each, str):
            raise BadValue(key, f"{name} = {each!r} in {key} is not a string", f'write {name} = "…"')
    return dict(value)


def check_known_keys(raw: RawTable, known: Iterable[str]) -> None:
    """Raise BadValue, for the first unknown key, if the table has keys that are not in `known`."""
    for name in raw:
        if name not in known:
            raise BadValue(name, f"{name} is unknown", f"write one of {', '.join(known)}")


# Tables of a file: each problem is collected with its line and a remedy, instead of being raised.


class TomlTable:
    """Reads the keys of one table of a TOML file, and collects problems instead of raising them."""

    # A wrong value is a problem of the whole file, and reads as if the key were absent. Each read marks its key as
    # known for `reject_unknown_keys`, which is called last.

    def __init__(
        self, raw: RawTable, path: TomlPath, title: str, lines: TomlLineIndex, problems: list[FileProblem]
    ) -> None:
        self.raw, self.title = raw, title
        self._path, self._lines, self._problems = path, lines, problems
        self._known_keys: list[str] = []

    def has(self, key: str) -> bool:
        """Return whether the table contains the key, with any value; does not mark the key as known."""
        return key in self.raw

    def add_problem(self, key: str, what: str, remedy: str) -> None:
        """Append a problem to the list of the whole file, at the line of `key`; "" means the table itself."""
        path = (*self._path, key) if key else self._path
        self._problems.append(FileProblem(line=self._lines.line_of(path), message=what, remedy=remedy))

    def add_error(self, key: str, error: Rejected) -> None:
        """Append an error of the form `what: remedy` to the list, at the line of `key`."""
        what, _, remedy = str(error).partition(": ")
        self.add_problem(key, what, remedy)

    def raise_problems(self, source: str) -> None:
        """Raise InvalidFile if any table of the file has a problem; `source` names the file."""
        if self._problems:
            raise InvalidFile(sorted(self._problems, key=lambda problem: problem.line), source=source)

    def read(
        self, reader: Callable[Concatenate[RawTable, str, P], T], key: str, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the value under `key`, as one of the functions above reads it from a table."""
        self._known_keys.append(key)
        try:
            return reader(self.raw, key, *args, **kwargs)
        except BadValue as bad:
            self.add_problem(key, bad.what, bad.remedy)
            return reader({}, key, *args, **kwargs)

    def read_required_text(self, key: str, example: str) -> str:
        """Return the non-empty string under `key`; if it is missing or wrong, append a problem and return ""."""
        if not self.has(key):
            self._known_keys.append(key)
            self.add_problem("", f"{self.title} has no {key}", f"write {key} = {example} below it")
            return ""
        return self.read(read_text, key)

    def read_words(self, key: str, known: Iterable[str], default: Iterable[str] = ()) -> frozenset[str]:
        """Return the words under `key`, given as a list or as one word, spelled as in `known`."""
        by_folded_name = {word.casefold(): word for word in known}
        if not self.has(key):
            self._known_keys.append(key)
            return frozenset(default)
        given = self.read(read_texts, key)
        for word in given:
            if word.casefold() not in by_folded_name:
                self.add_problem(
                    key, f"{key} has {word!r}, which is unknown", suggest_name(word, by_folded_name.values())
                )
        return frozenset(by_folded_name[word.casefold()] for word in given if word.casefold() in by_folded_name)

    def read_table(self, key: str) -> TomlTable | None:
        """Return a reader of the sub-table `key`, which appends to the same list of problems."""
        self._known_keys.append(key)
        raw = self.raw.get(key)
        if raw is not None and not isinstance(raw, dict):
            self.add_problem(key, f"{key} is not a table", f"write {key} = {{ … }}")
        if not isinstance(raw, dict):
            return None
        return TomlTable(raw, (*self._path, key), key, self._lines, self._problems)

    def read_tables(self, key: str) -> list[TomlTable]:
        """Return a reader for each of the [[key]] tables, in order, all with the same list of problems."""
        self._known_keys.append(key)
        raw = self.raw.get(key, [])
        if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
            self.add_problem(key, f"{key} is not a list of tables", f"write [[{key}]] above each of them")
            return []
        path = (*self._path, key)
        return [TomlTable(each, (*path, n), f"[[{key}]]", self._lines, self._problems) for n, each in enumerate(raw)]

    def reject_unknown_keys(self, *more: str) -> None:
        """Append a problem for each key of the table that no read_ method has read and that is not in `more`."""
        known = [*self._known_keys, *more]
        for key in self.raw:
            if key not in known:
                self.add_problem(key, f"{self.title} has no key {key!r}", suggest_name(key, known))


def suggest_name(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the remedy for an unknown name: "did you mean …?" with the known name closest to it, if one is close."""
    by_folded_name = {each.casefold(): each for each in known}
    close = get_close_matches(word.casefold(), by_folded_name, n=1)
    if close:
        return f"did you mean {by_folded_name[close[0]]!r}?"
    return otherwise or f"write one of {', '.join(by_folded_name.values())}"


def parse_toml(text: str, source: str) -> TomlTable:
    """Return the table of a whole file, given as its text. Raises InvalidFile if it is not TOML."""
    data, lines = load_toml(text, source)
    return TomlTable(data, (), "the file", lines, [])


def toml_value(value: object) -> str:
    """Return a text, number, boolean or list of them, or a table, as TOML."""
    if isinstance(value, dict):
        pairs = (
            (key if _BARE_KEY.fullmatch(key) else toml_value(key), toml_value(each)) for key, each in value.items()
        )
        return "{" + ", ".join(f"{key} = {each}" for key, each in pairs) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # in JSON, DEL stands for itself


def read_text_file(path: Path, what: str, remedy: str) -> str:
    """Return the text of a user's file; `what` it is and the `remedy` are for the message if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        why = error.strerror or "no reason given"
        raise Rejected(f"{what} {str(path)!r} cannot be read ({why}): {remedy}") from error
    except UnicodeDecodeError as error:
        raise Rejected(f"{what} {str(path)!r} is not UTF-8 text: save it as UTF-8") from error
