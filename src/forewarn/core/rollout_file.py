"""Rollout files: a rollout described in TOML, read with the line of each mistake (spec §13.1).

[rollout]
tag = "team=shop"
impact = "update"
settle = "10m"

[[waves]]
name = "canary"
vms = 2

[windows]
open = ["sat,sun 02:00 4h Europe/Berlin"]

[[checks]]
name = "errors"
prometheus = "http://prometheus.example:9090"
query = "sum(rate(http_requests_total{code=~'5..'}[5m]))"
condition = "< 1"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forewarn.base.duration import parse_duration
from forewarn.base.tomlfile import TomlLineIndex, TomlPath, load_limited_toml
from forewarn.base.wording import did_you_mean
from forewarn.core.rollout import InvalidRollout
from forewarn.errors import InvalidFile, Rejected, Remedy
from forewarn.protocol.dates import parse_date

_TEXT, _TEXTS, _WHOLE, _NUMBER, _FLAG = "a text", "a list of texts", "a whole number", "a number", "true or false"
_DURATION = "a duration such as 10m"

# The keys of each table, and what their values are. `waves` and `checks` are lists of tables: [[waves]].
FILE_KEYS: dict[str, dict[str, str]] = {
    "rollout": {
        "hosts": _TEXTS,
        "all_hosts": _FLAG,
        "scope": _TEXT,
        "tag": _TEXT,
        "location": _TEXT,
        "everything": _FLAG,
        "impact": _TEXT,
        "notice": _DURATION,
        "short_notice": _FLAG,
        "max_failures": _WHOLE,
        "settle": _DURATION,
        "hold_if_unclear": _FLAG,
    },
    "waves": {"name": _TEXT, "vms": _WHOLE, "share": _NUMBER, "tag": _TEXT},
    "windows": {"open": _TEXTS, "blackouts": _TEXTS, "deadline": _TEXT},
    "checks": {
        "name": _TEXT,
        "prometheus": _TEXT,
        "query": _TEXT,
        "condition": _TEXT,
        "http": _TEXT,
        "status": _WHOLE,
        "body": _TEXT,
        "command": _TEXTS,
        "exit": _WHOLE,
        "figure": _TEXT,
        "interval": _DURATION,
        "timeout": _DURATION,
        "bad_limit": _WHOLE,
        "unclear_limit": _WHOLE,
        "error_limit": _WHOLE,
    },
}
_LIST_TABLES = frozenset({"waves", "checks"})


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """A parsed rollout file whose keys and kinds of values are right."""

    rollout: Mapping[str, Any]  # the table [rollout]
    waves: tuple[Mapping[str, Any], ...]  # the tables [[waves]]
    windows: Mapping[str, Any]  # the table [windows]
    checks: tuple[Mapping[str, Any], ...]  # the tables [[checks]]
    lines: TomlLineIndex  # the line of each table and key

    @contextmanager
    def located(self, *path: str | int) -> Iterator[None]:
        """Return a context manager that adds the line of `path` to the message of a Rejected from its block."""
        try:
            yield
        except InvalidRollout as error:
            raise _at_line(self.lines.line_of(_file_path(error.path)), str(error)) from error
        except Rejected as error:
            if error.remedy_code is Remedy.ALLOW_SHORT_NOTICE:
                error.remedy_code = Remedy.SHORT_NOTICE_IN_FILE
            error.args = (_line_text(self.lines.line_of(path), str(error)),)
            raise


def _file_path(path: TomlPath) -> TomlPath:
    return path if path[:1] in (("waves",), ("windows",)) else ("rollout", *path)


def _line_text(line: int, message: str) -> str:
    return f"line {line} of the rollout file: {message}"


def _at_line(line: int, message: str) -> Rejected:
    return Rejected(_line_text(line, message))


def read_rollout_file(text: str) -> RolloutFile:
    """Return the tables of a rollout file, given as TOML text; no file is opened."""
    try:
        data, lines = load_limited_toml(text, "the rollout file")
    except InvalidFile as error:
        (found,) = error.problems
        raise _at_line(found.line, f"{found.message}: {found.remedy}") from error
    for table in data:
        if table not in FILE_KEYS:
            hint = did_you_mean(table, FILE_KEYS)
            known = "give [rollout], [[waves]], [windows] and [[checks]]"
            raise _at_line(lines.line_of((table,)), f"[{table}] is not known{hint}: {known}")
    if "rollout" not in data:
        raise _at_line(1, "the table [rollout] is missing: give it with a target, such as everything = true")
    tables: dict[str, Any] = {}
    for name in FILE_KEYS:
        if name in _LIST_TABLES:
            tables[name] = tuple(
                _checked_table(name, table, lines, (name, index))
                for index, table in enumerate(_list_of_tables(name, data.get(name, []), lines))
            )
        else:
            tables[name] = _checked_table(name, data.get(name, {}), lines, (name,))
    return RolloutFile(tables["rollout"], tables["waves"], tables["windows"], tables["checks"], lines)


def _list_of_tables(name: str, value: object, lines: TomlLineIndex) -> list[object]:
    if not isinstance(value, list):
        raise _at_line(lines.line_of((name,)), f"{name} is a list of tables: write [[{name}]] before each")
    return value


def _checked_table(name: str, table: object, lines: TomlLineIndex, path: TomlPath) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise _at_line(lines.line_of(path), f"{name} is a table: write [{name}] before its keys")
    checked: dict[str, Any] = {}
    for key, value in table.items():
        line = lines.line_of((*path, key))
        if key not in FILE_KEYS[name]:
            hint = did_you_mean(key, FILE_KEYS[name]) or f", only {', '.join(FILE_KEYS[name])}"
            raise _at_line(line, f"{key!r} is not a key of [{name}]{hint}: correct or remove it")
        kind = FILE_KEYS[name][key]
        if not _is_of_kind(value, kind):
            raise _at_line(line, f"{key} is {kind}, not {value!r}")
        checked[key] = _seconds(value, key, line) if kind == _DURATION else value
    return checked


def _is_of_kind(value: object, kind: str) -> bool:
    if kind == _FLAG:
        return isinstance(value, bool)
    if kind == _TEXTS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind in (_WHOLE, _NUMBER):
        numbers = (int,) if kind == _WHOLE else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, str)


def _seconds(text: str, key: str, line: int) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise _at_line(line, f"{key}: {error}") from error


def parse_deadline(text: str, now: float) -> float:
    """Return the lab time that a text means: a date and time, or a duration from `now` such as `30d`."""
    at = parse_date(text)
    if at is not None:
        return at
    try:
        return now + parse_duration(text)
    except ValueError:
        raise Rejected(
            f"{text!r} is not a deadline: write it like 2026-12-31T22:00Z, or from now on like 30d"
        ) from None
