"""Decides which handler functions and approvals to run next. No I/O: jobs out, results in.

Functions of one event run one at a time, in the order of its changes, but none waits for another's retry. Those of
different events run in parallel, because the 30 seconds of a Preempt do not wait for a long drain.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forewarn.client.events import Change, Event, Gone, Scheduled, event_key, lists
from forewarn.client.watch import mark_all_handled
from forewarn.errors import Rejected
from forewarn.protocol.document import Kind

LOG = logging.getLogger("forewarn.client")
BUSY_POLL_S = 1.0  # how long a poll may take while functions run: their results need a prompt reaction


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRule:
    """A function that a `Handler` calls, and the changes of events that it wants."""

    accepts: Callable[[Change], bool]  # whether a change is of the wanted sort; does not check the kind
    function: Callable[[Any], Any]  # called with the change; it may be async
    kinds: frozenset[str] = frozenset()  # casefolded kinds of events that it wants; empty: all kinds
    approve: bool = False  # approve the event after the function has returned for its Scheduled

    def matches(self, change: Change) -> bool:
        """Return whether the function wants this change: `accepts` does, and the event is of one of the kinds."""
        return self.accepts(change) and (not self.kinds or change.event.kind.casefold() in self.kinds)


@dataclass(slots=True, kw_only=True, eq=False)
class HandlerTask:
    """One call of one function for one change, with its retries and approval."""

    change: Change  # the argument of the function
    rule: HandlerRule  # has the function
    failures: int = 0  # in a row, of the function or of its approval
    due_at: float = -math.inf  # when the next try is due, by the scheduler's clock
    is_running: bool = False  # the function or its approval is being tried
    has_returned: bool = False  # only the approval is left
    is_final_try: bool = False  # the event has gone since the change: no more tries


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnVmName:
    """Job: ask the endpoint for this VM's name, which is the job's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHandlerFunction:
    """Job: call the function of the task's rule with the task's change; its result is ignored."""

    task: HandlerTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveEvent:
    """Job: approve the event of the task's change at the endpoint; the task's function has returned."""

    task: HandlerTask

    @property
    def event(self) -> Event:
        """The event to approve, as the task's change has it."""
        return self.task.change.event


HandlerJob = LearnVmName | CallHandlerFunction | ApproveEvent


@dataclass(slots=True, kw_only=True)
class HandlerScheduler:
    """Queues the changes of events, and decides which functions and approvals of a `Handler` are due.

    Call `add_change` for each change and `release_unwanted` after each poll, run the jobs of `due_jobs`, and report
    each with `job_succeeded` or `job_failed`, all in one thread. It calls `done()` of a change when all its functions
    are over, which may write the cursor file in the calling thread.
    """

    rules: Sequence[HandlerRule]  # one for each registered function
    retry_s: Sequence[float]  # delays in seconds before retries; the last one repeats
    clock: Callable[[], float]  # real time in seconds, from any origin
    vm_name: str | None = None  # None: not known yet
    neighbours: bool = False  # True: also events that do not list this VM, so its name is not needed
    is_stopping: bool = False  # no new calls; approvals after returned functions are still sent
    _inbox: list[Change] = field(default_factory=list)
    _unwanted: list[Change] = field(default_factory=list)  # no function wants them; not marked as handled yet
    _queues: dict[str, list[HandlerTask]] = field(default_factory=dict)  # by event
    _is_learning_name: bool = False
    _learn_name_at: float = -math.inf
    _learn_name_failures: int = 0

    def add_change(self, change: Change) -> None:
        """Queue a call of each function that wants the change; keep it for `release_unwanted` if none does.

        A Gone ends the retries of earlier changes of its event, and drops their functions that are not running.
        """
        self._inbox.append(change)
        self._assign_inbox()

    def release_unwanted(self) -> None:
        """Mark all changes that no function wants as handled, with one write of the cursor file."""
        unwanted, self._unwanted = self._unwanted, []
        mark_all_handled(unwanted)

    def idle_time_s(self) -> float:
        """Return the seconds until the next job is due, 0 if one is due now; infinity if none waits."""
        if self._is_learning_name or any(task.is_running for task in self._all_tasks()):
            return BUSY_POLL_S
        due_at = min((task.due_at for task in self._all_tasks()), default=math.inf)
        return max(0.0, min(due_at, self._learn_name_at if self._inbox else math.inf) - self.clock())

    def due_jobs(self) -> Iterator[HandlerJob]:
        """Yield the jobs that are due now, and mark each as running when it is yielded."""
        now = self.clock()
        if self._inbox and not self._is_learning_name and not self.is_stopping and self._learn_name_at <= now:
            self._is_learning_name = True
            yield LearnVmName()
        for queue in list(self._queues.values()):
            ready = (task for task in queue if task.due_at <= now and (task.has_returned or not self.is_stopping))
            due = next(ready, None)
            if due is not None and not any(task.is_running for task in queue):
                due.is_running = True
                yield ApproveEvent(task=due) if due.has_returned else CallHandlerFunction(task=due)

    def job_succeeded(self, job: HandlerJob, result: Any) -> None:
        """Take the result of a job: the VM's name for LearnVmName; other results are ignored."""
        if isinstance(job, LearnVmName):
            self._is_learning_name, self.vm_name = False, result
            self._assign_inbox()
            self.release_unwanted()
            return
        task = job.task
        task.is_running, task.failures = False, 0
        if (
            isinstance(job, CallHandlerFunction)
            and task.rule.approve
            and isinstance(task.change, Scheduled)
            and not task.is_final_try
            and task.change.event.kind.casefold() != Kind.SPOT_REBALANCE.casefold()  # it has no impact (spec §14.4)
        ):
            task.has_returned = True
        else:
            self._finish_task(task)

    def job_failed(self, job: HandlerJob, error: Exception) -> None:
        """Take the error of a job, log it, and make the job due again after the next delay in `retry_s`.

        There is no retry if a Gone of the event came after the task's change, or if an approval was Rejected. A
        Rejected LearnVmName is raised: the endpoint refuses to give this VM's name.
        """
        if isinstance(job, LearnVmName):
            self._is_learning_name = False
            if isinstance(error, Rejected):
                raise error
            self._learn_name_failures += 1
            self._learn_name_at = self._retry_at(self._learn_name_failures)
            LOG.warning("%s", error)
            return
        job.task.is_running = False
        self._log_failure(job, error)
        is_refused = isinstance(job, ApproveEvent) and isinstance(error, Rejected)
        if job.task.is_final_try or is_refused:
            self._finish_task(job.task)
            return
        job.task.failures += 1
        job.task.due_at = self._retry_at(job.task.failures)

    def _retry_at(self, failures: int) -> float:
        return self.clock() + self.retry_s[min(failures, len(self.retry_s)) - 1]

    def _assign_inbox(self) -> None:
        """Assigns queued changes to functions, once this VM's name is known."""
        if self.vm_name is None and not self.neighbours:
            return
        inbox, self._inbox = self._inbox, []
        for change in inbox:
            self._assign_change(change)

    def _assign_change(self, change: Change) -> None:
        is_ours = self.neighbours or lists(change.event, self.vm_name or "")
        rules = [rule for rule in self.rules if is_ours and rule.matches(change)]
        key = event_key(change.event)
        if isinstance(change, Gone):
            self._cancel_tasks(self._queues.get(key, []))
        if rules:
            self._queues.setdefault(key, []).extend(HandlerTask(change=change, rule=rule) for rule in rules)
        else:
            self._unwanted.append(change)

    def _cancel_tasks(self, queue: list[HandlerTask]) -> None:
        """Ends the retries of an event that is gone."""
        for task in list(queue):
            task.is_final_try = True
            if not task.is_running:
                self._finish_task(task)

    def _finish_task(self, task: HandlerTask) -> None:
        key = event_key(task.change.event)
        self._queues[key].remove(task)
        if not any(other.change is task.change for other in self._queues[key]):
            task.change.done()
        if not self._queues[key]:
            del self._queues[key]

    def _all_tasks(self) -> Iterator[HandlerTask]:
        return (task for queue in self._queues.values() for task in queue)

    def _log_failure(self, job: CallHandlerFunction | ApproveEvent, error: Exception) -> None:
        event, function = job.task.change.event, getattr(job.task.rule.function, "__name__", "a function")
        prefix = "the approval after " if isinstance(job, ApproveEvent) else ""
        LOG.error("%s%s failed for %s %s: %s", prefix, function, event.kind, event.id, error, exc_info=error)
