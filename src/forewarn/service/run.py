"""A service as a process: run until a signal says to stop, with what such a process needs of its system."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

from forewarn.assembly.loop import fastest_loop
from forewarn.assembly.service import DRAIN_S, Service, running
from forewarn.assembly.settings import Settings

_OPEN_FILES = 65_536
_MADE_BEFORE_A_LOOK = 20_000  # objects before garbage is looked for: one busy moment of some hundred guests


def run(settings: Settings, announce: Callable[[Service], None]) -> int | None:
    """Serve until a signal says to stop; `announce` is called once everything answers.

    How many events are pending; None: it was stopped before anything answered.
    """
    os.umask(0o077)  # what we write is nobody else's to read
    _allow_many_connections()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_serve(settings, announce))


async def _serve(settings: Settings, announce: Callable[[Service], None]) -> int | None:
    stop, loop, starting = asyncio.Event(), asyncio.get_running_loop(), _Starting()
    hang_up = () if _reloads(settings) else (signal.SIGHUP,)
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        loop.add_signal_handler(number, starting.end)
    if not hang_up:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # workers that begin are as new as can be
    async with AsyncExitStack() as stack:
        try:
            with _for_good():
                service = await stack.enter_async_context(running(settings))
        except asyncio.CancelledError:
            if not starting.is_ended:
                raise
            return None
        for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
            loop.add_signal_handler(number, stop.set)
        if not hang_up:
            _reload_when_told(stack, service)
        announce(service)
        await stop.wait()
        return service.pending()


class _Starting:
    """A start that a signal may end: what was begun is undone, and nothing was lost, since nobody was answered."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.is_ended = False

    def end(self) -> None:
        assert self._task is not None
        if not self.is_ended:
            self.is_ended = True
            self._task.cancel()


def _reloads(settings: Settings) -> bool:
    """Whether SIGHUP is to replace the workers. At a terminal it says that the terminal is gone: then we go too."""
    return bool(settings.workers) and not os.isatty(0)


def _reload_when_told(stack: AsyncExitStack, service: Service) -> None:
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(service.mouth.reload(DRAIN_S))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    stack.push_async_callback(end)


@contextmanager
def _for_good() -> Iterator[None]:
    """What is made meanwhile is a whole fleet, which stays: nobody looks for garbage in it, now or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_MADE_BEFORE_A_LOOK, *gc.get_threshold()[1:])
        gc.enable()


def _allow_many_connections() -> None:
    """What a system gives unasked, often 1024 open files, is too few for a fleet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
