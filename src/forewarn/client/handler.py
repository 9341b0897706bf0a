"""Functions that are called when something happens to an event: decorated, and run over a client.

A change counts as handled when all of its functions have returned. One that raises is called again after a while; what
else happens goes on meanwhile. What is next is `Round`'s to say; here it is done, in threads or in tasks.
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

from forewarn.client.async_driver import AsyncClient
from forewarn.client.change import Change, Gone, Scheduled, Started
from forewarn.client.driver import Client
from forewarn.client.round import Approve, Call, Job, Round, Rule
from forewarn.client.watching import Manner
from forewarn.errors import Rejected

F = TypeVar("F", bound=Callable[[Any], Any])
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Handler:
    """Reactions to events that list this VM; with `neighbours` to all events that it hears of. `retry_s` are the waits
    before a function that raised is called again, the last one for ever: until it returns, or the event is gone.
    """

    def __init__(
        self,
        *,
        neighbours: bool = False,
        retry_s: Sequence[float] = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not retry_s:
            raise Rejected("retry_s is empty: give at least one wait, in seconds")
        self._neighbours, self._retry_s, self._clock = neighbours, tuple(retry_s), clock
        self._rules: list[Rule] = []
        self._stopped = threading.Event()

    def on(self, *kinds: str, approve: bool = False) -> Callable[[F], F]:
        """Called with the first that is heard of an event: a Scheduled, or a Started that had no notice. With `approve`
        a scheduled event may start as soon as the function has returned.
        """
        return partial(self._add, _is_first, kinds, approve)

    def started(self, *kinds: str) -> Callable[[F], F]:
        """Called when an event has started."""
        return partial(self._add, _is_started, kinds, False)

    def gone(self, *kinds: Any) -> Any:
        """Called when an event is gone; `change.outcome` says how. Also without parentheses, for all kinds."""
        if len(kinds) == 1 and callable(kinds[0]):
            return self._add(_is_gone, (), False, kinds[0])
        return partial(self._add, _is_gone, kinds, False)

    def run(self, client: Client, cursor: Path | str | None = None) -> None:
        """For ever, or until `stop`. Functions run in threads of their own."""
        for rule in self._rules:
            if inspect.iscoroutinefunction(rule.function):
                raise Rejected(
                    f"{rule.function.__name__} is an async function: use `await handler.arun(AsyncClient())`"
                )
        round_ = self._round()
        crew = _Crew(client, round_)
        with closing(client.follow(cursor, Manner(explicit=True, within_s=round_.within_s))) as news:
            for change in news:
                if change is not None:
                    round_.put(change)
                crew.work()
                if self._stopped.is_set():
                    break
        round_.is_ending = True
        crew.finish()
        self._stopped.clear()

    async def arun(self, client: AsyncClient, cursor: Path | str | None = None) -> None:
        """For ever, or until `stop`, or cancelled. Async functions run as tasks, others in threads."""
        round_ = self._round()
        try:
            async with asyncio.TaskGroup() as group:
                await self._attend(client, cursor, round_, group)
                round_.is_ending = True
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        self._stopped.clear()

    async def _attend(
        self, client: AsyncClient, cursor: Path | str | None, round_: Round, group: asyncio.TaskGroup
    ) -> None:
        async def work(job: Job) -> None:
            try:
                came = await _awaited(client, job)
            except Exception as error:
                round_.failed(job, error)
            else:
                round_.came(job, came)
            begin()

        def begin() -> None:
            for job in round_.jobs():
                group.create_task(work(job))

        async with aclosing(client.follow(cursor, Manner(explicit=True, within_s=round_.within_s))) as news:
            async for change in news:
                if change is not None:
                    round_.put(change)
                begin()
                if self._stopped.is_set():
                    return

    def stop(self) -> None:
        """`run` or `arun` returns soon, when the functions under way have; from wherever this is called. What is not
        handled by then is told again next time.
        """
        self._stopped.set()

    def _add(self, wants: Callable[[Change], bool], kinds: Sequence[str], approve: bool, function: F) -> F:
        folded = frozenset(kind.casefold() for kind in kinds)
        self._rules.append(Rule(wants=wants, function=function, kinds=folded, approve=approve))
        return function

    def _round(self) -> Round:
        return Round(rules=tuple(self._rules), retry_s=self._retry_s, clock=self._clock, neighbours=self._neighbours)


class _Crew:
    """Threads that do jobs; what came of them is put into the round by whoever calls."""

    def __init__(self, client: Client, round_: Round) -> None:
        self._client, self._round = client, round_
        self._outcomes: queue.SimpleQueue[tuple[Job, Any, BaseException | None]] = queue.SimpleQueue()
        self._under_way = 0

    def work(self) -> None:
        """Conclude what has ended, begin what is due."""
        while not self._outcomes.empty():
            self._conclude()
        for job in self._round.jobs():
            self._under_way += 1
            threading.Thread(target=self._do, args=(job,), daemon=True).start()

    def finish(self) -> None:
        while self._under_way:
            self._conclude()
            self.work()

    def _conclude(self) -> None:
        job, came, error = self._outcomes.get()
        self._under_way -= 1
        if error is None:
            self._round.came(job, came)
        elif isinstance(error, Exception):
            self._round.failed(job, error)
        else:
            raise error

    def _do(self, job: Job) -> None:
        try:
            self._outcomes.put((job, _done(self._client, job), None))
        except BaseException as error:  # sys.exit() in a function is meant for the program, not for a thread
            self._outcomes.put((job, None, error))


def _done(client: Client, job: Job) -> Any:
    match job:
        case Call(task=task):
            return task.rule.function(task.change)
        case Approve():
            return client.approve(job.event)
        case _:
            return client.name()


async def _awaited(client: AsyncClient, job: Job) -> Any:
    match job:
        case Call(task=task) if inspect.iscoroutinefunction(task.rule.function):
            return await task.rule.function(task.change)
        case Call(task=task):
            return await asyncio.to_thread(task.rule.function, task.change)
        case Approve():
            return await client.approve(job.event)
        case _:
            return await client.name()


def _is_first(change: Change) -> bool:
    return isinstance(change, Scheduled) or (isinstance(change, Started) and change.first)


def _is_started(change: Change) -> bool:
    return isinstance(change, Started)


def _is_gone(change: Change) -> bool:
    return isinstance(change, Gone)
