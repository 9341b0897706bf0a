"""Who watches the agent at work, for metrics: called on the loop, at once, and never allowed to fail the agent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from forewarn.agent.value import Event, Outcome, Phase, Step

LOG = logging.getLogger("forewarn.agent")


class Observer(Protocol):
    def polled(self, lag_s: float) -> None:
        """The endpoint answered; `lag_s` since the answer before, beyond what was held on our behalf."""

    def failed(self, why: str) -> None:
        """The endpoint gave no usable answer."""

    def noticed(self, event: Event, notice_s: float | None) -> None:
        """An event is new to the journal, with so much time left; None: it has started."""

    def missed(self, event: Event) -> None:
        """An event was first seen started, or with its NotBefore passed."""

    def started(self, event: Event, notice_s: float) -> None:
        """An event that was seen scheduled has started, so long after it was first seen."""

    def step_ended(self, step: Step, phase: Phase, outcome: Outcome, took_s: float) -> None: ...

    def step_cut(self, step: Step, event: Event) -> None: ...

    def approved(self, event: Event) -> None: ...

    def gone(self, event: Event, outcome: str) -> None: ...


class Unobserved:
    """Nobody watches."""

    def polled(self, lag_s: float) -> None: ...
    def failed(self, why: str) -> None: ...
    def noticed(self, event: Event, notice_s: float | None) -> None: ...
    def missed(self, event: Event) -> None: ...
    def started(self, event: Event, notice_s: float) -> None: ...
    def step_ended(self, step: Step, phase: Phase, outcome: Outcome, took_s: float) -> None: ...
    def step_cut(self, step: Step, event: Event) -> None: ...
    def approved(self, event: Event) -> None: ...
    def gone(self, event: Event, outcome: str) -> None: ...


class _Shield:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., None]:
        call: Callable[..., None] = getattr(self._observer, name)

        def shielded(*arguments: Any) -> None:
            try:
                call(*arguments)
            except Exception:
                LOG.exception("an observer failed")

        return shielded


def shielded(observer: Observer) -> Observer:
    """Whatever goes wrong while somebody watches is told, and nothing more."""
    return cast("Observer", _Shield(observer))
