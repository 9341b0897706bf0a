"""`Handler`: calls decorated functions when an event is announced, starts or is gone.

A change is handled when all of its functions have returned. A function that raises is called again after a delay,
while everything else goes on. `HandlerScheduler` decides what to run next; `Handler` runs it, in threads or in
tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from forewarn.client.async_client import AsyncClient
from forewarn.client.blocking_client import Client, WatchInterrupt
from forewarn.client.effects import WatchInterrupted
from forewarn.client.events import Change, Event, Gone, Scheduled, Started, event_key, lists
from forewarn.client.watch import WatchOptions, mark_all_handled
from forewarn.errors import Rejected
from forewarn.protocol.document import Kind

LOG = logging.getLogger("forewarn.client")
F = TypeVar("F", bound=Callable[[Any], Any])


# Decides which handler functions and approvals to run next. No I/O: jobs out, results in.
#
# Functions of one event run one at a time, in the order of its changes, but none waits for another's retry. Those of
# different events run in parallel, because the 30 seconds of a Preempt do not wait for a long drain.

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
        for waiting in list(self._queues.values()):
            ready = (task for task in waiting if task.due_at <= now and (task.has_returned or not self.is_stopping))
            due = next(ready, None)
            if due is not None and not any(task.is_running for task in waiting):
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


DEFAULT_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # delays before retries; the last one repeats


class Handler:
    """Calls decorated functions for events that list this VM; with `neighbours` for all events.

    Decorate functions before `run` or `arun`. Each takes one argument, the change. The decorators raise Rejected for a
    function that cannot be called with one argument, and for a kind that is not a text. Functions for one event are
    called one at a time, in the order of its changes and then of the decorators, but none waits for another's retry.
    Functions for different events are called in parallel. `retry_s` are the delays in seconds before a function that
    raised is called again; the last one repeats until the function returns or the event is gone (functions of `gone`:
    until they return). `clock` measures them. Raises Rejected if `retry_s` is empty.
    """

    def __init__(
        self,
        *,
        neighbours: bool = False,
        retry_s: Sequence[float] = DEFAULT_RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not retry_s:
            raise Rejected("retry_s is empty: give at least one wait, in seconds")
        self._neighbours, self._retry_s, self._clock = neighbours, tuple(retry_s), clock
        self._rules: list[HandlerRule] = []
        self._stopped = threading.Event()
        self._interrupts: list[Callable[[], None]] = []  # end the waits of the current run

    def on(self, *kinds: str, approve: bool = False) -> Callable[[F], F]:
        """Decorator: register a function to be called with the first change of an event.

        That is a Scheduled, or a Started if none came before. With `approve`, an event whose change was a Scheduled is
        approved after the function returns, unless the event is gone or is a SpotRebalanceRecommendation; a failed
        approval is retried, a refused one is not. No kinds means all kinds; letter case is ignored. Raises Rejected for
        a kind that is not a text, and the decorator for a function that cannot be called with one argument. The
        function is returned unchanged.
        """
        return partial(self._add_rule, _is_first_change, _checked_kinds(kinds, "on"), approve)

    def started(self, *kinds: str) -> Callable[[F], F]:
        """Decorator: register a function to be called with the Started of an event of these kinds.

        No kinds means all kinds; letter case is ignored. If no Scheduled came before, functions registered with `on`
        are called with it too. Raises Rejected for a kind that is not a text, and the decorator for a function that
        cannot be called with one argument. The function is returned unchanged.
        """
        return partial(self._add_rule, _is_started, _checked_kinds(kinds, "started"), False)

    @overload
    def gone(self, function: F, /) -> F:
        """Decorator without parentheses: register a function for the Gone of events of any kind; returns it.

        It is called when an event is no longer listed, and again until it returns; `change.outcome` says how the event
        ended. Raises Rejected if it cannot be called with one argument.
        """

    @overload
    def gone(self, *kinds: str) -> Callable[[F], F]:
        """Decorator: register a function to be called with the Gone of events of these kinds (none: all).

        The letter case of kinds is ignored. It is called when an event is no longer listed, and again until it returns;
        `change.outcome` says how the event ended. Raises Rejected for a kind that is not a text, and the decorator for
        a function that cannot be called with one argument.
        """

    def gone(self, *kinds: Any) -> Any:
        """Decorator: register a function to be called with the Gone of an event, once it is not listed.

        `change.outcome` says how the event ended. Without parentheses or kinds it applies to all kinds; letter case is
        ignored. The Gone drops other functions of the event that are not running. Raises Rejected for a kind that is
        not a text, and for a function that cannot be called with one argument. The function is returned unchanged.
        """
        if len(kinds) == 1 and callable(kinds[0]):
            return self._add_rule(_is_gone, (), False, kinds[0])
        return partial(self._add_rule, _is_gone, _checked_kinds(kinds, "gone"), False)

    def run(self, client: Client, cursor: Path | str | None = None) -> None:
        """Watch for changes and call functions, each call in its own thread, until `stop`.

        It blocks, and may be run again afterwards; one run at a time. `cursor` is the file that keeps the changes that
        are not handled; None: no file. Waits out outages. Raises NotFound or Rejected if the endpoint refuses, and
        Rejected if the cursor file cannot be used or one of the functions is async. It raises an exception of a
        function only if it is not an Exception (such as SystemExit); any other is logged, and the function is called
        again. `stop` lets running functions end; after an error of the watch they are not waited for.
        """
        for rule in self._rules:
            if inspect.iscoroutinefunction(rule.function):
                raise Rejected(
                    f"{rule.function.__name__} is an async function: use `await handler.arun(AsyncClient())`"
                )
        scheduler = self._make_scheduler()
        threads = _JobThreads(client, scheduler)
        try:
            with WatchInterrupt() as interrupt, suppress(WatchInterrupted):
                self._interrupts.append(interrupt.set)
                self._watch_and_run_threads(client, cursor, scheduler, threads, interrupt)
            scheduler.is_stopping = True
            threads.finish()
        finally:
            self._end_run()

    def _watch_and_run_threads(
        self,
        client: Client,
        cursor: Path | str | None,
        scheduler: HandlerScheduler,
        threads: _JobThreads,
        interrupt: WatchInterrupt,
    ) -> None:
        if self._stopped.is_set():
            return
        options = WatchOptions(explicit=True, max_poll_s=scheduler.idle_time_s)
        with closing(client.follow(cursor, options, interrupt=interrupt)) as changes:
            for change in changes:
                if change is not None:
                    scheduler.add_change(change)
                else:
                    scheduler.release_unwanted()
                threads.run_due_jobs()
                if self._stopped.is_set():
                    return

    async def arun(self, client: AsyncClient, cursor: Path | str | None = None) -> None:
        """Watch for changes and call functions until `stop` or cancellation; async ones as tasks.

        Each call of a function that is not async has its own thread. `cursor` is the file that keeps the changes that
        are not handled; None: no file.
        Waits out outages. Cancellation, or an error of the watch, cancels the tasks; functions in threads run on, and
        are not waited for. Raises NotFound or Rejected if the endpoint refuses, and Rejected if the cursor file cannot
        be used. An exception of a function is logged, and the function is called again; SystemExit ends the run. One
        run at a time.
        """
        scheduler = self._make_scheduler()
        loop, interrupt = asyncio.get_running_loop(), asyncio.Event()
        self._interrupts.append(lambda: _call_in_loop(loop, interrupt.set))
        try:
            async with asyncio.TaskGroup() as group:
                with suppress(WatchInterrupted):
                    await self._watch_and_run_jobs(client, cursor, scheduler, group, interrupt)
                scheduler.is_stopping = True
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            self._end_run()

    async def _watch_and_run_jobs(
        self,
        client: AsyncClient,
        cursor: Path | str | None,
        scheduler: HandlerScheduler,
        group: asyncio.TaskGroup,
        interrupt: asyncio.Event,
    ) -> None:
        async def run_job(job: HandlerJob) -> None:
            try:
                result = await _run_job_async(client, job)
            except Exception as error:
                scheduler.job_failed(job, error)
            else:
                scheduler.job_succeeded(job, result)
            start_due_jobs()

        def start_due_jobs() -> None:
            for job in scheduler.due_jobs():
                group.create_task(run_job(job))

        if self._stopped.is_set():
            return
        options = WatchOptions(explicit=True, max_poll_s=scheduler.idle_time_s)
        async with aclosing(client.follow(cursor, options, interrupt=interrupt)) as changes:
            async for change in changes:
                if change is not None:
                    scheduler.add_change(change)
                else:
                    scheduler.release_unwanted()
                start_due_jobs()
                if self._stopped.is_set():
                    return

    def stop(self) -> None:
        """Make `run` or `arun` return when the running functions, and their approvals, are over.

        `stop` itself returns at once. It ends an open poll or a pause at once; a connection that is being opened may
        take CONNECT_TIMEOUT_S (5 s). Any thread and any signal handler may call it; if it is called before a run, that
        run returns at once. Changes that are not handled by then are delivered again next time, if there is a cursor
        file.
        """
        self._stopped.set()
        for interrupt in tuple(self._interrupts):
            interrupt()

    def _end_run(self) -> None:
        self._interrupts.clear()
        self._stopped.clear()

    def _add_rule(self, accepts: Callable[[Change], bool], kinds: Sequence[str], approve: bool, function: F) -> F:
        _require_one_argument(function)
        folded = frozenset(kind.casefold() for kind in kinds)
        self._rules.append(HandlerRule(accepts=accepts, function=function, kinds=folded, approve=approve))
        return function

    def _make_scheduler(self) -> HandlerScheduler:
        return HandlerScheduler(
            rules=tuple(self._rules), retry_s=self._retry_s, clock=self._clock, neighbours=self._neighbours
        )


def _checked_kinds(kinds: Sequence[Any], decorator: str) -> Sequence[str]:
    """Returns the kinds. Raises Rejected if one is not a text, as when the parentheses are missing."""
    for kind in kinds:
        if callable(kind):
            raise Rejected(f"@handler.{decorator} has no parentheses: write @handler.{decorator}()")
        if not isinstance(kind, str):
            raise Rejected(f"{kind!r} is not a kind of event: give kinds as texts, such as {Kind.REBOOT.value!r}")
    return kinds


def _require_one_argument(function: Callable[..., Any]) -> None:
    """Raises Rejected unless the function takes one argument; accepts one whose signature is not known."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise Rejected(f"{name} is not a function: decorate a function that takes one argument, the change")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(None)
    except TypeError:
        raise Rejected(
            f"{name}{signature} cannot be called with one argument, the change: write def {name}(change)"
        ) from None


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: its run has ended
        loop.call_soon_threadsafe(function)


class _JobThreads:
    """Runs jobs in threads; the calling thread passes their results to the scheduler."""

    def __init__(self, client: Client, scheduler: HandlerScheduler) -> None:
        self._client, self._scheduler = client, scheduler
        self._results: queue.SimpleQueue[tuple[HandlerJob, Any, BaseException | None]] = queue.SimpleQueue()
        self._running = 0

    def run_due_jobs(self) -> None:
        """Processes finished jobs and starts those that are due."""
        while not self._results.empty():
            self._handle_result()
        for job in self._scheduler.due_jobs():
            self._running += 1
            threading.Thread(target=self._run, args=(job,), daemon=True).start()

    def finish(self) -> None:
        """Waits for the running jobs and the approvals that follow them."""
        while self._running:
            self._handle_result()
            self.run_due_jobs()

    def _handle_result(self) -> None:
        job, result, error = self._results.get()
        self._running -= 1
        if error is None:
            self._scheduler.job_succeeded(job, result)
        elif isinstance(error, Exception):
            self._scheduler.job_failed(job, error)
        else:
            raise error

    def _run(self, job: HandlerJob) -> None:
        try:
            self._results.put((job, _run_job(self._client, job), None))
        except BaseException as error:  # sys.exit() in a handler function ends the program, not only its thread
            self._results.put((job, None, error))


def _run_job(client: Client, job: HandlerJob) -> Any:
    match job:
        case CallHandlerFunction(task=task):
            return task.rule.function(task.change)
        case ApproveEvent():
            return client.approve(job.event)
        case _:
            return client.name()


async def _run_job_async(client: AsyncClient, job: HandlerJob) -> Any:
    match job:
        case CallHandlerFunction(task=task) if inspect.iscoroutinefunction(task.rule.function):
            return await task.rule.function(task.change)
        case CallHandlerFunction(task=task):
            return await _call_in_thread(task.rule.function, task.change)
        case ApproveEvent():
            return await client.approve(job.event)
        case _:
            return await client.name()


async def _call_in_thread(function: Callable[[Change], Any], change: Change) -> Any:
    # The default executor has few threads: a handful of slow functions would delay all others, and the watch.
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def end(result: Any, error: BaseException | None) -> None:
        if not ended.cancelled():
            ended.set_result((result, error))

    def call() -> None:
        try:
            result = context.run(function, change)
            _call_in_loop(loop, partial(end, result, None))
        except BaseException as error:  # sys.exit() in a handler function ends the program, not only its thread
            _call_in_loop(loop, partial(end, None, error))

    threading.Thread(target=call, daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result


def _is_first_change(change: Change) -> bool:
    return isinstance(change, Scheduled) or (isinstance(change, Started) and change.first)


def _is_started(change: Change) -> bool:
    return isinstance(change, Started)


def _is_gone(change: Change) -> bool:
    return isinstance(change, Gone)
