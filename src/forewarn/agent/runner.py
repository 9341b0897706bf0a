"""Runs the decided actions as tasks: steps, approval checks and approvals.

The end of each task is in the journal before anything else learns of it. An approval check is a command (exit
status 0 is yes, 1 is no) or a webhook (2xx with {"approve": true} or false); any other answer counts as silence and
is asked again. Each step of each event has its own folder, which belongs to the agent alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forewarn.agent.actions import (
    APPROVAL_CHECK_TASK,
    APPROVAL_TASK,
    AgentAction,
    ResumeStep,
    RunApprovalCheck,
    SendApproval,
    StartStep,
    StopStep,
    TaskKey,
)
from forewarn.agent.decision import resolve_interrupted_step
from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import (
    ApprovalCheckConfig,
    Reaction,
    RuleConfig,
    StepConfig,
    StepContext,
    StepOutcome,
    StepPhase,
)
from forewarn.agent.reactions import REACTIONS
from forewarn.agent.reactions.child_process import exit_status_of
from forewarn.agent.reactions.event_text import event_facts
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, send_call
from forewarn.agent.records import ApprovalCheckRecord, ApprovalRecord, ApprovalState, EventRecord, StepState
from forewarn.agent.reporting import AgentObserver
from forewarn.client import AsyncClient
from forewarn.clock import Clock
from forewarn.errors import ForewarnError, Rejected


@dataclass(slots=True, kw_only=True)
class AgentContext:
    vm: str  # "" until the endpoint has told it
    boot_id: str
    clock: Clock
    step_folders: Path
    steps: Mapping[str, StepConfig]
    rules: tuple[RuleConfig, ...]


LOG = logging.getLogger("forewarn.agent")
FAILED_TASK_DELAY_S = 5.0
CANCEL_TIMEOUT_S = 2.0  # with a reaction that was told to end


class ActionRunner:
    """Knows what is under way in this process. `changed` is called whenever something has come to its end."""

    def __init__(
        self,
        setting: AgentContext,
        journal: AgentJournal,
        client: AsyncClient,
        observer: AgentObserver,
        changed: Callable[[], None],
    ) -> None:
        self._context, self._journal, self._client = setting, journal, client
        self._observer, self._on_change = observer, changed
        self._tasks: dict[TaskKey, asyncio.Task[None]] = {}
        self._cancelled: set[TaskKey] = set()

    @property
    def running_tasks(self) -> frozenset[TaskKey]:
        return frozenset(self._tasks)

    def start(self, move: AgentAction) -> None:
        match move:
            case StartStep(key=key, step=step, phase=phase):
                self._spawn((key, step.name), self._run_step(key, step, phase))
            case ResumeStep(key=key, step=step, phase=phase, check_first=asks):
                self._spawn((key, step.name), self._resume_step(key, step, phase, asks=asks))
            case StopStep(key=key, step=name):
                self._cancel_task((key, name))
            case RunApprovalCheck(key=key):
                self._spawn((key, APPROVAL_CHECK_TASK), self._run_approval_check(move))
            case SendApproval(key=key):
                self._spawn((key, APPROVAL_TASK), self._send_approval(key))

    async def shut_down(self, grace_s: float) -> None:
        """Wait a little for what is under way, then leave it: it stands as begun, and is found so."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _spawn(self, busy: TaskKey, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=" ".join(busy))
        self._tasks[busy] = task
        task.add_done_callback(lambda done: self._on_task_end(busy, done))

    def _on_task_end(self, busy: TaskKey, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            self._remove_task(busy)
            return
        # Its end could not be journalled, so it stands as begun. It counts as under way for a while, lest it be resumed
        # again and again.
        LOG.error("%s: %s", task.get_name(), error, exc_info=error)
        task.get_loop().call_later(FAILED_TASK_DELAY_S, self._remove_task, busy)

    def _remove_task(self, busy: TaskKey) -> None:
        self._tasks.pop(busy, None)
        self._cancelled.discard(busy)
        self._on_change()

    def _cancel_task(self, busy: TaskKey) -> None:
        if busy not in self._cancelled and busy in self._tasks:
            self._cancelled.add(busy)
            self._tasks[busy].cancel()

    async def _resume_step(self, key: str, step: StepConfig, phase: StepPhase, *, asks: bool) -> None:
        end = None
        if asks:
            outcome = await self._run_within_budget(lambda: self._check_step(key, step, phase), step, phase)
            is_done = {"yes": True, "no": False}.get(outcome.text)
            end = resolve_interrupted_step(step, phase, is_done)
            LOG.warning("%s of %s was found begun; was it done: %s", phase, step.name, outcome.text or "unknown")
        if end is None:
            await self._run_step(key, step, phase)
            return
        text = "found begun without outcome, and its check says so" if is_done is not None else "outcome unknown"
        self._save_step_end(key, step, phase, StepOutcome(ok=end is StepState.DONE, text=text), is_final=True)

    async def _run_step(self, key: str, step: StepConfig, phase: StepPhase) -> None:
        began = time.monotonic()
        LOG.info("%s %s for %s", phase, step.name, key)
        try:
            outcome = await self._run_within_budget(lambda: self._run_reaction(key, step, phase), step, phase)
        except asyncio.CancelledError:
            if (key, step.name) not in self._cancelled:
                raise
            outcome = StepOutcome(ok=False, text="stopped: the event is gone")
        self._save_step_end(key, step, phase, outcome)
        self._observer.step_ended(step, phase, outcome, time.monotonic() - began)

    async def _check_step(self, key: str, step: StepConfig, phase: StepPhase) -> StepOutcome:
        is_done = await _make_reaction(step).check(self._step_context(key, step, phase))
        return StepOutcome(ok=True, text={True: "yes", False: "no", None: ""}[is_done])

    async def _run_reaction(self, key: str, step: StepConfig, phase: StepPhase) -> StepOutcome:
        case, reaction = self._step_context(key, step, phase), _make_reaction(step)
        return await (reaction.do(case) if phase is StepPhase.DO else reaction.undo(case))

    async def _run_within_budget(
        self, work: Callable[[], Awaitable[StepOutcome]], step: StepConfig, phase: StepPhase
    ) -> StepOutcome:
        """The outcome of a reaction, which gets its budget: of the server's time, and of ours."""
        budget_s = _budget_s(step, phase)
        task = asyncio.ensure_future(_catch_errors(work))
        over = asyncio.create_task(self._context.clock.sleep_until(self._context.clock.now() + budget_s))
        try:
            await asyncio.wait({task, over}, timeout=budget_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            for each in (task, over):
                each.cancel()
            await asyncio.wait({task, over}, timeout=CANCEL_TIMEOUT_S)
        if not task.done():
            LOG.error("%s does not end although it was told to", step.name)
        return StepOutcome(ok=False, text=f"ran over its {budget_s:g} s")

    def _save_step_end(
        self, key: str, step: StepConfig, phase: StepPhase, outcome: StepOutcome, *, is_final: bool = False
    ) -> None:
        record = self._open_record(key)
        begun = record.step_run(step.name, phase)
        assert begun is not None
        deed = replace(
            begun,
            state=StepState.DONE if outcome.ok else StepState.FAILED,
            ended_at=self._context.clock.now(),
            text=outcome.text,
            notes={**begun.notes, **outcome.notes},
            tries=max(begun.tries, step.undo_tries) if is_final else begun.tries,
        )
        self._journal.save(record.with_step_run(deed))
        level = logging.INFO if outcome.ok else logging.ERROR
        LOG.log(level, "%s %s %s for %s: %s", phase, step.name, deed.state, key, outcome.text)

    async def _run_approval_check(self, move: RunApprovalCheck) -> None:
        step = StepConfig(name="_gate", use="", budget_s=move.check.timeout_s)  # no step is called so
        answer, text = await run_approval_check(move.check, self._step_context(move.key, step, StepPhase.DO))
        record = self._open_record(move.key)
        if record.approval_check is not None:
            LOG.info("the gate says %s to %s (%s)", answer or "nothing", move.key, text)
            consent = ApprovalCheckRecord(
                first_at=record.approval_check.first_at, asked_at=self._context.clock.now(), answer=answer, text=text
            )
            self._journal.save(replace(record, approval_check=consent))

    async def _send_approval(self, key: str) -> None:
        event = self._open_record(key).event
        try:
            await self._client.approve(event.id)
        except Rejected as error:
            self._save_approval(key, ApprovalState.REFUSED, str(error))
            return
        except ForewarnError as error:
            LOG.warning("%s cannot be approved now: %s", key, error)
            return
        self._save_approval(key, ApprovalState.SENT, "")
        self._observer.event_approved(event)

    def _save_approval(self, key: str, state: ApprovalState, text: str) -> None:
        now = self._context.clock.now()
        self._journal.save(replace(self._open_record(key), approval=ApprovalRecord(state=state, at=now, text=text)))
        LOG.log(
            logging.INFO if state is ApprovalState.SENT else logging.ERROR, "approval of %s: %s %s", key, state, text
        )

    def _open_record(self, key: str) -> EventRecord:
        record = self._journal.open_records.get(key)
        assert record is not None, "what is under way keeps an event open"
        return record

    def _step_context(self, key: str, step: StepConfig, phase: StepPhase) -> StepContext:
        record, ends_at = self._open_record(key), time.monotonic() + _budget_s(step, phase)
        done = record.step_run(step.name)
        return StepContext(
            event=record.event,
            key=key,
            vm=self._context.vm,
            step=step,
            phase=phase,
            folder=make_step_folder(self._context.step_folders, record.holder_of(step.name), step.name),
            notes=done.notes if done is not None else {},
            left_s=lambda: ends_at - time.monotonic(),
        )


def _budget_s(step: StepConfig, phase: StepPhase) -> float:
    return step.budget_s if phase is StepPhase.DO else step.undo_budget_s


def _make_reaction(step: StepConfig) -> Reaction:
    return REACTIONS[step.use].make(step.options)


async def _catch_errors(work: Callable[[], Awaitable[StepOutcome]]) -> StepOutcome:
    try:
        return await work()
    except Exception as error:  # a reaction that breaks must not break the agent
        LOG.exception("a reaction broke")
        return StepOutcome(ok=False, text=f"{type(error).__name__}: {error}")


ANSWER_BY_EXIT_STATUS = {0: "yes", 1: "no"}


async def run_approval_check(gate: ApprovalCheckConfig, case: StepContext) -> tuple[str, str]:
    """The answer ("": silence) and what to say of it."""
    return await (_check_by_command(gate, case) if gate.command else _check_by_webhook(gate, case))


async def _check_by_command(gate: ApprovalCheckConfig, case: StepContext) -> tuple[str, str]:
    try:
        status = await exit_status_of(gate.command, case, log="gate")
    except TimeoutError:
        return "", f"{gate.command[0]!r} gave no answer within {gate.timeout_s:g} s"
    except OSError as error:
        return "", f"{gate.command[0]!r} cannot be run: {error.strerror}"
    return ANSWER_BY_EXIT_STATUS.get(status, ""), f"exit status {status}"


async def _check_by_webhook(gate: ApprovalCheckConfig, case: StepContext) -> tuple[str, str]:
    body = json.dumps(event_facts(case)).encode()
    call = HttpCall(url=gate.url, method="POST", headers={"Content-Type": "application/json"}, body=body)
    try:
        reply = await send_call(call, within_s=gate.timeout_s)
    except HttpCallFailed as error:
        return "", str(error)
    said = reply.json.get("approve") if reply.ok else None
    return {True: "yes", False: "no"}.get(said, "") if isinstance(said, bool) else "", f"answer {reply.summary}"


_MAX_FOLDER_NAME = 120


def make_step_folder(root: Path, key: str, step: str) -> Path:
    """Made if need be."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / _event_folder_name(key) / step
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def remove_stale_step_folders(root: Path, keys: Iterable[str]) -> None:
    """Remove the folders of events that the journal has forgotten."""
    kept = {_event_folder_name(key) for key in keys}
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _event_folder_name(key: str) -> str:
    """A server may send any text for an id."""
    name = quote(key, safe="#").replace(".", "%2E")
    return name if len(name) <= _MAX_FOLDER_NAME else sha256(key.encode("utf-8", "replace")).hexdigest()
