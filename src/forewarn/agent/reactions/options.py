"""Describes a reaction to the configuration, and reads its secrets.

Secrets are read from their files at each use, so that a new secret needs no restart; they are never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forewarn.agent.model import Reaction
from forewarn.errors import Unavailable

CommandLine = tuple[str, ...]  # a command and its arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionKind:
    """Tells the configuration about one reaction, which a step names with `use`; REACTIONS has all."""

    name: str  # the value of `use`
    summary: str  # for people, begins with a verb
    options: tuple[str, ...]  # the keys that it accepts, also used for suggestions
    read: Callable[[Mapping[str, Any]], Any]  # validates the raw options, returns those for `make`; raises BadValue
    make: Callable[[Any], Reaction]  # builds a new reaction from what `read` returned
    has_undo: bool = True  # False: its steps are never undone, unless configured
    shared_by_events: bool = True  # one run for all events that need it; False (notifications): one for each


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
