"""Events as a guest receives them, and their changes: scheduled, started, gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.protocol.codec import ReceivedEvent

Event = ReceivedEvent


def lists(event: Event, name: str) -> bool:
    """Return whether the event's `resources` contain the VM with this name.

    Ignores letter case, and a leading underscore in `resources`, which api-version 2017-03-01 adds (spec §3).
    """
    own = name.casefold()
    return any(resource.casefold() in (own, f"_{own}") for resource in event.resources)


def event_key(event: Event) -> str:
    """Return the key by which a watcher identifies an event: its id in upper case.

    If the event has no id, the key is a text made from its kind and resources.
    """
    return event.id.upper() or f"{event.kind} of {', '.join(event.resources)}"


class Outcome(StrEnum):
    """How an event ended, as far as the documents show (spec §4.2, §6.1)."""

    FINISHED = "finished"  # it started; whether its acts succeeded is not shown
    WITHDRAWN = "withdrawn"  # it never started
    UNKNOWN = "unknown"  # one of the two; the documents do not show which


def _no_callback() -> None:
    """Default of `when_done`: does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventChange:
    event: Event
    when_done: Callable[[], None] = field(default=_no_callback, repr=False, compare=False)

    def done(self) -> None:
        """Marks the change as handled, so that it is not delivered again; durable with a cursor file."""
        # Any thread may call it, also repeatedly. If the file cannot be written, that is only logged.
        self.when_done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(_EventChange):
    """Change: `event` is listed, was not in the document before, and has not started.

    A watch with `repeats_moved` also delivers it for an event whose NotBefore has changed. `done()` marks the change as
    handled, so that it is not delivered again; it approves nothing.
    """

    left_s: float | None = None  # service's seconds until NotBefore at delivery, negative after it; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_EventChange):
    """Change: the watcher sees `event` listed as started for the first time.

    `done()` marks the change as handled, so that it is not delivered again.
    """

    first: bool = False  # True: no Scheduled came before; the event had no notice, or nothing was watching


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(_EventChange):
    """Change: an event is no longer listed; `event` is as last seen, `outcome` says how it ended.

    `done()` marks the change as handled, so that it is not delivered again.
    """

    outcome: Outcome = Outcome.UNKNOWN  # finished, withdrawn, or unknown which of the two


Change = Scheduled | Started | Gone
