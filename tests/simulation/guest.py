"""A VM with an agent: the real agent daemon and journal, with reactions that change a simulated machine.

The machine, the journal and the cursor survive the death of the agent; a reboot of the VM ends the agent and undoes the
steps that do not survive it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from forewarn.agent.config import AgentConfig
from forewarn.agent.daemon import AgentDaemon, ServerClock
from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import (
    ApprovalPolicy,
    ApproveWhen,
    EventRecord,
    RuleConfig,
    StepConfig,
    StepContext,
    StepOutcome,
)
from forewarn.agent.reactions import REACTIONS, ReactionKind
from forewarn.client import AsyncClient
from forewarn.client.async_client import AsyncConnection
from forewarn.client.effects import CallFunction, Effect, FlowRunner
from forewarn.core.fleet import Vm
from tests.simulation.process import SimulatedProcess, current_process
from tests.simulation.schedule import SimulationSettings

Report = Callable[[str, str], None]  # a rule that was broken, and how
REACTION = "simulated"  # value of `use`
NOTIFY, DRAIN, SAVE = "notify", "drain", "save"
_STEP_DURATIONS_S = (0.0, 0.5, 4.0)


@dataclass
class Machine:
    """The state of a VM that steps change, and what is known about their effects."""

    name: str
    settings: SimulationSettings
    chance: Random
    report: Report
    is_gone: Callable[[str], bool]  # whether an event, by its id, is over or hidden from this VM
    in_effect: dict[str, str] = field(default_factory=dict)  # step → key of the event for which it ran
    has_crashed: bool = False  # then an undo may find no effect
    has_failed: bool = False  # then a step may run again

    def begin(self, context: StepContext) -> None:
        """Put a step into effect; reports one that already is."""
        name = context.step.name
        if name in self.in_effect and not context.step.repeatable and not self.has_failed and self.settings.checks_know:
            self.report(
                "an agent runs a step at most once unless its effect was unclear",
                f"{self.name}: {name} for {context.key}, in effect for {self.in_effect[name]}",
            )
        self.in_effect[name] = context.key

    def end(self, context: StepContext) -> None:
        """Undo a step; reports one whose event is not gone."""
        name = context.step.name
        if not self.is_gone(context.event.id):
            self.report("an agent undoes a step only after its event is gone", f"{self.name}: {name} for {context.key}")
        if name not in self.in_effect and not self.has_crashed and not self.has_failed:
            self.report("an agent undoes a step only once", f"{self.name}: {name} for {context.key}")
        self.in_effect.pop(name, None)

    def must_be_undone(self) -> set[str]:
        """Return the steps in effect that the agent is able to undo."""
        if self.has_crashed and not self.settings.checks_know:
            return set()
        return set(self.in_effect) - {NOTIFY}

    def reboot(self) -> None:
        """End what does not survive a reboot."""
        self.has_crashed = True
        self.in_effect.pop(SAVE, None)


class SimulatedReaction:
    """A reaction that changes the machine; it takes time and may fail."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def do(self, context: StepContext) -> StepOutcome:
        """Put the step into effect."""
        return await self._run(context, self._machine.begin)

    async def undo(self, context: StepContext) -> StepOutcome:
        """End the step's effect."""
        return await self._run(context, self._machine.end)

    async def check(self, context: StepContext) -> bool | None:
        """Whether the step is in effect, if the schedule's settings let checks know."""
        current_process().pass_point()
        return context.step.name in self._machine.in_effect if self._machine.settings.checks_know else None

    async def _run(self, context: StepContext, change: Callable[[StepContext], None]) -> StepOutcome:
        process, machine = current_process(), self._machine
        process.pass_point()
        change(context)
        process.pass_point()
        try:
            await asyncio.sleep(machine.chance.choice(_STEP_DURATIONS_S))
        except asyncio.CancelledError:
            machine.has_failed = True
            raise
        process.pass_point()
        fails = machine.settings.steps_fail and machine.chance.random() < 0.3
        machine.has_failed |= fails
        return StepOutcome(ok=not fails, text="as the schedule says")


@contextmanager
def simulated_reactions() -> Iterator[None]:
    """Let agents use the reaction of this module."""

    def read(raw: Any) -> Any:
        return raw

    REACTIONS[REACTION] = ReactionKind(
        name=REACTION, summary="changes a simulated machine", options=(), read=read, make=SimulatedReaction
    )
    try:
        yield
    finally:
        del REACTIONS[REACTION]


class CrashingJournal(AgentJournal):
    """The journal of one agent process, which may die before and after each write."""

    def __init__(self, path: Path, process: SimulatedProcess) -> None:
        self._process, self._is_closed = process, False
        super().__init__(path)

    def save(self, *records: EventRecord) -> None:
        self._process.pass_point()
        super().save(*records)
        self._process.pass_point()

    def save_value(self, name: str, value: Any) -> None:
        self._process.pass_point()
        super().save_value(name, value)
        self._process.pass_point()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            super().close()


class CrashingClient(AsyncClient):
    """A client whose process may die before and after each write of the cursor."""

    async def _perform_effect(self, runner: FlowRunner[Any], effect: Effect, connection: AsyncConnection) -> None:
        is_write = isinstance(effect, CallFunction)
        if is_write:
            current_process().pass_point()
        await super()._perform_effect(runner, effect, connection)
        if is_write:
            current_process().pass_point()


class SimulatedGuest:
    """The agent of one VM, killed and started again."""

    def __init__(self, vm: Vm, machine: Machine, *, folder: Path, lab_time: Callable[[], float]) -> None:
        self.vm, self.machine = vm, machine
        self.process = SimulatedProcess(f"agent of {machine.name}")
        self.process.is_dead = True
        self.restarts_in_s = 1.0  # after the next death
        self.died = asyncio.Event()
        self._folder, self._lab_time = folder, lab_time
        self._boots = 1
        self._journal: CrashingJournal | None = None

    def start(self) -> None:
        """Start a new agent process; does nothing if one is running."""
        if not self.process.is_dead:
            return
        self._close_journal()
        self.died.clear()
        process = self.process = SimulatedProcess(self.process.name, self._on_death)
        process.spawn(self._run(process))

    def reboot(self) -> None:
        """Reboot the VM: the agent dies and starts again when the VM is up."""
        self._boots += 1
        self.machine.reboot()
        self.restarts_in_s = 1.0
        if self.process.is_dead:
            self.died.set()
        else:
            self.process.die()

    def open_records(self) -> list[EventRecord]:
        """Return the records that the agent has not closed."""
        return list(self._journal.open_records) if self._journal is not None else []

    def close(self) -> None:
        """Kill the agent; call it before the loop ends."""
        self.process.die()
        self._close_journal()

    async def _run(self, process: SimulatedProcess) -> None:
        loop = asyncio.get_running_loop()
        client = CrashingClient(f"http://{self.vm.address}", boot_id=lambda: self._boot_id, clock=loop.time)

        def open_journal(path: Path) -> AgentJournal:
            self._journal = CrashingJournal(path, process)
            return self._journal

        daemon = AgentDaemon(
            self._config(),
            client=client,
            clock=ServerClock(lambda: client.now, local_time=self._lab_time),
            boot_id=self._boot_id,
            open_journal=open_journal,
        )
        await daemon.run()
        self.machine.report("an agent runs until it is stopped", self.machine.name)

    @property
    def _boot_id(self) -> str:
        return f"boot-{self._boots}"

    def _config(self) -> AgentConfig:
        machine = self.machine
        steps = {
            step.name: step
            for step in (
                StepConfig(
                    name=NOTIFY, use=REACTION, budget_s=5, cut=1, repeatable=True, undo="never",
                    shared_by_events=False, options=machine,
                ),
                StepConfig(name=DRAIN, use=REACTION, budget_s=20, cut=2, undo_tries=1000, options=machine),
                StepConfig(
                    name=SAVE, use=REACTION, budget_s=30, undo_tries=1000, survives_reboot=False, options=machine
                ),
            )
        }  # fmt: skip
        approve = ApprovalPolicy(when=ApproveWhen.DONE if machine.settings.agents_approve else ApproveWhen.NEVER)
        rules = (RuleConfig(name="all", steps=tuple(steps.values()), approve=approve),)
        return AgentConfig(state=self._folder, steps=steps, rules=rules, grace_s=0.0, listen="")

    def _on_death(self) -> None:
        self.machine.has_crashed = True
        self.died.set()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
