"""Writes the tables of docs/reference/settings.md from the settings themselves (`make docs`).

The comment above a field of `Settings` is its meaning; one behind it is its default, in words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from forewarn.service.settings import FILE_ONLY_SETTINGS, Settings, load_settings

# The settings of clusters, which have a table of their own.
_CLUSTER = (
    *("store", "name", "advertise", "api_url", "secrets", "bus", "bus_prefix", "bus_credentials", "bus_ca"),
    *("bus_certificate", "bus_key", "host", "stale_minutes"),
)

_FIELD = re.compile(r"((?:    # .*\n)+)    (\w+): [^#\n]*(?:# (.*))?\n")
# By name: the meaning of a setting, and its default in words, "" if its value says it.
_COMMENTS = {
    name: (" ".join(line.strip(" #") for line in above.splitlines()), behind)
    for above, name, behind in _FIELD.findall(inspect.getsource(Settings))
}
_TABLE = re.compile(r"(<!-- settings: begin (\w+) .*? -->\n).*?(<!-- settings: end -->)", re.DOTALL)


def with_settings(page: str) -> str:
    """The text of docs/reference/settings.md with new tables of settings between its comments."""
    own = [name for name in Settings.__struct_fields__ if name not in ("lab", *_CLUSTER)]
    tables = {"service": own, "cluster": _CLUSTER}
    return _TABLE.sub(lambda match: match[1] + _table(tables[match[2]]) + match[3], page)


def _table(names: Sequence[str]) -> str:
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *map(_row, names)]) + "\n"


def _row(name: str) -> str:
    only = "in the file only: " if name in FILE_ONLY_SETTINGS else ""
    meaning, default = _COMMENTS[name]
    return f"| `{name}` | {default or _default(name)} | {only}{meaning} |"


def _default(name: str) -> str:
    """The default as a person would write it, and that of a lab if it differs."""
    (field,) = (field for field in msgspec.structs.fields(Settings) if field.name == name)
    usual = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    in_lab = getattr(load_settings({}, lab=True, environ={}), name)
    text = _value_text(usual)
    return text if in_lab == usual else f"{text}; {_value_text(in_lab)} in a lab"


def _value_text(value: object) -> str:
    if value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value.value if isinstance(value, StrEnum) else value}`"
