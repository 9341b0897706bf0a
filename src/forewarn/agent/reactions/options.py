"""Options as the configuration gives them, read one by one; whatever makes no sense is said in a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forewarn.agent.reaction.kind import BadOption
from forewarn.duration import read_duration

Raw = Mapping[str, Any]
Line = tuple[str, ...]  # a command and its arguments

_TEXTS = '["…"]'
_MS = re.compile(r"(\d+(?:\.\d+)?)ms", re.ASCII)


def text(raw: Raw, key: str, default: str = "") -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or (key in raw and not value):
        raise BadOption(key, f"{key} = {value!r} is no text", f'write {key} = "…", or leave it out')
    return value


def needed(raw: Raw, key: str, example: str) -> str:
    if key not in raw:
        raise BadOption("", f"{key} is missing", f"write {key} = {example}")
    return text(raw, key)


def one_of(raw: Raw, key: str, choices: tuple[str, ...]) -> str:
    """The first of the choices is the default."""
    value = raw.get(key, choices[0])
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in choices)
        raise BadOption(key, f"{key} = {value!r} is none of the choices", f"write one of {known}")
    return str(value)


def flag(raw: Raw, key: str, *, default: bool) -> bool:
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise BadOption(key, f"{key} = {value!r} is neither true nor false", f"write {key} = true")
    return value


def seconds(raw: Raw, key: str, default: float) -> float:
    """A number of seconds, or a text such as "20s", "1h30m" or "500ms"."""
    value = raw.get(key, default)
    if isinstance(value, str):
        value = _read_seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadOption(key, f"{key} = {raw.get(key)!r} is no duration", f'write {key} = "20s"')
    return float(value)


def _read_seconds(text: str) -> float | None:
    if match := _MS.fullmatch(text.strip()):
        return float(match[1]) / 1000
    try:
        return read_duration(text)
    except ValueError:
        return None


def texts(raw: Raw, key: str, example: str = "") -> tuple[str, ...]:
    """A list of texts, or one; with an example it must be there."""
    if example and key not in raw:
        raise BadOption("", f"{key} is missing", f"write {key} = {example}")
    value = raw.get(key, [])
    many = [value] if isinstance(value, str) else value
    if not isinstance(many, list) or not all(isinstance(each, str) and each for each in many) or (example and not many):
        raise BadOption(key, f"{key} = {value!r} is no list of texts", f"write {key} = {example or _TEXTS}")
    return tuple(many)


def line(raw: Raw, key: str) -> Line:
    """A command: a list of words, or a text for the shell; () if it is not given."""
    value = raw.get(key, [])
    if isinstance(value, str) and value.strip():
        return ("/bin/sh", "-c", value)
    is_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if not is_words or (key in raw and not (value and value[0])):
        raise BadOption(key, f"{key} = {value!r} is no command", f'write {key} = ["program", "argument"]')
    return tuple(value)


def path(raw: Raw, key: str) -> Path | None:
    """An absolute path: where the agent was started must not matter."""
    given = text(raw, key)
    if given and not given.startswith("/"):
        raise BadOption(key, f"{key} = {given!r} is not an absolute path", f'write {key} = "/…"')
    return Path(given) if given else None


def url(raw: Raw, key: str, default: str = "") -> str:
    given = text(raw, key, default)
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


def whole_numbers(raw: Raw, key: str, least: int, most: int) -> tuple[int, ...]:
    value = raw.get(key, [])
    many = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, int) or not least <= each <= most for each in many):
        raise BadOption(key, f"{key} = {value!r} is no list of numbers", f"write numbers from {least} to {most}")
    return tuple(many)


def table(raw: Raw, key: str) -> Raw:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise BadOption(key, f"{key} = {value!r} is no table", f"write {key} = {{ … }}")
    return value


def text_table(raw: Raw, key: str) -> dict[str, str]:
    value = table(raw, key)
    for name, each in value.items():
        if not isinstance(each, str):
            raise BadOption(key, f"{name} = {each!r} in {key} is no text", f'write {name} = "…"')
    return dict(value)


def only(raw: Raw, known: Iterable[str]) -> None:
    """A table within a table has no keys but these."""
    for name in raw:
        if name not in known:
            raise BadOption(name, f"{name} is not known", f"write one of {', '.join(known)}")
