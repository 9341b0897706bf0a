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
TIMEOUT_S = 60.0  # real time; whatever a lab is asked for takes milliseconds


class LoopThread(Generic[S]):
    """Serves `opening` from `open` to `close`; afterwards nothing of it is left, whatever happened in between."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self._open_served = opening
        self._opened: Future[S] = Future()
        self._stop = asyncio.Event()
        self._lock = threading.Lock()  # held while something is put on the loop: whatever is, the loop gets to
        self._loop: asyncio.AbstractEventLoop | None = None  # None: nothing is taken on
        self._failure: BaseException | None = None
        # A daemon: a test run that forgot to close a lab ends all the same.
        self._thread = threading.Thread(target=self._run, name="forewarn lab", daemon=True)

    def open(self) -> S:
        self._thread.start()
        try:
            return self._opened.result(TIMEOUT_S)
        except BaseException:
            self._stop_thread()
            raise

    def run(self, work: Callable[[S], Coroutine[Any, Any, T]], patience_s: float = TIMEOUT_S) -> T:
        """What the work gives, done on the stage; bounded."""
        doing = self._submit(work)
        try:
            return doing.result(patience_s)
        except (CancelledError, Unavailable):
            if self._loop is not None:
                raise
            raise Refused("the lab was closed meanwhile: ask it while its `with` block is open") from None
        except TimeoutError:
            if doing.done():  # the work's own
                raise
            doing.cancel()
            raise Unavailable(f"the lab did not answer within {patience_s:g} s: close it and open another") from None

    def _submit(self, work: Callable[[S], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                raise Refused("the lab is closed: ask it while its `with` block is open")
            return asyncio.run_coroutine_threadsafe(work(self._opened.result()), self._loop)

    def close(self) -> None:
        """Again and again, if anybody likes."""
        self._stop_thread()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _stop_thread(self) -> None:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._loop = None
        if self._thread.ident is not None:
            self._thread.join(TIMEOUT_S)

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
            async with self._open_served() as served:
                self._opened.set_result(served)
                await self._stop.wait()
        finally:
            with self._lock:
                self._loop = None

    def _keep_failure(self, error: BaseException) -> None:
        """Told to whoever opens or closes."""
        if self._opened.done():
            self._failure = error
        else:
            self._opened.set_exception(error)
