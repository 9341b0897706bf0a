"""The `Hypervisor` interface: perform an act, and either it is done or it is under way.

`forewarn.conformance` holds the tests that every implementation must pass.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from forewarn.core.event import Act
from forewarn.errors import Unavailable


class ActDone(msgspec.Struct, frozen=True):
    """The act is over; asking again gets the same answer."""

    ok: bool
    note: str = ""


class ActUnderWay(msgspec.Struct, frozen=True):
    """The act is under way: perform it again, by the same id, at this lab time or after."""

    at: float


class ActNotTried(Unavailable):
    """Trouble of our own, a full disk say, kept the act from even being tried: it does not count as a try."""


class Hypervisor(Protocol):
    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        """Begin the act, or say how it goes on. However often it is called, an act takes effect at most once.

        Raises Unavailable when nothing is known: perform it again later.
        """

    async def close(self) -> None:
        """Let go of everything. Acts under way are found again by their ids; closing twice is fine."""
