"""Describes a reaction to the configuration, and reads its options and secrets one by one.

Each reader raises BadOption with the key, the problem and a remedy. Secrets are read from their files at each use,
so that a new secret needs no restart; they are never shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forewarn.agent.model import Reaction
from forewarn.base.duration import parse_duration
from forewarn.errors import Rejected, Unavailable


class BadOption(Rejected):
    """An invalid option of a step: its key ("": the whole step), what is wrong, and a remedy."""

    def __init__(self, key: str, what: str, remedy: str) -> None:
        self.key, self.what, self.remedy = key, what, remedy
        super().__init__(f"{what}: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionKind:
    """Tells the configuration about one reaction, which a step names with `use`; REACTIONS has all."""

    name: str  # the value of `use`
    summary: str  # for people, begins with a verb
    options: tuple[str, ...]  # the keys that it accepts, also used for suggestions
    read: Callable[[Mapping[str, Any]], Any]  # validates the raw options, returns those for `make`; raises BadOption
    make: Callable[[Any], Reaction]  # builds a new reaction from what `read` returned
    has_undo: bool = True  # False: its steps are never undone, unless configured
    shared_by_events: bool = True  # one run for all events that need it; False (notifications): one for each


RawOptions = Mapping[str, Any]  # a step's table as TOML gives it, not validated
CommandLine = tuple[str, ...]  # a command and its arguments

_TEXT_LIST_EXAMPLE = '["…"]'
_MILLISECONDS = re.compile(r"(\d+(?:\.\d+)?)ms", re.ASCII)


def read_text(raw: RawOptions, key: str, default: str = "") -> str:
    """Return the non-empty string under `key`; `default` if the key is absent."""
    value = raw.get(key, default)
    if not isinstance(value, str) or (key in raw and not value):
        raise BadOption(key, f"{key} = {value!r} is not a string", f'write {key} = "…", or remove it')
    return value


def read_required_text(raw: RawOptions, key: str, example: str) -> str:
    """Return the non-empty string under `key`. Raises BadOption if it is absent, empty or not a string."""
    if key not in raw:
        raise BadOption("", f"{key} is missing", f"write {key} = {example}")
    return read_text(raw, key)


def read_choice(raw: RawOptions, key: str, choices: tuple[str, ...]) -> str:
    """Return the value under `key`, which must be one of the choices, spelled exactly so."""
    value = raw.get(key, choices[0])
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in choices)
        raise BadOption(key, f"{key} = {value!r} is not one of the choices", f"write one of {known}")
    return str(value)


def read_flag(raw: RawOptions, key: str, *, default: bool) -> bool:
    """Return the boolean under `key`; `default` if absent. Raises BadOption if it is not a boolean."""
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise BadOption(key, f"{key} = {value!r} is neither true nor false", f"write {key} = true")
    return value


def read_seconds(raw: RawOptions, key: str, default: float) -> float:
    """Return the duration under `key` in seconds: a number, or a string such as "20s", "1h30m" or "500ms"."""
    value = raw.get(key, default)
    if isinstance(value, str):
        value = _parse_seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadOption(key, f"{key} = {raw.get(key)!r} is not a duration", f'write {key} = "20s"')
    return float(value)


def _parse_seconds(text: str) -> float | None:
    if match := _MILLISECONDS.fullmatch(text.strip()):
        return float(match[1]) / 1000
    try:
        return parse_duration(text)
    except ValueError:
        return None


def read_texts(raw: RawOptions, key: str, example: str = "") -> tuple[str, ...]:
    """Return the non-empty strings under `key`, given as a list or a single string; () if it is absent."""
    if example and key not in raw:
        raise BadOption("", f"{key} is missing", f"write {key} = {example}")
    value = raw.get(key, [])
    items = [value] if isinstance(value, str) else value
    if (
        not isinstance(items, list)
        or not all(isinstance(each, str) and each for each in items)
        or (example and not items)
    ):
        raise BadOption(
            key, f"{key} = {value!r} is not a list of strings", f"write {key} = {example or _TEXT_LIST_EXAMPLE}"
        )
    return tuple(items)


def read_command_line(raw: RawOptions, key: str) -> CommandLine:
    """Return the command under `key` as its words, () if absent; `/bin/sh -c` runs a string."""
    value = raw.get(key, [])
    if isinstance(value, str) and value.strip():
        return ("/bin/sh", "-c", value)
    is_word_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if not is_word_list or (key in raw and not (value and value[0])):
        raise BadOption(key, f"{key} = {value!r} is not a command", f'write {key} = ["program", "argument"]')
    return tuple(value)


def read_path(raw: RawOptions, key: str) -> Path | None:
    """Return the absolute path under `key`; a relative one is refused, since the working directory must not matter."""
    given = read_text(raw, key)
    if given and not given.startswith("/"):
        raise BadOption(key, f"{key} = {given!r} is not an absolute path", f'write {key} = "/…"')
    return Path(given) if given else None


def read_url(raw: RawOptions, key: str, default: str = "") -> str:
    """Return the http or https URL under `key`; the default, which may be "", if the key is absent."""
    given = read_text(raw, key, default)
    if given:
        check_url(key, given)
    return given


def check_url(key: str, given: str) -> None:
    """Raise BadOption, for the option `key`, if `given` is not a valid http or https URL."""
    try:
        parts = urlsplit(given)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or any(character <= " " for character in given):
        raise BadOption(key, f"{key} = {given!r} is not a URL", f'write {key} = "https://host/path"')
    if parts.username or parts.password:
        raise BadOption(key, f"{key} contains a password", "put it into a file and give that file")


def read_whole_numbers(raw: RawOptions, key: str, least: int, most: int) -> tuple[int, ...]:
    """Return the whole numbers under `key`, given as a list or a single number, in the order of the list."""
    value = raw.get(key, [])
    items = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, int) or not least <= each <= most for each in items):
        raise BadOption(key, f"{key} = {value!r} is not a list of numbers", f"write numbers from {least} to {most}")
    return tuple(items)


def read_table(raw: RawOptions, key: str) -> RawOptions:
    """Return the table under `key`, not validated; {} if absent. Raises BadOption if it is not a table."""
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise BadOption(key, f"{key} = {value!r} is not a table", f"write {key} = {{ … }}")
    return value


def read_text_table(raw: RawOptions, key: str) -> dict[str, str]:
    """Return the table of strings under `key`, by name; the strings may be empty. {} if the key is absent."""
    value = read_table(raw, key)
    for name, each in value.items():
        if not isinstance(each, str):
            raise BadOption(key, f"{name} = {each!r} in {key} is not a string", f'write {name} = "…"')
    return dict(value)


def check_known_keys(raw: RawOptions, known: Iterable[str]) -> None:
    """Raise BadOption, for the first unknown key, if the table has keys that are not in `known`."""
    for name in raw:
        if name not in known:
            raise BadOption(name, f"{name} is unknown", f"write one of {', '.join(known)}")


class SecretUnavailable(Unavailable):
    """The file of a secret cannot be read, or its first line is empty; `read_secret` raises it."""


def read_secret(path: Path) -> str:
    """Return the secret in the file: its first line, stripped; read anew at each call."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretUnavailable(f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
    if not lines or not lines[0].strip():
        raise SecretUnavailable(f"{path} is empty: put the secret into its first line")
    return lines[0].strip()
