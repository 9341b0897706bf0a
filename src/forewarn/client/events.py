"""What happened to an event, as a watcher is told: it was scheduled, has started, is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.client.event import Event


class Outcome(StrEnum):
    """Why an event is no longer listed, as far as the wire can tell (spec §4.2, §6.1)."""

    FINISHED = "finished"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"


def _nobody() -> None:
    """Who waits for changes of their own making to be handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    event: Event
    when_done: Callable[[], None] = field(default=_nobody, repr=False, compare=False)

    def done(self) -> None:
        """It is handled, and is not told again; asking for the next change says the same."""
        self.when_done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(_Told):
    left_s: float | None = None  # until its not-before, by the service's time when it was told; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Told):
    first: bool = False  # nothing was told of the event before: it had no notice, or nobody watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(_Told):
    outcome: Outcome = Outcome.UNKNOWN


Change = Scheduled | Started | Gone
