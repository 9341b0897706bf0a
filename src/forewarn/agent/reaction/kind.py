"""What the configuration must know of a reaction: how its options are read, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forewarn.agent.value import Reaction
from forewarn.errors import Rejected


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
    undoes: bool = True
    holds: bool = True  # done once for all events that need it; False: done for each (telling somebody)
