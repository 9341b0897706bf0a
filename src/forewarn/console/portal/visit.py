"""Whoever is signed in to the portal, for one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request

from forewarn.core.access import Principal


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    principal: Principal
    token: str  # that every write must repeat, so that no other site can write in this one's name
    ends_at: float  # in real time
    seq: int = 0  # of the history: what happened up to it is in what is shown, and perhaps what happened since


# Who is looking. Raises Unauthenticated where nobody is signed in, or no longer.
Welcome = Callable[[Request], Awaitable[Visit]]
