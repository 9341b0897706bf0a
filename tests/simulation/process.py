"""A simulated operating-system process: its tasks, and the moments at which it may be killed.

Everything that a process does to the world (a durable write, an act, a reaction) passes a crash point before and after
its effect. A dead process passes none, so nothing that its cancelled tasks still do has an effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class ProcessDied(BaseException):
    """The death of a process, raised in the task that passed the fatal crash point."""


class SimulatedProcess:
    """The tasks of one process. Calls `on_death` once, when it dies."""

    def __init__(self, name: str, on_death: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.is_dead = False
        self.points = 0  # crash points passed so far
        self._dies_after: int | None = None
        self._on_death = on_death
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.context: Context = copy_context()
        self.context.run(_current_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run this as a task of the process; so are all tasks that it creates."""
        return self.context.run(asyncio.get_running_loop().create_task, work)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this in the process and return its result; ProcessDied if the process dies meanwhile."""
        if self.is_dead:
            work.close()
            raise ProcessDied
        task = self.spawn(work)
        await asyncio.wait({task})
        if self.is_dead:
            if not task.cancelled():
                task.exception()  # marks it as seen
            raise ProcessDied
        return task.result()

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Count this task as one of the process."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if self.is_dead:
            task.cancel()

    def die_after(self, points: int) -> None:
        """Kill the process when it has passed this many more crash points."""
        self._dies_after = self.points + points

    def live_on(self) -> None:
        """Forget `die_after`."""
        self._dies_after = None

    def pass_point(self) -> None:
        """Pass a crash point: raises ProcessDied if the process dies here, or is dead."""
        if self.is_dead:
            raise ProcessDied
        self.points += 1
        if self._dies_after is not None and self.points > self._dies_after:
            self.die()
            raise ProcessDied

    def die(self) -> None:
        """Kill the process now; does nothing if it is dead."""
        if self.is_dead:
            return
        self.is_dead = True
        running = asyncio.current_task()
        for task in list(self._tasks):
            if task is not running:
                task.cancel()
        self._on_death()


_current_process: ContextVar[SimulatedProcess | None] = ContextVar("process", default=None)


def current_process() -> SimulatedProcess:
    """Return the process to which the running code belongs."""
    process = _current_process.get()
    assert process is not None, "this code runs outside of any process"
    return process


def create_task_in_process(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], *, context: Context | None = None, **options: Any
) -> asyncio.Task[T]:
    """A task factory that adds each task to the process that creates it."""
    task = asyncio.Task(work, loop=loop, context=context, **options)
    process = context.get(_current_process) if context is not None else _current_process.get()
    if process is not None:
        process.add_task(task)
    return task
