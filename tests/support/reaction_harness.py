"""Runs one reaction of the agent for a sample event; each call is a new agent on the same folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forewarn.agent.model import Event, Reaction, StepConfig, StepContext, StepOutcome, StepPhase
from forewarn.agent.reactions import REACTIONS

SAMPLE_EVENT = Event(
    id="602d9444-d2cd-49c7-8624-8643e7171297",
    status="Scheduled",
    kind="Reboot",
    resource_type="VirtualMachine",
    resources=("web-0",),
    not_before=1_474_310_570.0,
    not_before_text="Mon, 19 Sep 2016 18:42:50 GMT",
    description="The host is restarted.",
    source="Platform",
    duration_s=-1,
)


def countdown(seconds: float) -> Callable[[], float]:
    """A function that returns the seconds left until this time is over."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()


def make_step_context(folder: Path, *, within_s: float = 30.0, **facts: Any) -> StepContext:
    """A step context; creates the folder. Facts such as `kind` change the event, others the context."""
    folder.mkdir(parents=True, exist_ok=True)
    of_event = {name: facts.pop(name) for name in set(facts) & {"id", "kind", "status", "resources", "description"}}
    given = {
        "vm": "web-0",
        "step": StepConfig(name="tried", use="command", budget_s=within_s),
        "phase": StepPhase.DO,
        **facts,
    }
    return StepContext(event=replace(SAMPLE_EVENT, **of_event), folder=folder, left_s=countdown(within_s), **given)


class ReactionHarness:
    """Does and undoes a configured reaction for one event; each call is a new agent on the folder."""

    def __init__(self, use: str, options: Mapping[str, Any], folder: Path, **facts: Any) -> None:
        self._kind, self._raw = REACTIONS[use], dict(options)
        self._folder, self._facts = folder, facts
        self._step = StepConfig(name=use, use=use, budget_s=30.0)

    @property
    def reaction(self) -> Reaction:
        return self._kind.make(self._kind.read(self._raw))

    def step_context(self, phase: StepPhase = StepPhase.DO, **facts: Any) -> StepContext:
        return make_step_context(self._folder, **{"step": self._step, "phase": phase, **self._facts, **facts})

    async def do(self, **facts: Any) -> StepOutcome:
        return await self.reaction.do(self.step_context(**facts))

    async def undo(self, **facts: Any) -> StepOutcome:
        return await self.reaction.undo(self.step_context(StepPhase.UNDO, **facts))

    async def check(self, **facts: Any) -> bool | None:
        return await self.reaction.check(self.step_context(**facts))
