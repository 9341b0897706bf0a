"""Runs what was decided: steps, questions and approvals, each a task. Every end is journalled before anybody knows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from forewarn.agent.consent import ask
from forewarn.agent.decision import resumed
from forewarn.agent.folder import folder_for
from forewarn.agent.journal import Journal
from forewarn.agent.move import APPROVAL, GATE, Approve, AskGate, Begin, Busy, Move, Resume, Stop
from forewarn.agent.observer import Observer
from forewarn.agent.reaction import REACTIONS
from forewarn.agent.record import Approval, Asked, Consent, Record, State
from forewarn.agent.setting import Setting
from forewarn.agent.value import Case, Outcome, Phase, Reaction, Step
from forewarn.client import AsyncClient
from forewarn.errors import ForewarnError, Rejected

LOG = logging.getLogger("forewarn.agent")
BROKEN_S = 5.0
PATIENCE_S = 2.0  # with a reaction that was told to end


class Runner:
    """Knows what is under way in this process. `changed` is called whenever something has come to its end."""

    def __init__(
        self, setting: Setting, journal: Journal, client: AsyncClient, observer: Observer, changed: Callable[[], None]
    ) -> None:
        self._setting, self._journal, self._client = setting, journal, client
        self._observer, self._changed = observer, changed
        self._tasks: dict[Busy, asyncio.Task[None]] = {}
        self._stopped: set[Busy] = set()

    @property
    def busy(self) -> frozenset[Busy]:
        return frozenset(self._tasks)

    def start(self, move: Move) -> None:
        match move:
            case Begin(key=key, step=step, phase=phase):
                self._spawn((key, step.name), self._run(key, step, phase))
            case Resume(key=key, step=step, phase=phase, ask=asks):
                self._spawn((key, step.name), self._resume(key, step, phase, asks=asks))
            case Stop(key=key, step=name):
                self._stop((key, name))
            case AskGate(key=key):
                self._spawn((key, GATE), self._ask_gate(move))
            case Approve(key=key):
                self._spawn((key, APPROVAL), self._approve(key))

    async def wind_up(self, grace_s: float) -> None:
        """Wait a little for what is under way, then leave it: it stands as begun, and is found so."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _spawn(self, busy: Busy, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=" ".join(busy))
        self._tasks[busy] = task
        task.add_done_callback(lambda done: self._ended(busy, done))

    def _ended(self, busy: Busy, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            self._forget(busy)
            return
        # Its end could not be journalled, so it stands as begun. It counts as under way for a while, lest it be resumed
        # again and again.
        LOG.error("%s: %s", task.get_name(), error, exc_info=error)
        task.get_loop().call_later(BROKEN_S, self._forget, busy)

    def _forget(self, busy: Busy) -> None:
        self._tasks.pop(busy, None)
        self._stopped.discard(busy)
        self._changed()

    def _stop(self, busy: Busy) -> None:
        if busy not in self._stopped and busy in self._tasks:
            self._stopped.add(busy)
            self._tasks[busy].cancel()

    async def _resume(self, key: str, step: Step, phase: Phase, *, asks: bool) -> None:
        end = None
        if asks:
            outcome = await self._within(lambda: self._check(key, step, phase), step, phase)
            is_done = {"yes": True, "no": False}.get(outcome.text)
            end = resumed(step, phase, is_done)
            LOG.warning("%s of %s was found begun; was it done: %s", phase, step.name, outcome.text or "unknown")
        if end is None:
            await self._run(key, step, phase)
            return
        text = "found begun without outcome, and its check says so" if is_done is not None else "outcome unknown"
        self._end(key, step, phase, Outcome(ok=end is State.DONE, text=text), is_final=True)

    async def _run(self, key: str, step: Step, phase: Phase) -> None:
        began = time.monotonic()
        LOG.info("%s %s for %s", phase, step.name, key)
        try:
            outcome = await self._within(lambda: self._react(key, step, phase), step, phase)
        except asyncio.CancelledError:
            if (key, step.name) not in self._stopped:
                raise
            outcome = Outcome(ok=False, text="stopped: the event is gone")
        self._end(key, step, phase, outcome)
        self._observer.step_ended(step, phase, outcome, time.monotonic() - began)

    async def _check(self, key: str, step: Step, phase: Phase) -> Outcome:
        is_done = await _reaction(step).check(self._case(key, step, phase))
        return Outcome(ok=True, text={True: "yes", False: "no", None: ""}[is_done])

    async def _react(self, key: str, step: Step, phase: Phase) -> Outcome:
        case, reaction = self._case(key, step, phase), _reaction(step)
        return await (reaction.do(case) if phase is Phase.DO else reaction.undo(case))

    async def _within(self, work: Callable[[], Awaitable[Outcome]], step: Step, phase: Phase) -> Outcome:
        """The outcome of a reaction, which gets its budget: of the server's time, and of ours."""
        budget_s = _budget_s(step, phase)
        task = asyncio.ensure_future(_caught(work))
        over = asyncio.create_task(self._setting.clock.sleep_until(self._setting.clock.now() + budget_s))
        try:
            await asyncio.wait({task, over}, timeout=budget_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            for each in (task, over):
                each.cancel()
            await asyncio.wait({task, over}, timeout=PATIENCE_S)
        if not task.done():
            LOG.error("%s does not end although it was told to", step.name)
        return Outcome(ok=False, text=f"ran over its {budget_s:g} s")

    def _end(self, key: str, step: Step, phase: Phase, outcome: Outcome, *, is_final: bool = False) -> None:
        record = self._record(key)
        begun = record.deed(step.name, phase)
        assert begun is not None
        deed = replace(
            begun,
            state=State.DONE if outcome.ok else State.FAILED,
            ended_at=self._setting.clock.now(),
            text=outcome.text,
            notes={**begun.notes, **outcome.notes},
            tries=max(begun.tries, step.undo_tries) if is_final else begun.tries,
        )
        self._journal.put(record.with_deed(deed))
        level = logging.INFO if outcome.ok else logging.ERROR
        LOG.log(level, "%s %s %s for %s: %s", phase, step.name, deed.state, key, outcome.text)

    async def _ask_gate(self, move: AskGate) -> None:
        step = Step(name="_gate", use="", budget_s=move.gate.timeout_s)  # no step is called so
        answer, text = await ask(move.gate, self._case(move.key, step, Phase.DO))
        record = self._record(move.key)
        if record.consent is not None:
            LOG.info("the gate says %s to %s (%s)", answer or "nothing", move.key, text)
            consent = Consent(
                first_at=record.consent.first_at, asked_at=self._setting.clock.now(), answer=answer, text=text
            )
            self._journal.put(replace(record, consent=consent))

    async def _approve(self, key: str) -> None:
        event = self._record(key).event
        try:
            await self._client.approve(event.id)
        except Rejected as error:
            self._approved(key, Asked.REFUSED, str(error))
            return
        except ForewarnError as error:
            LOG.warning("%s cannot be approved now: %s", key, error)
            return
        self._approved(key, Asked.SENT, "")
        self._observer.approved(event)

    def _approved(self, key: str, state: Asked, text: str) -> None:
        now = self._setting.clock.now()
        self._journal.put(replace(self._record(key), approval=Approval(state=state, at=now, text=text)))
        LOG.log(logging.INFO if state is Asked.SENT else logging.ERROR, "approval of %s: %s %s", key, state, text)

    def _record(self, key: str) -> Record:
        record = self._journal.book.get(key)
        assert record is not None, "what is under way keeps an event open"
        return record

    def _case(self, key: str, step: Step, phase: Phase) -> Case:
        record, ends_at = self._record(key), time.monotonic() + _budget_s(step, phase)
        done = record.deed(step.name)
        return Case(
            event=record.event,
            key=key,
            vm=self._setting.vm,
            step=step,
            phase=phase,
            folder=folder_for(self._setting.folders, record.holder_of(step.name), step.name),
            notes=done.notes if done is not None else {},
            left_s=lambda: ends_at - time.monotonic(),
        )


def _budget_s(step: Step, phase: Phase) -> float:
    return step.budget_s if phase is Phase.DO else step.undo_budget_s


def _reaction(step: Step) -> Reaction:
    return REACTIONS[step.use].make(step.options)


async def _caught(work: Callable[[], Awaitable[Outcome]]) -> Outcome:
    try:
        return await work()
    except Exception as error:  # a reaction that breaks must not break the agent
        LOG.exception("a reaction broke")
        return Outcome(ok=False, text=f"{type(error).__name__}: {error}")
