"""Runs an async service on an event loop in its own thread; other threads submit work and wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from forewarn.errors import Refused, Unavailable

S = TypeVar("S")
T = TypeVar("T")
TIMEOUT_S = 60.0  # real time, for opening, each piece of work, and closing; a lab answers within milliseconds


class LoopThread(Generic[S]):
    """Runs an async context manager on an event loop in its own thread, from `open` to `close`.

    Use the service only on that loop: `run` sends work there from other threads. It can be opened only once.
    """

    def __init__(self, open_service: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self._open_service = open_service
        self._opened: Future[S] = Future()
        self._stop = asyncio.Event()
        self._lock = threading.Lock()  # held while work is submitted, so that the loop runs all of it
        self._loop: asyncio.AbstractEventLoop | None = None  # None: work is refused
        self._failure: BaseException | None = None
        # A daemon, so that a test run ends even if it forgot to close a lab.
        self._thread = threading.Thread(target=self._run, name="forewarn lab", daemon=True)

    def open(self) -> S:
        """Start the thread, enter the context manager there, and return the service that it yields."""
        self._thread.start()
        try:
            return self._opened.result(TIMEOUT_S)
        except BaseException:
            self._stop_thread()
            raise

    def run(self, work: Callable[[S], Coroutine[Any, Any, T]], timeout_s: float = TIMEOUT_S) -> T:
        """Run `work(service)` on the loop, wait for it, and return its result or raise its error.

        Do not call it in the loop's own thread, which would wait for itself.
        """
        future = self._submit(work)
        try:
            return future.result(timeout_s)
        except (CancelledError, Unavailable):
            if self._loop is not None:
                raise
            raise Refused("the lab was closed meanwhile: use it inside its `with` block") from None
        except TimeoutError:
            if future.done():  # the work's own
                raise
            future.cancel()
            raise Unavailable(f"the lab did not answer within {timeout_s:g} s: close it and open another") from None

    def _submit(self, work: Callable[[S], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                raise Refused("the lab is closed: use it inside its `with` block")
            return asyncio.run_coroutine_threadsafe(work(self._opened.result()), self._loop)

    def close(self, timeout_s: float = TIMEOUT_S) -> None:
        """Leave the context manager and wait for the thread to end, up to `timeout_s`. May be repeated."""
        self._stop_thread(timeout_s)
        if self._thread.is_alive():
            raise Unavailable(
                f"the lab did not stop within {timeout_s:g} s and is still running: close it again, or end this process"
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _stop_thread(self, timeout_s: float = TIMEOUT_S) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._loop = None
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._keep_failure(error)

    async def _serve(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            async with self._open_service() as service:
                self._opened.set_result(service)
                await self._stop.wait()
        finally:
            with self._lock:
                self._loop = None

    def _keep_failure(self, error: BaseException) -> None:
        """Keep the error for `open` or `close` to raise."""
        if self._opened.done():
            self._failure = error
        else:
            self._opened.set_exception(error)
