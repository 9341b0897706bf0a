"""Runs a service as a process: signals, file limit, garbage collection, event loop.

SIGINT and SIGTERM stop it. SIGHUP replaces the workers; without workers or at a terminal it stops the service too, and
the log says why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack

from forewarn.metadata.limits import raise_open_file_limit
from forewarn.metadata.workers.worker import event_loop_factory
from forewarn.service.node_wiring import ControlNodeProcess, running_control_node
from forewarn.service.service import Service
from forewarn.service.settings import Settings
from forewarn.service.wiring import DRAIN_TIMEOUT_S, running_service, without_garbage_collection

_log = logging.getLogger(__name__)


def run_service(settings: Settings, announce: Callable[[Service], None], *, new_store: bool = False) -> int | None:
    """Run a service until a signal stops it; blocks. Calls `announce(service)` once everything answers.

    Returns the number of pending events at the end; None if a signal stopped it during the start.
    """
    os.umask(0o077)  # only the owner may read the files of a service
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve_until_signal(settings, announce, new_store))


async def _serve_until_signal(settings: Settings, announce: Callable[[Service], None], new_store: bool) -> int | None:
    stop, loop, startup = asyncio.Event(), asyncio.get_running_loop(), _Startup()
    reason = _hangup_stop_reason(settings)
    _stop_on_signals(startup.cancel, reason)
    if not reason:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # during the start there is nothing to reload
    async with AsyncExitStack() as stack:
        try:
            with without_garbage_collection():
                service = await stack.enter_async_context(running_service(settings, new_store=new_store))
        except asyncio.CancelledError:
            if not startup.is_cancelled:
                raise
            return None
        _stop_on_signals(stop.set, reason)
        if not reason:
            _reload_on_hangup(stack, lambda: service)
        announce(service)
        await stop.wait()
        return service.pending_events()


def run_control_node(settings: Settings, announce: Callable[[ControlNodeProcess], None]) -> None:
    """Run a control node of a cluster until a signal stops it; blocks.

    If another node takes its lease, or its copy may differ from the record, the process ends at once with the status
    MUST_START_AGAIN_EXIT (4).
    """
    os.umask(0o077)  # only the owner may read the files of a service
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_run_node_until_signal(settings, announce))


async def _run_node_until_signal(settings: Settings, announce: Callable[[ControlNodeProcess], None]) -> None:
    stop, startup = asyncio.Event(), _Startup()
    _stop_on_signals(startup.cancel, "")
    async with AsyncExitStack() as stack:
        try:
            process = await stack.enter_async_context(running_control_node(settings))
        except asyncio.CancelledError:
            if not startup.is_cancelled:
                raise
            return
        _stop_on_signals(stop.set, "")
        _reload_on_hangup(stack, lambda: process.service)
        announce(process)
        await stop.wait()


class _Startup:
    """A start that a signal can cancel. No client was answered yet, so nothing is lost."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.is_cancelled = False

    def cancel(self) -> None:
        assert self._task is not None
        if not self.is_cancelled:
            self.is_cancelled = True
            self._task.cancel()


def _hangup_stop_reason(settings: Settings) -> str:
    """Why SIGHUP stops the service, for its log; "" if SIGHUP replaces the workers."""
    if os.isatty(0):
        return "it runs at a terminal, and SIGHUP means that the terminal has closed"
    return "" if settings.workers else "it has no workers that SIGHUP could replace"


def _stop_on_signals(stop: Callable[[], None], hangup_stop_reason: str) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)

    def stop_on_hangup() -> None:
        _log.warning("SIGHUP stops the service: %s", hangup_stop_reason)
        stop()

    if hangup_stop_reason:
        loop.add_signal_handler(signal.SIGHUP, stop_on_hangup)


def _reload_on_hangup(stack: AsyncExitStack, running_service: Callable[[], Service | None]) -> None:
    tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        if (service := running_service()) is None:
            return  # this control node is not active, so it has no workers
        task = asyncio.create_task(service.publisher.frontend.reload_workers(DRAIN_TIMEOUT_S))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    stack.push_async_callback(end)
