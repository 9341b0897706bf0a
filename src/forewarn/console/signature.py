"""What a handler reads and shows, told by its signature: the app decodes by it, and OpenAPI is written from it.

    async def ask(room: Room, call: Call, asked: Asking) -> ReceiptView

`asked` is the body and `query` the query. Without them there must be none.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from forewarn.console.body import Nothing
from forewarn.console.call import Call

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    asked: type[msgspec.Struct] | None
    query: type[msgspec.Struct] | None
    answer: Any
    summary: str

    def read(self, call: Call) -> dict[str, msgspec.Struct]:
        """What the handler is given beside the room and the call."""
        asked, query = call.read_body(self.asked or Nothing), call.read_query(self.query or Nothing)
        given = {"asked": asked} if self.asked else {}
        return {**given, "query": query} if self.query else given


@cache
def signature_of(handler: Handler) -> Signature:
    hints = get_type_hints(handler)
    names = list(inspect.signature(handler).parameters)
    if names[:2] != ["room", "call"] or not set(names[2:]) <= {"asked", "query"}:
        raise TypeError(f"{handler.__qualname__} takes {names}: a handler takes room, call, and asked or query")
    return Signature(
        asked=hints.get("asked"),
        query=hints.get("query"),
        answer=hints["return"],
        summary=(inspect.getdoc(handler) or "").partition("\n")[0],
    )
