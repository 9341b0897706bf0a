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
from typing import Any, TypeVar

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
DEFAULT_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Handler:
    """Reactions to events that list this VM; with `neighbours` to all events that it hears of. `retry_s` are the waits
    before a function that raised is called again, the last one for ever: until it returns, or the event is gone.
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
        """Called with the first that is heard of an event: a Scheduled, or a Started that had no notice. With `approve`
        a scheduled event may start as soon as the function has returned.
        """
        return partial(self._add_rule, _is_first_change, kinds, approve)

    def started(self, *kinds: str) -> Callable[[F], F]:
        """Called when an event has started."""
        return partial(self._add_rule, _is_started, kinds, False)

    def gone(self, *kinds: Any) -> Any:
        """Called when an event is gone; `change.outcome` says how. Also without parentheses, for all kinds."""
        if len(kinds) == 1 and callable(kinds[0]):
            return self._add_rule(_is_gone, (), False, kinds[0])
        return partial(self._add_rule, _is_gone, kinds, False)

    def run(self, client: Client, cursor: Path | str | None = None) -> None:
        """For ever, or until `stop`. Functions run in threads of their own."""
        for rule in self._rules:
            if inspect.iscoroutinefunction(rule.function):
                raise Rejected(
                    f"{rule.function.__name__} is an async function: use `await handler.arun(AsyncClient())`"
                )
        round_ = self._make_scheduler()
        crew = _JobThreads(client, round_)
        with closing(client.watch_with(cursor, WatchOptions(explicit=True, max_poll_s=round_.idle_time_s))) as news:
            for change in news:
                if change is not None:
                    round_.add_change(change)
                crew.run_due_jobs()
                if self._stopped.is_set():
                    break
        round_.is_stopping = True
        crew.finish()
        self._stopped.clear()

    async def arun(self, client: AsyncClient, cursor: Path | str | None = None) -> None:
        """For ever, or until `stop`, or cancelled. Async functions run as tasks, others in threads."""
        round_ = self._make_scheduler()
        try:
            async with asyncio.TaskGroup() as group:
                await self._watch_and_run_jobs(client, cursor, round_, group)
                round_.is_stopping = True
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        self._stopped.clear()

    async def _watch_and_run_jobs(
        self, client: AsyncClient, cursor: Path | str | None, round_: HandlerScheduler, group: asyncio.TaskGroup
    ) -> None:
        async def work(job: HandlerJob) -> None:
            try:
                came = await _run_job_async(client, job)
            except Exception as error:
                round_.job_failed(job, error)
            else:
                round_.job_succeeded(job, came)
            begin()

        def begin() -> None:
            for job in round_.due_jobs():
                group.create_task(work(job))

        async with aclosing(
            client.watch_with(cursor, WatchOptions(explicit=True, max_poll_s=round_.idle_time_s))
        ) as news:
            async for change in news:
                if change is not None:
                    round_.add_change(change)
                begin()
                if self._stopped.is_set():
                    return

    def stop(self) -> None:
        """`run` or `arun` returns soon, when the functions under way have; from wherever this is called. What is not
        handled by then is told again next time.
        """
        self._stopped.set()

    def _add_rule(self, wants: Callable[[Change], bool], kinds: Sequence[str], approve: bool, function: F) -> F:
        folded = frozenset(kind.casefold() for kind in kinds)
        self._rules.append(HandlerRule(accepts=wants, function=function, kinds=folded, approve=approve))
        return function

    def _make_scheduler(self) -> HandlerScheduler:
        return HandlerScheduler(
            rules=tuple(self._rules), retry_s=self._retry_s, clock=self._clock, neighbours=self._neighbours
        )


class _JobThreads:
    """Threads that do jobs; what came of them is put into the round by whoever calls."""

    def __init__(self, client: Client, round_: HandlerScheduler) -> None:
        self._client, self._scheduler = client, round_
        self._results: queue.SimpleQueue[tuple[HandlerJob, Any, BaseException | None]] = queue.SimpleQueue()
        self._running = 0

    def run_due_jobs(self) -> None:
        """Conclude what has ended, begin what is due."""
        while not self._results.empty():
            self._handle_result()
        for job in self._scheduler.due_jobs():
            self._running += 1
            threading.Thread(target=self._run, args=(job,), daemon=True).start()

    def finish(self) -> None:
        while self._running:
            self._handle_result()
            self.run_due_jobs()

    def _handle_result(self) -> None:
        job, came, error = self._results.get()
        self._running -= 1
        if error is None:
            self._scheduler.job_succeeded(job, came)
        elif isinstance(error, Exception):
            self._scheduler.job_failed(job, error)
        else:
            raise error

    def _run(self, job: HandlerJob) -> None:
        try:
            self._results.put((job, _run_job(self._client, job), None))
        except BaseException as error:  # sys.exit() in a function is meant for the program, not for a thread
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
