"""Runs blocking calls that may never end, such as those to a dead host or name server.

`asyncio.to_thread` is not for these: its threads are few, so some calls that hang would delay all others, and the
process waits for them when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run it in a thread of its own, which goes on if the future is cancelled, and does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(resolve, result, error)

    Thread(target=run, name="blocking call", daemon=True).start()
    return future
