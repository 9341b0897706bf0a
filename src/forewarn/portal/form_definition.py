"""What a form asks for, and what becomes of what was typed: a member of a body, or a part of a path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from forewarn.duration import read_duration
from forewarn.errors import Rejected

Typed = Mapping[str, Sequence[str]]  # what stands in a form, by the names of its fields
_BETWEEN = re.compile(r"[,\n]")  # not blanks: a name may hold some
MORE = "_more"  # ends the name of the line into which people write several


class Kind(StrEnum):
    VMS = "vms"
    VM = "vm"
    HOSTS = "hosts"
    HOST = "host"
    THINGS = "things"  # by their ids
    SCOPE = "scope"
    THING = "thing"  # an event, a rollout, a fault: by its id
    DURATION = "duration"
    INSTANT = "instant"  # UTC
    NUMBER = "number"
    CHECK = "check"
    CHOICE = "choice"
    TEXT = "text"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    label: str
    hint: str = ""
    member: str = ""  # of the body; with a dot, of an object in it
    in_path: str = ""  # the part of the route's path that it is
    default: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # what is sent, and how people read it
    needed: bool = False
    only_for: str = ""  # the kind of fault that has it

    def read(self, typed: Typed) -> Any:
        """The value; None where nothing was typed."""
        return _READERS[self.kind](self, self.texts(typed))

    def texts(self, typed: Typed) -> list[str]:
        """What was chosen or typed for it, one by one."""
        several = [word for line in typed.get(f"{self.name}{MORE}", ()) for word in _BETWEEN.split(line)]
        return [text.strip() for text in (*typed.get(self.name, ()), *several) if text.strip()]


def _several(field: Field, texts: Sequence[str]) -> list[str] | None:
    """Names, each once."""
    return list(dict.fromkeys(texts)) or None


def _text(field: Field, texts: Sequence[str]) -> str | None:
    return texts[-1] if texts else None


def _duration(field: Field, texts: Sequence[str]) -> float | None:
    if not texts:
        return None
    try:
        return read_duration(texts[-1])
    except ValueError as error:
        raise Rejected(str(error)) from None


def _instant(field: Field, texts: Sequence[str]) -> float | None:
    if not texts:
        return None
    try:
        when = datetime.fromisoformat(texts[-1])
    except ValueError:
        raise Rejected(f"{texts[-1]!r} is no time: write it like 2026-01-05T12:30") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _number(field: Field, texts: Sequence[str]) -> float | int | None:
    if not texts:
        return None
    try:
        number = float(texts[-1])
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**53:
        raise Rejected(f"{texts[-1]!r} is no number: write one such as {field.default or 1}")
    return int(number) if number == int(number) else number


def _check(field: Field, texts: Sequence[str]) -> bool | None:
    return True if texts else None


_READERS: dict[Kind, Callable[[Field, Sequence[str]], Any]] = {
    Kind.VMS: _several,
    Kind.VM: _text,
    Kind.HOSTS: _several,
    Kind.THINGS: _several,
    Kind.HOST: _text,
    Kind.SCOPE: _text,
    Kind.THING: _text,
    Kind.DURATION: _duration,
    Kind.INSTANT: _instant,
    Kind.NUMBER: _number,
    Kind.CHECK: _check,
    Kind.CHOICE: _text,
    Kind.TEXT: _text,
}
