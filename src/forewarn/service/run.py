"""Runs a service as a process: signals, file limit, garbage collection, event loop.

SIGINT and SIGTERM stop it. SIGHUP replaces the workers, unless the process has a terminal.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

from forewarn.service.settings import Settings
from forewarn.service.wiring import DRAIN_TIMEOUT_S, Service, running_service
from forewarn.workers.worker import event_loop_factory

_OPEN_FILE_LIMIT = 65_536
_GC_THRESHOLD = 20_000  # objects before garbage is looked for: one busy moment of some hundred guests


def run_service(settings: Settings, announce: Callable[[Service], None]) -> int | None:
    """Serve until a signal says to stop; `announce` is called once everything answers.

    How many events are pending; None: it was stopped before anything answered.
    """
    os.umask(0o077)  # what we write is nobody else's to read
    _raise_open_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve_until_signal(settings, announce))


async def _serve_until_signal(settings: Settings, announce: Callable[[Service], None]) -> int | None:
    stop, loop, starting = asyncio.Event(), asyncio.get_running_loop(), _Startup()
    hang_up = () if _reloads_on_hangup(settings) else (signal.SIGHUP,)
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
        loop.add_signal_handler(number, starting.cancel)
    if not hang_up:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # workers that begin are as new as can be
    async with AsyncExitStack() as stack:
        try:
            with _without_garbage_collection():
                service = await stack.enter_async_context(running_service(settings))
        except asyncio.CancelledError:
            if not starting.is_cancelled:
                raise
            return None
        for number in (signal.SIGINT, signal.SIGTERM, *hang_up):
            loop.add_signal_handler(number, stop.set)
        if not hang_up:
            _reload_on_hangup(stack, service)
        announce(service)
        await stop.wait()
        return service.pending_events()


class _Startup:
    """A start that a signal may end: what was begun is undone, and nothing was lost, since nobody was answered."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.is_cancelled = False

    def cancel(self) -> None:
        assert self._task is not None
        if not self.is_cancelled:
            self.is_cancelled = True
            self._task.cancel()


def _reloads_on_hangup(settings: Settings) -> bool:
    """Whether SIGHUP is to replace the workers. At a terminal it says that the terminal is gone: then we go too."""
    return bool(settings.workers) and not os.isatty(0)


def _reload_on_hangup(stack: AsyncExitStack, service: Service) -> None:
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(service.publisher.reload_workers(DRAIN_TIMEOUT_S))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    stack.push_async_callback(end)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """What is made meanwhile is a whole fleet, which stays: nobody looks for garbage in it, now or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
        gc.enable()


def _raise_open_file_limit() -> None:
    """What a system gives unasked, often 1024 open files, is too few for a fleet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
