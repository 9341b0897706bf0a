"""Reads the tables of the agent's file key by key, and collects everything that is wrong, with lines and remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from forewarn.agent.reaction import BadOption
from forewarn.agent.reaction import option as options
from forewarn.duration import read_duration
from forewarn.errors import Rejected
from forewarn.tomlfile import Lines, Path

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    line: int
    what: str
    remedy: str

    def sentence(self, source: str) -> str:
        return f"{source}:{self.line}: {self.what}: {self.remedy}"


class BadConfig(Rejected):
    """A file that no agent can run with; it carries all its problems, in the order of their lines."""

    def __init__(self, problems: Sequence[Problem], *, source: str) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(problem.sentence(source) for problem in self.problems))


class Table:
    """One table of the file. What is refused is noted, and its default is used, so that the rest can be read."""

    def __init__(self, raw: Mapping[str, Any], path: Path, title: str, lines: Lines, problems: list[Problem]) -> None:
        self.raw, self.title = raw, title
        self._path, self._lines, self._problems = path, lines, problems
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        return key in self.raw

    def refuse(self, key: str, what: str, remedy: str) -> None:
        """With "" for a key, the table as a whole is to blame."""
        path = (*self._path, key) if key else self._path
        self._problems.append(Problem(line=self._lines.of(path), what=what, remedy=remedy))

    def text(self, key: str, default: str = "") -> str:
        return self._read(key, default, lambda: options.text(self.raw, key, default))

    def needed(self, key: str, example: str) -> str:
        if not self.has(key):
            self._known.append(key)
            self.refuse("", f"{self.title} has no {key}", f"write {key} = {example} below it")
            return ""
        return self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        return self._read(key, (), lambda: options.texts(self.raw, key))

    def words(self, key: str, known: Iterable[str], default: Iterable[str] = ()) -> frozenset[str]:
        """A list of words out of those that are known, in any case."""
        spelled = {word.casefold(): word for word in known}
        if not self.has(key):
            self._known.append(key)
            return frozenset(default)
        given = self.texts(key)
        for word in given:
            if word.casefold() not in spelled:
                self.refuse(key, f"{key} has {word!r}, which is not known", _remedy(word, spelled.values()))
        return frozenset(spelled[word.casefold()] for word in given if word.casefold() in spelled)

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> Any:
        order = (default, *(choice for choice in choices if choice != default))
        return self._read(key, default, lambda: options.one_of(self.raw, key, order))

    def flag(self, key: str, *, default: bool) -> bool:
        return self._read(key, default, lambda: options.flag(self.raw, key, default=default))

    def line(self, key: str) -> tuple[str, ...]:
        return self._read(key, (), lambda: options.line(self.raw, key))

    def url(self, key: str) -> str:
        return self._read(key, "", lambda: options.url(self.raw, key))

    def number(self, key: str, default: int | None, least: int, most: int) -> int | None:
        def read() -> int | None:
            numbers = options.whole_numbers(self.raw, key, least, most)
            return numbers[0] if numbers else default

        return self._read(key, default, read)

    def seconds(self, key: str, default: T, *, least: float = 0.0) -> float | T:
        self._known.append(key)
        if not self.has(key):
            return default
        value = self.raw[key]
        try:
            seconds = read_duration(str(value)) if isinstance(value, str | int) and value is not True else -1.0
        except ValueError:
            seconds = -1.0
        if seconds < least or value is False:
            wanted = "a duration" if least == 0 else f"a duration of {least:g} s or more"
            self.refuse(key, f"{key} = {value!r} is not {wanted}", f'write {key} = "20s", "15m" or "7d"')
            return default
        return seconds

    def table(self, key: str) -> Table | None:
        """The table below this one, if it is given."""
        self._known.append(key)
        raw = self.raw.get(key)
        if raw is not None and not isinstance(raw, dict):
            self.refuse(key, f"{key} is not a table", f"write {key} = {{ … }}")
        if not isinstance(raw, dict):
            return None
        return Table(raw, (*self._path, key), key, self._lines, self._problems)

    def tables(self, key: str) -> list[Table]:
        """The [[tables]] below this one."""
        self._known.append(key)
        raw = self.raw.get(key, [])
        if not isinstance(raw, list) or not all(isinstance(each, dict) for each in raw):
            self.refuse(key, f"{key} is not a list of tables", f"write [[{key}]] above each of them")
            return []
        path = (*self._path, key)
        return [Table(each, (*path, n), f"[[{key}]]", self._lines, self._problems) for n, each in enumerate(raw)]

    def finish(self, *more: str) -> None:
        """Refuse the keys that nobody has asked for; `more` are known besides."""
        known = [*self._known, *more]
        for key in self.raw:
            if key not in known:
                self.refuse(key, f"{self.title} has no key {key!r}", _remedy(key, known))

    def _read(self, key: str, default: T, read: Callable[[], T]) -> T:
        self._known.append(key)
        try:
            return read()
        except BadOption as bad:
            self.refuse(key, bad.what, bad.remedy)
            return default


def _remedy(word: str, known: Iterable[str]) -> str:
    words = list(dict.fromkeys(known))
    close = get_close_matches(word.casefold(), [each.casefold() for each in words], n=1)
    meant = next((each for each in words if close and each.casefold() == close[0]), None)
    return f"did you mean {meant!r}?" if meant else f"write one of {', '.join(words)}"


def remedy_for(word: str, known: Iterable[str], otherwise: str) -> str:
    """What to write instead of a name that nobody knows."""
    words = list(known)
    return _remedy(word, words) if words else otherwise
