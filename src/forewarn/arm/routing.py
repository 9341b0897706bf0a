"""What a route of Azure's API is: a template in Azure's spelling, matched without case, and who may call it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forewarn.console.room import Room
from forewarn.core.access import Right

_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCall:
    method: str
    path: str
    names: Mapping[str, str] = field(default_factory=dict)  # from the path, as they were typed
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)  # sign-in sends secrets, and so below
    base: str = ""  # https://host:port, as the client called us
    resource: str = ""  # the id of what is called: the path in Azure's spelling, without an action at its end
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)  # of a form
    authorization: str = field(default="", repr=False)  # the header, for those that sign in

    @property
    def api_version(self) -> str:
        return self.query.get("api-version", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAnswer:
    status: int = 200
    body: Any = None  # None: an empty one
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Room, ArmCall], Awaitable[ArmAnswer]]
Openly = Callable[[Any, ArmCall], Awaitable[ArmAnswer]]  # given the house: nobody is in the room yet
Over = Callable[[Room, ArmCall, Right], None]  # raises Forbidden


def own(room: Room, call: ArmCall, right: Right) -> None:
    """Over the resource that is called; decided by its id alone, before it is looked for."""
    room.must(right, call.resource)


def listing(room: Room, call: ArmCall, right: Right) -> None:
    """The handler shows what the caller may read, which may be nothing."""


@dataclass(frozen=True)
class ArmRoute:
    method: str
    path: str
    handler: Handler | Openly
    right: Right | None = Right.READ  # None: anybody, without a token; for discovery and sign-in alone
    over: Over = own
    summary: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        pieces = _NAME.split(self.path)
        text = "".join(f"(?P<{p}>[^/]+)" if n % 2 else re.escape(p) for n, p in enumerate(pieces))
        return re.compile(text, re.IGNORECASE)

    def names_in(self, path: str) -> dict[str, str] | None:
        match = self.pattern.fullmatch(path)
        return match.groupdict() if match else None

    def resource(self, names: Mapping[str, str]) -> str:
        """The template up to its last name, filled in: Azure's spelling, whatever the caller's was."""
        end = max((m.end() for m in _NAME.finditer(self.path)), default=len(self.path))
        return _NAME.sub(lambda m: names[m[1]], self.path[:end])
