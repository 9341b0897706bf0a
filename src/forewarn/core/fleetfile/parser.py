"""From TOML text to the tables of `form`, with lines: unknown keys, wrong types and missing names are found here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Any, Generic, TypeVar, cast, get_args

import msgspec
import tomli  # the standard library's, compiled: a fleet written out VM by VM is megabytes of text

from forewarn.core.fleetfile import form
from forewarn.core.fleetfile.problem import Findings
from forewarn.tomlfile import Lines, Path, faulty_line, lines_of

T = TypeVar("T", bound=msgspec.Struct)
T_co = TypeVar("T_co", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[T_co]):
    """One table of the file: what it says, and where."""

    says: T_co
    title: str  # as it is written: "[[vms]]"
    path: Path
    lines: Lines
    given: frozenset[str]  # the keys that are there and mean something
    unsound: frozenset[str]  # the keys whose values were refused: what depends on them is not judged

    def line(self, *keys: str) -> int:
        """The line of the first of these keys that is written, else of the table."""
        written = (key for key in keys if key in self.given or key in self.unsound)
        return self.lines.of((*self.path, next(written, "")))

    def has(self, key: str) -> bool:
        return key in self.given


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFile:
    """The whole file, table by table."""

    defaults: Table[form.Defaults]
    subscriptions: list[Table[form.Subscription]] = field(default_factory=list)
    resource_groups: list[Table[form.ResourceGroup]] = field(default_factory=list)
    hosts: list[Table[form.Hosts]] = field(default_factory=list)
    availability_sets: list[Table[form.AvailabilitySet]] = field(default_factory=list)
    scale_sets: list[Table[form.ScaleSet]] = field(default_factory=list)
    cloud_services: list[Table[form.CloudService]] = field(default_factory=list)
    roles: dict[Path, list[Table[form.Role]]] = field(default_factory=dict)  # by the path of their service
    vms: list[Table[form.Vms]] = field(default_factory=list)
    unsound: frozenset[str] = frozenset()  # tables among which one was refused: who names it is not judged


def read_tables(text: str, findings: Findings) -> FleetFile | None:
    """None: the text is not TOML, and nothing more can be said about it."""
    try:
        data = tomli.loads(text)
        reader = _Reader(lines_of(text), findings)
    except ValueError as error:
        findings.add(faulty_line(str(error), text), f"this is not TOML ({error})", "correct that line")
        return None
    except RecursionError:
        findings.add(1, "lists stand in lists too deeply", "write a list of plain values")
        return None
    return reader.fleet_file(data)


class _Reader:
    """Reads tables, and collects what is wrong with them."""

    def __init__(self, lines: Lines, findings: Findings) -> None:
        self._lines = lines
        self._findings = findings
        self._unsound: set[str] = set()

    def fleet_file(self, data: dict[str, Any]) -> FleetFile:
        for key in data:
            if key != "defaults" and key not in form.TABLES:
                self._unknown_key((), key, "a fleet file", ["defaults", *form.TABLES])
        read = {key: self._tables(of, data.get(key, []), (key,)) for key, of in form.TABLES.items()}
        services = cast("list[Table[form.CloudService]]", read["cloud_services"])
        roles = {table.path: self._roles(data, table) for table in services}
        defaults = self._defaults(data.get("defaults", {}))
        return FleetFile(defaults=defaults, roles=roles, unsound=frozenset(self._unsound), **cast("Any", read))

    def _defaults(self, raw: object) -> Table[form.Defaults]:
        if not isinstance(raw, dict):
            line = self._lines.of(("defaults",))
            self._findings.add(line, "defaults is not a table", "write [defaults] once, with its keys below it")
            raw = {}
        return cast("Table[form.Defaults]", self._table(form.Defaults, raw, ("defaults",), "[defaults]"))

    def _roles(self, data: dict[str, Any], service: Table[form.CloudService]) -> list[Table[form.Role]]:
        raw = data["cloud_services"][service.path[1]].get("roles", [])
        return self._tables(form.Role, raw, (*service.path, "roles"))

    def _tables(self, of: type[T], raw: object, path: Path) -> list[Table[T]]:
        title = f"[[{'.'.join(str(part) for part in path if isinstance(part, str))}]]"
        if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
            what = f"{path[-1]} is not a list of tables"
            self._findings.add(self._lines.of(path), what, f"write {title} above each of them")
            self._unsound.add(str(path[0]))
            return []
        read = (self._table(of, item, (*path, number), title) for number, item in enumerate(raw))
        return [table for table in read if table is not None]

    def _table(self, of: type[T], raw: Mapping[str, object], path: Path, title: str) -> Table[T] | None:
        known = _shapes(of)
        for key in raw.keys() - known.keys():
            self._unknown_key(path, key, title, known)
        wanted = [key for key in raw if key in known and key != "roles"]  # roles are tables of their own
        values = {key: self._value(known[key], key, raw[key], path) for key in wanted}
        unsound = frozenset(key for key, value in values.items() if value is _REFUSED)
        missing = [key for key, shape in known.items() if shape.required and key not in values]
        for key in missing:
            remedy = f"write {key} = {known[key].example} below it"
            self._findings.add(self._lines.of(path), f"{title} has no {key}", remedy)

        if unsound or missing:
            self._unsound.add(str(path[0]))
        if missing or any(known[key].required for key in unsound):
            return None
        sound = {key: value for key, value in values.items() if key not in unsound}
        says = of(**sound)
        return Table(says=says, title=title, path=path, lines=self._lines, given=frozenset(sound), unsound=unsound)

    def _value(self, shape: _Shape, key: str, value: object, path: Path) -> object:
        try:
            return msgspec.convert(value, type=shape.type)
        except msgspec.ValidationError:
            what = f"{key} = {_shown(value)} is not {shape.description}"
            self._findings.add(self._lines.of((*path, key)), what, f"write {key} = {shape.example}")
            return _REFUSED

    def _unknown_key(self, path: Path, key: str, title: str, known: Iterable[str]) -> None:
        close = get_close_matches(key.casefold(), known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"it may hold {', '.join(known)}"
        self._findings.add(self._lines.of((*path, key)), f"{title} has no key {key!r}", remedy)


_REFUSED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    type: Any
    description: str
    example: str
    required: bool


@cache
def _shapes(of: type[msgspec.Struct]) -> dict[str, _Shape]:
    return {item.name: _shape(item) for item in msgspec.structs.fields(of)}


def _shape(item: msgspec.structs.FieldInfo) -> _Shape:
    meta = get_args(item.type)[-1]
    return _Shape(type=item.type, description=meta.description, example=meta.examples[0], required=item.required)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
