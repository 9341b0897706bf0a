"""Reads TOML tables key by key, and collects every problem with its line and a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from forewarn.agent.reactions import BadOption, options
from forewarn.base.duration import parse_duration
from forewarn.base.tomlfile import TomlLineIndex, TomlPath
from forewarn.errors import Rejected

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One problem of the agent's configuration file: its line, what is wrong, and a remedy."""

    line: int  # counted from 1; for a missing key that of its table
    message: str  # what is wrong, for people
    remedy: str  # what to do about it, for people, such as "did you mean 'rules'?"

    def format(self, source: str) -> str:
        """Return the problem as one text, `source:line: what: remedy`; `source` is the name of the file."""
        return f"{source}:{self.line}: {self.message}: {self.remedy}"


class BadConfig(Rejected):
    """The agent's file has problems; `problems` lists all of them in the order of their lines."""

    def __init__(self, problems: Sequence[ConfigProblem], *, source: str) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(problem.format(source) for problem in self.problems))


class ConfigTable:
    """Reads the keys of one table of the agent's TOML file, and collects problems instead of raising them."""

    # For a wrong value a read_ method appends a problem to the list of the whole file and returns the default. Each
    # marks its key as known for `reject_unknown_keys`, which is called last.

    def __init__(
        self, raw: Mapping[str, Any], path: TomlPath, title: str, lines: TomlLineIndex, problems: list[ConfigProblem]
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
        self._problems.append(ConfigProblem(line=self._lines.line_of(path), message=what, remedy=remedy))

    def read_text(self, key: str, default: str = "") -> str:
        """Return the non-empty string under `key`; `default` if the key is absent or its value is wrong."""
        return self._read_option(key, default, lambda: options.read_text(self.raw, key, default))

    def read_required_text(self, key: str, example: str) -> str:
        """Return the non-empty string under `key`; if it is missing or wrong, append a problem and return ""."""
        if not self.has(key):
            self._known_keys.append(key)
            self.add_problem("", f"{self.title} has no {key}", f"write {key} = {example} below it")
            return ""
        return self.read_text(key)

    def read_texts(self, key: str) -> tuple[str, ...]:
        """Return the non-empty strings under `key`, given as a list or as one string; () if absent or wrong."""
        return self._read_option(key, (), lambda: options.read_texts(self.raw, key))

    def read_words(self, key: str, known: Iterable[str], default: Iterable[str] = ()) -> frozenset[str]:
        """Return the words under `key`, given as a list or as one word, spelled as in `known`."""
        by_folded_name = {word.casefold(): word for word in known}
        if not self.has(key):
            self._known_keys.append(key)
            return frozenset(default)
        given = self.read_texts(key)
        for word in given:
            if word.casefold() not in by_folded_name:
                self.add_problem(
                    key, f"{key} has {word!r}, which is unknown", _suggestion(word, by_folded_name.values())
                )
        return frozenset(by_folded_name[word.casefold()] for word in given if word.casefold() in by_folded_name)

    def read_choice(self, key: str, choices: tuple[str, ...], default: str) -> Any:
        """Return the value under `key`, one of `choices`; `default` if it is absent or wrong."""
        order = (default, *(choice for choice in choices if choice != default))
        return self._read_option(key, default, lambda: options.read_choice(self.raw, key, order))

    def read_flag(self, key: str, *, default: bool) -> bool:
        """Return the boolean under `key`; `default` if the key is absent or its value is not a boolean."""
        return self._read_option(key, default, lambda: options.read_flag(self.raw, key, default=default))

    def read_command_line(self, key: str) -> tuple[str, ...]:
        """Return the command under `key` as its words; () if it is absent or wrong."""
        return self._read_option(key, (), lambda: options.read_command_line(self.raw, key))

    def read_url(self, key: str) -> str:
        """Return the http or https URL under `key`; "" if it is absent or wrong."""
        return self._read_option(key, "", lambda: options.read_url(self.raw, key))

    def read_number(self, key: str, default: int | None, least: int, most: int) -> int | None:
        """Return the whole number under `key`, from `least` to `most` (both included); `default` if absent."""

        def read() -> int | None:
            numbers = options.read_whole_numbers(self.raw, key, least, most)
            return numbers[0] if numbers else default

        return self._read_option(key, default, read)

    def read_seconds(self, key: str, default: T, *, least: float = 0.0) -> float | T:
        """Return the duration under `key` in seconds, given as "20s" or "15m" or as a whole number of seconds."""
        self._known_keys.append(key)
        if not self.has(key):
            return default
        value = self.raw[key]
        try:
            seconds = parse_duration(str(value)) if isinstance(value, str | int) and value is not True else -1.0
        except ValueError:
            seconds = -1.0
        if seconds < least or value is False:
            wanted = "a duration" if least == 0 else f"a duration of {least:g} s or more"
            self.add_problem(key, f"{key} = {value!r} is not {wanted}", f'write {key} = "20s", "15m" or "7d"')
            return default
        return seconds

    def read_table(self, key: str) -> ConfigTable | None:
        """Return a reader of the sub-table `key`, which appends to the same list of problems."""
        self._known_keys.append(key)
        raw = self.raw.get(key)
        if raw is not None and not isinstance(raw, dict):
            self.add_problem(key, f"{key} is not a table", f"write {key} = {{ … }}")
        if not isinstance(raw, dict):
            return None
        return ConfigTable(raw, (*self._path, key), key, self._lines, self._problems)

    def read_tables(self, key: str) -> list[ConfigTable]:
        """Return a reader for each of the [[key]] tables, in order, all with the same list of problems."""
        self._known_keys.append(key)
        raw = self.raw.get(key, [])
        if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
            self.add_problem(key, f"{key} is not a list of tables", f"write [[{key}]] above each of them")
            return []
        path = (*self._path, key)
        return [ConfigTable(each, (*path, n), f"[[{key}]]", self._lines, self._problems) for n, each in enumerate(raw)]

    def reject_unknown_keys(self, *more: str) -> None:
        """Append a problem for each key of the table that no read_ method has read and that is not in `more`."""
        known = [*self._known_keys, *more]
        for key in self.raw:
            if key not in known:
                self.add_problem(key, f"{self.title} has no key {key!r}", _suggestion(key, known))

    def _read_option(self, key: str, default: T, read: Callable[[], T]) -> T:
        self._known_keys.append(key)
        try:
            return read()
        except BadOption as bad:
            self.add_problem(key, bad.what, bad.remedy)
            return default


def _suggestion(word: str, known: Iterable[str]) -> str:
    words = list(dict.fromkeys(known))
    close = get_close_matches(word.casefold(), [each.casefold() for each in words], n=1)
    closest = next((each for each in words if close and each.casefold() == close[0]), None)
    return f"did you mean {closest!r}?" if closest else f"write one of {', '.join(words)}"


def suggest_name(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown name: "did you mean …?" with the one of `known` closest to `word`."""
    words = list(known)
    return _suggestion(word, words) if words else otherwise
