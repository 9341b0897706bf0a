"""`Handler`: calls decorated functions when an event is announced, starts or is gone.

A change is handled when all of its functions have returned. A function that raises is called again after a delay,
while everything else goes on. `HandlerScheduler` decides what to run next; this module runs it, in threads or in
tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from forewarn.client.async_client import AsyncClient
from forewarn.client.blocking_client import Client
from forewarn.client.events import Change, Gone, Scheduled, Started
from forewarn.client.handler_scheduler import (
    ApproveEvent,
    CallHandlerFunction,
    HandlerJob,
    HandlerRule,
    HandlerScheduler,
)
from forewarn.client.watch import WatchOptions
from forewarn.errors import Rejected

F = TypeVar("F", bound=Callable[[Any], Any])
DEFAULT_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # delays before retries; the last one repeats


class Handler:
    """Calls decorated functions for events that list this VM; with `neighbours` for all events.

    Decorate functions before `run` or `arun`. Functions of one event are called one at a time, those of different
    events in parallel. `retry_s` are the delays in seconds before a function that raised is called again; the last one
    repeats until the function returns or the event is gone (functions of `gone`: until they return). Raises Rejected
    if `retry_s` is empty.
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

    def on(self, *kinds: str, approve: bool = False) -> Callable[[F], F]:
        """Decorator: calls the function with the first change of an event.

        That is a Scheduled, or a Started for an event without notice. With `approve`, an event whose change was a
        Scheduled is approved after the function returns, unless it is gone; a failed approval is retried, a refused
        one is not. No kinds means all kinds; their case is ignored.
        """
        return partial(self._add_rule, _is_first_change, kinds, approve)

    def started(self, *kinds: str) -> Callable[[F], F]:
        """Decorator: calls the function with the Started of an event of these kinds; no kinds means all.

        If there was no notice, functions of `on` are called with it too.
        """
        return partial(self._add_rule, _is_started, kinds, False)

    @overload
    def gone(self, function: F, /) -> F: ...

    @overload
    def gone(self, *kinds: str) -> Callable[[F], F]: ...

    def gone(self, *kinds: Any) -> Any:
        """Decorator: calls the function when an event is gone; `change.outcome` says how it ended.

        Without parentheses or kinds it applies to all kinds. Functions of the event that have not run yet are dropped.
        """
        if len(kinds) == 1 and callable(kinds[0]):
            return self._add_rule(_is_gone, (), False, kinds[0])
        return partial(self._add_rule, _is_gone, kinds, False)

    def run(self, client: Client, cursor: Path | str | None = None) -> None:
        """Watches and calls functions, each call in its own thread, until `stop`; may be run again then.

        Raises Rejected if one of the functions is async, and as `Client.watch`; an exception that is no Exception
        (such as SystemExit) of a function too.
        """
        for rule in self._rules:
            if inspect.iscoroutinefunction(rule.function):
                raise Rejected(
                    f"{rule.function.__name__} is an async function: use `await handler.arun(AsyncClient())`"
                )
        scheduler = self._make_scheduler()
        threads = _JobThreads(client, scheduler)
        with closing(client.follow(cursor, WatchOptions(explicit=True, max_poll_s=scheduler.idle_time_s))) as changes:
            for change in changes:
                if change is not None:
                    scheduler.add_change(change)
                threads.run_due_jobs()
                if self._stopped.is_set():
                    break
        scheduler.is_stopping = True
        threads.finish()
        self._stopped.clear()

    async def arun(self, client: AsyncClient, cursor: Path | str | None = None) -> None:
        """Watches and calls functions until `stop` or cancellation; async ones as tasks, others in threads.

        Cancellation cancels the tasks, and lets the threads finish. Raises as `AsyncClient.watch`.
        """
        scheduler = self._make_scheduler()
        try:
            async with asyncio.TaskGroup() as group:
                await self._watch_and_run_jobs(client, cursor, scheduler, group)
                scheduler.is_stopping = True
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        self._stopped.clear()

    async def _watch_and_run_jobs(
        self, client: AsyncClient, cursor: Path | str | None, scheduler: HandlerScheduler, group: asyncio.TaskGroup
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

        async with aclosing(
            client.follow(cursor, WatchOptions(explicit=True, max_poll_s=scheduler.idle_time_s))
        ) as changes:
            async for change in changes:
                if change is not None:
                    scheduler.add_change(change)
                start_due_jobs()
                if self._stopped.is_set():
                    return

    def stop(self) -> None:
        """Makes `run` or `arun` return after its current or next poll and the running functions.

        A poll takes up to about LONG_POLL_S seconds, longer in an outage. Any thread may call it. Changes that are
        not handled by then are delivered again next time, if there is a cursor file.
        """
        self._stopped.set()

    def _add_rule(self, accepts: Callable[[Change], bool], kinds: Sequence[str], approve: bool, function: F) -> F:
        folded = frozenset(kind.casefold() for kind in kinds)
        self._rules.append(HandlerRule(accepts=accepts, function=function, kinds=folded, approve=approve))
        return function

    def _make_scheduler(self) -> HandlerScheduler:
        return HandlerScheduler(
            rules=tuple(self._rules), retry_s=self._retry_s, clock=self._clock, neighbours=self._neighbours
        )


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
            return await asyncio.to_thread(task.rule.function, task.change)
        case ApproveEvent():
            return await client.approve(job.event)
        case _:
            return await client.name()


def _is_first_change(change: Change) -> bool:
    return isinstance(change, Scheduled) or (isinstance(change, Started) and change.first)


def _is_started(change: Change) -> bool:
    return isinstance(change, Started)


def _is_gone(change: Change) -> bool:
    return isinstance(change, Gone)
