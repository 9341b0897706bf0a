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
from forewarn.duration import parse_duration
from forewarn.errors import Rejected, Unavailable


class BadOption(Rejected):
    """An option that makes no sense: its key ("": the step as a whole), what is so, what to write instead."""

    def __init__(self, key: str, what: str, remedy: str) -> None:
        self.key, self.what, self.remedy = key, what, remedy
        super().__init__(f"{what}: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionKind:
    name: str
    summary: str
    options: tuple[str, ...]  # the keys that it knows, so that the configuration can say "did you mean"
    read: Callable[[Mapping[str, Any]], Any]  # raises BadOption
    make: Callable[[Any], Reaction]
    has_undo: bool = True
    shared_by_events: bool = True  # done once for all events that need it; False: done for each (telling somebody)


RawOptions = Mapping[str, Any]
CommandLine = tuple[str, ...]  # a command and its arguments

_TEXT_LIST_EXAMPLE = '["…"]'
_MILLISECONDS = re.compile(r"(\d+(?:\.\d+)?)ms", re.ASCII)


def read_text(raw: RawOptions, key: str, default: str = "") -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or (key in raw and not value):
        raise BadOption(key, f"{key} = {value!r} is no text", f'write {key} = "…", or leave it out')
    return value


def read_required_text(raw: RawOptions, key: str, example: str) -> str:
    if key not in raw:
        raise BadOption("", f"{key} is missing", f"write {key} = {example}")
    return read_text(raw, key)


def read_choice(raw: RawOptions, key: str, choices: tuple[str, ...]) -> str:
    """The first of the choices is the default."""
    value = raw.get(key, choices[0])
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in choices)
        raise BadOption(key, f"{key} = {value!r} is none of the choices", f"write one of {known}")
    return str(value)


def read_flag(raw: RawOptions, key: str, *, default: bool) -> bool:
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise BadOption(key, f"{key} = {value!r} is neither true nor false", f"write {key} = true")
    return value


def read_seconds(raw: RawOptions, key: str, default: float) -> float:
    """A number of seconds, or a text such as "20s", "1h30m" or "500ms"."""
    value = raw.get(key, default)
    if isinstance(value, str):
        value = _parse_seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadOption(key, f"{key} = {raw.get(key)!r} is no duration", f'write {key} = "20s"')
    return float(value)


def _parse_seconds(text: str) -> float | None:
    if match := _MILLISECONDS.fullmatch(text.strip()):
        return float(match[1]) / 1000
    try:
        return parse_duration(text)
    except ValueError:
        return None


def read_texts(raw: RawOptions, key: str, example: str = "") -> tuple[str, ...]:
    """A list of texts, or one; with an example it must be there."""
    if example and key not in raw:
        raise BadOption("", f"{key} is missing", f"write {key} = {example}")
    value = raw.get(key, [])
    many = [value] if isinstance(value, str) else value
    if not isinstance(many, list) or not all(isinstance(each, str) and each for each in many) or (example and not many):
        raise BadOption(key, f"{key} = {value!r} is no list of texts", f"write {key} = {example or _TEXT_LIST_EXAMPLE}")
    return tuple(many)


def read_command_line(raw: RawOptions, key: str) -> CommandLine:
    """A command: a list of words, or a text for the shell; () if it is not given."""
    value = raw.get(key, [])
    if isinstance(value, str) and value.strip():
        return ("/bin/sh", "-c", value)
    is_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if not is_words or (key in raw and not (value and value[0])):
        raise BadOption(key, f"{key} = {value!r} is no command", f'write {key} = ["program", "argument"]')
    return tuple(value)


def read_path(raw: RawOptions, key: str) -> Path | None:
    """An absolute path: where the agent was started must not matter."""
    given = read_text(raw, key)
    if given and not given.startswith("/"):
        raise BadOption(key, f"{key} = {given!r} is not an absolute path", f'write {key} = "/…"')
    return Path(given) if given else None


def read_url(raw: RawOptions, key: str, default: str = "") -> str:
    given = read_text(raw, key, default)
    if given:
        check_url(key, given)
    return given


def check_url(key: str, given: str) -> None:
    try:
        parts = urlsplit(given)
        is_fit = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_fit = False
    if not is_fit or any(character <= " " for character in given):
        raise BadOption(key, f"{key} = {given!r} is no URL", f'write {key} = "https://host/path"')
    if parts.username or parts.password:
        raise BadOption(key, f"{key} has a password in it", "put it into a file and name that")


def read_whole_numbers(raw: RawOptions, key: str, least: int, most: int) -> tuple[int, ...]:
    value = raw.get(key, [])
    many = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, int) or not least <= each <= most for each in many):
        raise BadOption(key, f"{key} = {value!r} is no list of numbers", f"write numbers from {least} to {most}")
    return tuple(many)


def read_table(raw: RawOptions, key: str) -> RawOptions:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise BadOption(key, f"{key} = {value!r} is no table", f"write {key} = {{ … }}")
    return value


def read_text_table(raw: RawOptions, key: str) -> dict[str, str]:
    value = read_table(raw, key)
    for name, each in value.items():
        if not isinstance(each, str):
            raise BadOption(key, f"{name} = {each!r} in {key} is no text", f'write {name} = "…"')
    return dict(value)


def check_known_keys(raw: RawOptions, known: Iterable[str]) -> None:
    """A table within a table has no keys but these."""
    for name in raw:
        if name not in known:
            raise BadOption(name, f"{name} is not known", f"write one of {', '.join(known)}")


class SecretUnavailable(Unavailable):
    """The file cannot be read, or is empty."""


def read_secret(path: Path) -> str:
    """The first line of the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretUnavailable(f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
    if not lines or not lines[0].strip():
        raise SecretUnavailable(f"{path} is empty: put the secret into its first line")
    return lines[0].strip()
