"""Parses TOML text into the tables of `tables`, with line numbers; finds unknown keys and wrong types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any, Generic, TypeVar, cast, get_args

import msgspec

from forewarn.base.tomlfile import TomlLineIndex, TomlPath, load_limited_toml
from forewarn.core.fleetfile import tables
from forewarn.core.fleetfile.problems import ProblemCollector
from forewarn.errors import InvalidFile

T = TypeVar("T", bound=msgspec.Struct)
T_co = TypeVar("T_co", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTable(Generic[T_co]):
    """One table of a fleet file, with its values and the line numbers of its keys."""

    content: T_co  # its values; a key that is missing or invalid has its default
    title: str  # as the file writes it: "[[vms]]"
    path: TomlPath  # where it is in the file: ("vms", 0)
    lines: TomlLineIndex  # of the whole file
    given_keys: frozenset[str]  # keys that the table has, with valid values
    invalid_keys: frozenset[str]  # keys with invalid values; checks that depend on them are left out

    def line(self, *keys: str) -> int:
        """Return the line, from 1, of the first of these keys that the table has, with a valid value or not."""
        written = (key for key in keys if key in self.given_keys or key in self.invalid_keys)
        return self.lines.line_of((*self.path, next(written, "")))

    def has(self, key: str) -> bool:
        return key in self.given_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFleetFile:
    """The usable tables of a fleet file, each kind in the order of the file.

    Tables that lack a valid required key are left out, so only the `path` of a table says which one of the file it is.
    `invalid_tables` has the key of each kind with a table that was left out or has an invalid value.
    """

    defaults: ParsedTable[tables.DefaultsTable]
    subscriptions: list[ParsedTable[tables.SubscriptionTable]] = field(default_factory=list)
    resource_groups: list[ParsedTable[tables.ResourceGroupTable]] = field(default_factory=list)
    hosts: list[ParsedTable[tables.HostsTable]] = field(default_factory=list)
    availability_sets: list[ParsedTable[tables.AvailabilitySetTable]] = field(default_factory=list)
    scale_sets: list[ParsedTable[tables.ScaleSetTable]] = field(default_factory=list)
    cloud_services: list[ParsedTable[tables.CloudServiceTable]] = field(default_factory=list)
    roles: dict[TomlPath, list[ParsedTable[tables.RoleTable]]] = field(
        default_factory=dict
    )  # by the path of their service
    vms: list[ParsedTable[tables.VmsTable]] = field(default_factory=list)
    invalid_tables: frozenset[str] = frozenset()  # kinds with an invalid table; references to them are not checked


def parse_fleet_file(text: str, problems: ProblemCollector) -> ParsedFleetFile | None:
    """Return the tables of a fleet file (TOML text), and report what is wrong in them to `problems`."""
    try:
        data, lines = load_limited_toml(text, "the fleet file")
    except InvalidFile as error:
        (found,) = error.problems
        problems.add(found.line, found.message, found.remedy)
        return None
    return _FleetFileParser(lines, problems).fleet_file(data)


class _FleetFileParser:
    def __init__(self, lines: TomlLineIndex, problems: ProblemCollector) -> None:
        self._lines = lines
        self._problems = problems
        self._invalid_tables: set[str] = set()

    def fleet_file(self, data: dict[str, Any]) -> ParsedFleetFile:
        for key in data:
            if key != "defaults" and key not in tables.TABLES:
                self._unknown_key((), key, "a fleet file", ["defaults", *tables.TABLES])
        read = {key: self._tables(of, data.get(key, []), (key,)) for key, of in tables.TABLES.items()}
        services = cast("list[ParsedTable[tables.CloudServiceTable]]", read["cloud_services"])
        roles = {table.path: self._roles(data, table) for table in services}
        defaults = self._defaults(data.get("defaults", {}))
        return ParsedFleetFile(
            defaults=defaults, roles=roles, invalid_tables=frozenset(self._invalid_tables), **cast("Any", read)
        )

    def _defaults(self, raw: object) -> ParsedTable[tables.DefaultsTable]:
        if not isinstance(raw, dict):
            line = self._lines.line_of(("defaults",))
            self._problems.add(line, "defaults is not a table", "write [defaults] once, with its keys below it")
            raw = {}
        return cast(
            "ParsedTable[tables.DefaultsTable]", self._table(tables.DefaultsTable, raw, ("defaults",), "[defaults]")
        )

    def _roles(
        self, data: dict[str, Any], service: ParsedTable[tables.CloudServiceTable]
    ) -> list[ParsedTable[tables.RoleTable]]:
        raw = data["cloud_services"][service.path[1]].get("roles", [])
        return self._tables(tables.RoleTable, raw, (*service.path, "roles"))

    def _tables(self, of: type[T], raw: object, path: TomlPath) -> list[ParsedTable[T]]:
        title = f"[[{'.'.join(str(part) for part in path if isinstance(part, str))}]]"
        if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
            what = f"{path[-1]} is not a list of tables"
            self._problems.add(self._lines.line_of(path), what, f"write {title} above each of them")
            self._invalid_tables.add(str(path[0]))
            return []
        read = (self._table(of, item, (*path, number), title) for number, item in enumerate(raw))
        return [table for table in read if table is not None]

    def _table(self, of: type[T], raw: Mapping[str, object], path: TomlPath, title: str) -> ParsedTable[T] | None:
        known = _field_rules(of)
        for key in raw.keys() - known.keys():
            self._unknown_key(path, key, title, known)
        wanted = [key for key in raw if key in known and key != "roles"]  # `_roles` reads the roles
        values = {key: self._value(known[key], key, raw[key], path) for key in wanted}
        invalid = frozenset(key for key, value in values.items() if value is _INVALID)
        missing = [key for key, shape in known.items() if shape.required and key not in values]
        for key in missing:
            remedy = f"write {key} = {known[key].example} below it"
            self._problems.add(self._lines.line_of(path), f"{title} has no {key}", remedy)

        if invalid or missing:
            self._invalid_tables.add(str(path[0]))
        if missing or any(known[key].required for key in invalid):
            return None
        valid = {key: value for key, value in values.items() if key not in invalid}
        return ParsedTable(
            content=of(**valid),
            title=title,
            path=path,
            lines=self._lines,
            given_keys=frozenset(valid),
            invalid_keys=invalid,
        )

    def _value(self, shape: _FieldRule, key: str, value: object, path: TomlPath) -> object:
        try:
            return msgspec.convert(value, type=shape.type)
        except msgspec.ValidationError:
            what = f"{key} = {_short_repr(value)} is not {shape.description}"
            self._problems.add(self._lines.line_of((*path, key)), what, f"write {key} = {shape.example}")
            return _INVALID

    def _unknown_key(self, path: TomlPath, key: str, title: str, known: Iterable[str]) -> None:
        close = get_close_matches(key.casefold(), known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"the known keys are {', '.join(known)}"
        self._problems.add(self._lines.line_of((*path, key)), f"{title} has no key {key!r}", remedy)


_INVALID = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _FieldRule:
    type: Any
    description: str
    example: str
    required: bool


@cache
def _field_rules(of: type[msgspec.Struct]) -> dict[str, _FieldRule]:
    return {item.name: _field_rule(item) for item in msgspec.structs.fields(of)}


def _field_rule(item: msgspec.structs.FieldInfo) -> _FieldRule:
    meta = get_args(item.type)[-1]
    return _FieldRule(type=item.type, description=meta.description, example=meta.examples[0], required=item.required)


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
