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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    MAX_UNDO_TRIES,
    ApprovalCheckConfig,
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    EventRecord,
    Reaction,
    RuleConfig,
    StepConfig,
    StepContext,
    StepOutcome,
    StepPhase,
    StepState,
    event_folder_name,
)
from forewarn.agent.reactions import REACTIONS
from forewarn.agent.reactions.child_process import exit_status_of
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, send_call
from forewarn.agent.reactions.step_context import event_facts
from forewarn.agent.reporting import AgentObserver
from forewarn.base.clock import Clock
from forewarn.base.duration import exact_duration_text
from forewarn.client import AsyncClient
from forewarn.errors import ForewarnError, Rejected


@dataclass(slots=True, kw_only=True)
class AgentContext:
    """What `AgentDaemon` shares with its `ActionRunner`; the daemon changes it in place."""

    vm: str  # this VM's name, as configured or as the endpoint gave it; "" until then
    boot_id: str  # the id of the current boot
    clock: Clock  # the server's time
    step_folders: Path  # the folder that contains EVENT/STEP
    steps: Mapping[str, StepConfig]  # by name
    rules: tuple[RuleConfig, ...]  # the first that matches an event applies


LOG = logging.getLogger("forewarn.agent")
FAILED_TASK_DELAY_S = 5.0  # how long a task whose end could not be journalled counts as running
CANCEL_TIMEOUT_S = 2.0  # for a cancelled reaction to end


class ActionRunner:
    """Runs actions as asyncio tasks: steps, approval checks and approvals, one task for each.

    A task saves its end in the journal; one whose end could not be journalled counts as running for another
    FAILED_TASK_DELAY_S. `on_change` is called when a task no longer counts as running.
    """

    def __init__(
        self,
        context: AgentContext,
        journal: AgentJournal,
        client: AsyncClient,
        observer: AgentObserver,
        on_change: Callable[[], None],
    ) -> None:
        self._context, self._journal, self._client = context, journal, client
        self._observer, self._on_change = observer, on_change
        self._tasks: dict[TaskKey, asyncio.Task[None]] = {}
        self._cancelled: set[TaskKey] = set()

    @property
    def running_tasks(self) -> frozenset[TaskKey]:
        """The keys of the tasks that count as running now: of steps, undos, approvals and approval checks."""
        return frozenset(self._tasks)

    def start(self, action: AgentAction) -> None:
        """Start the task for an action, which is already journalled, and return at once.

        A StopStep instead cancels its task: a step then ends as failed, while an approval, an approval check and a step
        whose `check` was running stay as journalled. The action's step must not be running already, which is not
        checked.
        """
        match action:
            case StartStep(key=key, step=step, phase=phase):
                self._spawn((key, step.name), self._run_step(key, step, phase))
            case ResumeStep(key=key, step=step, phase=phase, check_first=check_first):
                self._spawn((key, step.name), self._resume_step(key, step, phase, check_first=check_first))
            case StopStep(key=key, step=name):
                self._cancel_task((key, name))
            case RunApprovalCheck(key=key):
                self._spawn((key, APPROVAL_CHECK_TASK), self._run_approval_check(action))
            case SendApproval(key=key):
                self._spawn((key, APPROVAL_TASK), self._send_approval(key))

    async def shut_down(self, grace_s: float) -> None:
        """Wait up to `grace_s` real seconds for running tasks, then cancel the rest and await their end."""
        # The steps of cancelled tasks stay journalled as begun, so that the next agent resumes them.
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace_s)
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _spawn(self, task_key: TaskKey, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=" ".join(task_key))
        self._tasks[task_key] = task
        task.add_done_callback(lambda done: self._on_task_end(task_key, done))

    def _on_task_end(self, task_key: TaskKey, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            self._remove_task(task_key)
            return
        # Its end could not be journalled. Count it as running for a while, so that it is not resumed in a tight loop.
        LOG.error("%s: %s", task.get_name(), error, exc_info=error)
        task.get_loop().call_later(FAILED_TASK_DELAY_S, self._remove_task, task_key)

    def _remove_task(self, task_key: TaskKey) -> None:
        self._tasks.pop(task_key, None)
        self._cancelled.discard(task_key)
        self._on_change()

    def _cancel_task(self, task_key: TaskKey) -> None:
        if task_key not in self._cancelled and task_key in self._tasks:
            self._cancelled.add(task_key)
            self._tasks[task_key].cancel()

    async def _resume_step(self, key: str, step: StepConfig, phase: StepPhase, *, check_first: bool) -> None:
        end = None
        if check_first:
            outcome = await self._run_within_budget(lambda: self._check_step(key, step, phase), step, phase)
            is_done = {"yes": True, "no": False}.get(outcome.text)
            end = resolve_interrupted_step(step, phase, is_done)
            LOG.warning(
                "%s of %s was interrupted; done according to its check: %s", phase, step.name, outcome.text or "unknown"
            )
        if end is None:
            await self._run_step(key, step, phase)
            return
        text = "interrupted; its check decided" if is_done is not None else "interrupted; outcome unknown"
        self._save_step_end(key, step, phase, StepOutcome(ok=end is StepState.DONE, text=text), may_retry=False)

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
        context, reaction = self._step_context(key, step, phase), _make_reaction(step)
        return await (reaction.do(context) if phase is StepPhase.DO else reaction.undo(context))

    async def _run_within_budget(
        self, work: Callable[[], Awaitable[StepOutcome]], step: StepConfig, phase: StepPhase
    ) -> StepOutcome:
        """Runs a reaction within its budget, by the server's clock and by this machine's."""
        budget_s = _budget_s(step, phase)
        task = asyncio.ensure_future(_catch_errors(work))
        timer = asyncio.create_task(self._context.clock.sleep_until(self._context.clock.now() + budget_s))
        try:
            await asyncio.wait({task, timer}, timeout=budget_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            for each in (task, timer):
                each.cancel()
            await asyncio.wait({task, timer}, timeout=CANCEL_TIMEOUT_S)
        if not task.done():
            LOG.error("%s was cancelled and does not end", step.name)
        return StepOutcome(ok=False, text=f"exceeded its budget of {exact_duration_text(budget_s)}")

    def _save_step_end(
        self, key: str, step: StepConfig, phase: StepPhase, outcome: StepOutcome, *, may_retry: bool = True
    ) -> None:
        record = self._open_record(key)
        run_before = record.step_run(step.name, phase)
        assert run_before is not None
        run = replace(
            run_before,
            state=StepState.DONE if outcome.ok else StepState.FAILED,
            ended_at=self._context.clock.now(),
            text=outcome.text,
            notes={**run_before.notes, **outcome.notes},
            tries=run_before.tries if may_retry or outcome.ok or phase is StepPhase.DO else MAX_UNDO_TRIES,
        )
        self._journal.save(record.with_step_run(run))
        level = logging.INFO if outcome.ok else logging.ERROR
        LOG.log(level, "%s %s %s for %s: %s", phase, step.name, run.state, key, outcome.text)

    async def _run_approval_check(self, action: RunApprovalCheck) -> None:
        step = StepConfig(
            name="_gate", use="", budget_s=action.check.timeout_s
        )  # not valid as the name of a configured step
        try:
            context = self._step_context(action.key, step, StepPhase.DO)
        except OSError as error:
            answer, text = "", f"{error.filename} cannot be created: {error.strerror}"
        else:
            answer, text = await run_approval_check(action.check, context)
        record = self._open_record(action.key)
        if record.approval_check is not None:
            LOG.info("approval check: %s for %s (%s)", answer or "no answer", action.key, text)
            check_record = ApprovalCheckRecord(
                first_at=record.approval_check.first_at, asked_at=self._context.clock.now(), answer=answer, text=text
            )
            self._journal.save(replace(record, approval_check=check_record))

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
        assert record is not None, "a running task keeps its event open"
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
    except Exception as error:  # an error in a reaction must not stop the agent
        LOG.exception("a reaction failed with an unexpected error")
        return StepOutcome(ok=False, text=f"{type(error).__name__}: {error}")


ANSWER_BY_EXIT_STATUS = {0: "yes", 1: "no"}  # of an approval check; any other status is no answer


async def run_approval_check(check: ApprovalCheckConfig, context: StepContext) -> tuple[str, str]:
    """Run the approval check once; return its answer ("yes", "no", "" if none) and a text for people."""
    return await (_check_by_command(check, context) if check.command else _check_by_webhook(check, context))


async def _check_by_command(check: ApprovalCheckConfig, context: StepContext) -> tuple[str, str]:
    try:
        status = await exit_status_of(check.command, context, log="gate")
    except TimeoutError:
        return "", f"{check.command[0]!r} gave no answer within {exact_duration_text(check.timeout_s)}"
    except OSError as error:
        return "", f"{check.command[0]!r} cannot be run: {error.strerror}"
    return ANSWER_BY_EXIT_STATUS.get(status, ""), f"exit status {status}"


async def _check_by_webhook(check: ApprovalCheckConfig, context: StepContext) -> tuple[str, str]:
    body = json.dumps(event_facts(context)).encode()
    call = HttpCall(url=check.url, method="POST", headers={"Content-Type": "application/json"}, body=body)
    try:
        reply = await send_call(call, timeout_s=check.timeout_s)
    except HttpCallFailed as error:
        return "", str(error)
    approve = reply.json.get("approve") if reply.ok else None
    return {True: "yes", False: "no"}.get(approve, "") if isinstance(approve, bool) else "", f"answer {reply.summary}"


def make_step_folder(root: Path, key: str, step: str) -> Path:
    """Create the folder EVENT/STEP below `root` if needed, accessible to the owner only, and return it."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / event_folder_name(key) / step
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def keys_with_step_folders(records: Iterable[EventRecord]) -> Iterator[str]:
    """Yield the keys of the events whose step folders these records need; a key may come repeatedly."""
    for record in records:
        yield record.key
        yield from (run.holder for run in record.step_runs if run.holder)


def stale_step_folders(root: Path, keys: Iterable[str]) -> Iterator[Path]:
    """Yield the folders directly below `root` that belong to no event of `keys_with_step_folders`."""
    kept = {event_folder_name(key) for key in keys}
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name not in kept:
            yield folder


def set_step_folders_aside(root: Path, now: float) -> Path | None:
    """Rename `root`, the folder of all step folders; return its new path, None if it is missing or empty."""
    if not root.is_dir() or not any(root.iterdir()):
        return None
    place = root.with_name(f"{root.name}.damaged-{file_time_stamp(now)}")
    root.rename(place)
    return place


def file_time_stamp(now: float) -> str:
    """Return the time `now` (POSIX seconds) in UTC, for names of files that are kept: 20260131T235959Z."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")


def remove_stale_step_folders(root: Path, keys: Iterable[str]) -> None:
    """Delete the folders directly below `root` that belong to no event of `keys_with_step_folders`."""
    for folder in stale_step_folders(root, keys):
        shutil.rmtree(folder, ignore_errors=True)
