"""An event loop with virtual time: when nothing can run, time jumps to the next timer.

It has one thread: work for executors runs at once, in the caller. Connections go through the loop's `network`. Equal
programs therefore run equally each time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, Protocol

START_TIME = 1_000_000.0  # of the loop's clock, in seconds
MAX_TURNS_WITHOUT_TIME = 100_000  # of the loop between two instants; more means that it never comes to rest
NETWORK_DELAY_S = 0.001


class NeverAtRest(BaseException):
    """The loop runs without end at one instant."""


class NothingLeft(BaseException):
    """The loop waits, but no timer is left that could end the wait."""


class Network(Protocol):
    """Connects clients on the loop with servers on the loop."""

    async def connect(self, protocol: asyncio.Protocol, host: str) -> asyncio.Transport:
        """Return the client's transport of a new connection, or raise ConnectionRefusedError."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose `time` advances only when all tasks wait. It never waits for the system."""

    def __init__(self) -> None:
        self._virtual_time = START_TIME
        self._turns = 0
        self.network: Network | None = None
        super().__init__(_VirtualSelector(self._advance))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_time

    def _advance(self, timeout: float | None) -> None:
        """Called instead of waiting: `timeout` is the time until the next timer, 0 if a task can run."""
        if timeout is None:
            raise NothingLeft("no task can run, and no timer is set")
        if timeout > 0:
            self._virtual_time += timeout
            self._turns = 0
            return
        self._turns += 1
        if self._turns > MAX_TURNS_WITHOUT_TIME:
            self._turns = 0
            raise NeverAtRest(f"{MAX_TURNS_WITHOUT_TIME} turns of the loop at the same instant")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call the function now, in this thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect through `network`; the host is the address of the caller."""
        await asyncio.sleep(NETWORK_DELAY_S)
        if self.network is None:
            raise ConnectionRefusedError(f"nothing listens at {host}")
        protocol = protocol_factory()
        return await self.network.connect(protocol, host), protocol


class _VirtualSelector(selectors.SelectSelector):
    """Knows the loop's own wake-up socket, but never waits for it."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []
