"""ARM calls, responses and routes: path templates in Azure's spelling, matched without case."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forewarn.core.access import Right
from forewarn.web.context import RequestContext

_PATH_PARAM = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCall:
    method: str
    path: str
    path_params: Mapping[str, str] = field(default_factory=dict)  # from the path, as they were typed
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)  # sign-in sends secrets, and so below
    base_url: str = ""  # https://host:port, as the client called us
    resource: str = ""  # the id of what is called: the path in Azure's spelling, without an action at its end
    form_fields: Mapping[str, str] = field(default_factory=dict, repr=False)  # of a form
    authorization: str = field(default="", repr=False)  # the header, for those that sign in

    @property
    def api_version(self) -> str:
        return self.query.get("api-version", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResponse:
    status: int = 200
    body: Any = None  # None: an empty one
    headers: Mapping[str, str] = field(default_factory=dict)


ArmHandler = Callable[[RequestContext, ArmCall], Awaitable[ArmResponse]]
AnonymousArmHandler = Callable[[Any, ArmCall], Awaitable[ArmResponse]]  # given the house: nobody is in the room yet
ArmAuthorizer = Callable[[RequestContext, ArmCall, Right], None]  # raises Forbidden


def require_on_resource(context: RequestContext, call: ArmCall, right: Right) -> None:
    """Over the resource that is called; decided by its id alone, before it is looked for."""
    context.require(right, call.resource)


def allow_listing(context: RequestContext, call: ArmCall, right: Right) -> None:
    """The handler shows what the caller may read, which may be nothing."""


@dataclass(frozen=True)
class ArmRoute:
    method: str
    path: str
    handler: ArmHandler | AnonymousArmHandler
    right: Right | None = Right.READ  # None: anybody, without a token; for discovery and sign-in alone
    authorize: ArmAuthorizer = require_on_resource
    summary: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        pieces = _PATH_PARAM.split(self.path)
        text = "".join(f"(?P<{p}>[^/]+)" if n % 2 else re.escape(p) for n, p in enumerate(pieces))
        return re.compile(text, re.IGNORECASE)

    def match_path(self, path: str) -> dict[str, str] | None:
        match = self.pattern.fullmatch(path)
        return match.groupdict() if match else None

    def resource_id(self, names: Mapping[str, str]) -> str:
        """The template up to its last name, filled in: Azure's spelling, whatever the caller's was."""
        end = max((m.end() for m in _PATH_PARAM.finditer(self.path)), default=len(self.path))
        return _PATH_PARAM.sub(lambda m: names[m[1]], self.path[:end])
