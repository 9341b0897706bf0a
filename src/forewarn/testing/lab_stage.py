"""An event loop in a thread of its own, and what is served on it: everybody else calls from other threads and waits."""

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
PATIENCE_S = 60.0  # real time; whatever a lab is asked for takes milliseconds


class Stage(Generic[S]):
    """Serves `opening` from `open` to `close`; afterwards nothing of it is left, whatever happened in between."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[S]]) -> None:
        self._opening = opening
        self._opened: Future[S] = Future()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._doings: set[Future[Any]] = set()
        # A daemon: a test run that forgot to close a lab ends all the same.
        self._thread = threading.Thread(target=self._run, name="forewarn lab", daemon=True)

    def open(self) -> S:
        self._thread.start()
        try:
            return self._opened.result(PATIENCE_S)
        except BaseException:
            self._end()
            raise

    def do(self, work: Callable[[S], Coroutine[Any, Any, T]], patience_s: float = PATIENCE_S) -> T:
        """What the work gives, done on the stage; bounded."""
        loop = self._loop
        if loop is None:
            raise Refused("the lab is closed: ask it while its `with` block is open")
        doing = asyncio.run_coroutine_threadsafe(work(self._opened.result()), loop)
        self._doings.add(doing)
        try:
            return doing.result(patience_s)
        except CancelledError:
            raise Refused("the lab was closed meanwhile: ask it while its `with` block is open") from None
        except TimeoutError:
            if doing.done():  # the work's own
                raise
            doing.cancel()
            raise Unavailable(f"the lab did not answer within {patience_s:g} s: close it and open another") from None
        finally:
            self._doings.discard(doing)

    def close(self) -> None:
        """Again and again, if anybody likes."""
        self._end()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _end(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
        self._loop = None
        for doing in tuple(self._doings):
            doing.cancel()  # its caller waits for a loop that is no more

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._fail(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._opening() as served:
            self._opened.set_result(served)
            await self._stop.wait()

    def _fail(self, error: BaseException) -> None:
        """Told to whoever opens or closes."""
        if self._opened.done():
            self._failure = error
        else:
            self._opened.set_exception(error)
