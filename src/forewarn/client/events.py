"""Events as a guest receives them, and their changes: scheduled, started, gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.protocol.codec import ReceivedEvent

Event = ReceivedEvent


def lists(event: Event, name: str) -> bool:
    """Whether this VM is among the resources: without case, and with or without the underscore of 2017 (spec §3)."""
    own = name.casefold()
    return any(resource.casefold() in (own, f"_{own}") for resource in event.resources)


def event_key(event: Event) -> str:
    """What an event is told from others by; one that came without an id is known by whom it hits."""
    return event.id.upper() or f"{event.kind} of {', '.join(event.resources)}"


class Outcome(StrEnum):
    """Why an event is no longer listed, as far as the wire can tell (spec §4.2, §6.1)."""

    FINISHED = "finished"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"


def _no_callback() -> None:
    """Who waits for changes of their own making to be handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventChange:
    event: Event
    when_done: Callable[[], None] = field(default=_no_callback, repr=False, compare=False)

    def done(self) -> None:
        """It is handled, and is not told again; asking for the next change says the same."""
        self.when_done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(_EventChange):
    left_s: float | None = None  # until its not-before, by the service's time when it was told; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_EventChange):
    first: bool = False  # nothing was told of the event before: it had no notice, or nobody watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(_EventChange):
    outcome: Outcome = Outcome.UNKNOWN


Change = Scheduled | Started | Gone
