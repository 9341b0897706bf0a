"""What a talk asks of its driver. A talk is a generator: it decides, and yields what is to be done; the driver does it,
blocking or awaiting, and sends back what came of it, or throws in what went wrong. Nothing is decided in a driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from forewarn.client.endpoint import Endpoint
from forewarn.errors import Unavailable
from forewarn.protocol.message import Request, Response

T = TypeVar("T")
CONNECT_S = 5.0
BODY_S = 120.0  # a slow document is better than none, but one that never ends is none (spec §11)


class Unreachable(Unavailable):
    """Nothing accepts connections at the endpoint."""


class Broken(Unavailable):
    """A connection was accepted, and the answer did not come, or not whole."""


class Stale(Broken):
    """A connection that was kept had been closed meanwhile: nothing is known to have been heard."""


def unreachable(endpoint: Endpoint, error: Exception) -> Unreachable:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno and why.startswith("Connect call failed"):
        why = os.strerror(error.errno)  # those were asyncio's words
    return Unreachable(f"nothing answers at {endpoint} ({why}): check the endpoint")


def broken(endpoint: Endpoint, error: Exception, *, may_be_stale: bool) -> Broken:
    """`may_be_stale`: the connection had been kept, and nothing came over it."""
    kind = Stale if may_be_stale and not isinstance(error, TimeoutError) else Broken
    return kind(f"{endpoint} broke off its answer ({str(error) or type(error).__name__}): ask again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this and read the answer: a Response. Raises Unreachable or Broken."""

    endpoint: Endpoint
    request: Request
    patience_s: float  # until the answer begins, and for more of it at any time
    body_s: float = BODY_S  # beyond that for the whole
    connect_s: float = CONNECT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """Call this: it may block for a moment, and what it returns or raises comes back."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Give this to whoever iterates; the talk goes on when they ask for more."""

    news: Any


Move = Send | Pause | Do | Tell
Talk = Generator[Move, Any, T]


class Run(Generic[T]):
    """A talk under way: `move()` until it is None, each followed by `came` or `failed`; then there is a `result`."""

    def __init__(self, talk: Talk[T]) -> None:
        self._talk = talk
        self._came: Any = None
        self._failed: Exception | None = None
        self._results: list[T] = []

    def move(self) -> Move | None:
        came, failed = self._came, self._failed
        self._came = self._failed = None
        try:
            return self._talk.send(came) if failed is None else self._talk.throw(failed)
        except StopIteration as end:
            self._results.append(end.value)
            return None

    def came(self, what: Any) -> None:
        self._came = what

    def failed(self, error: Exception) -> None:
        self._failed = error

    def close(self) -> None:
        self._talk.close()

    @property
    def result(self) -> T:
        return self._results[0]


def send(
    endpoint: Endpoint, request: Request, patience_s: float, *, connect_s: float = CONNECT_S
) -> Generator[Move, Any, Response]:
    """One request and its answer; once more at once if a kept connection turns out to be closed. That is harmless:
    polls change nothing, and an approval may be repeated (spec §5.2).
    """
    move = Send(endpoint=endpoint, request=request, patience_s=patience_s, connect_s=connect_s)
    try:
        response: Response = yield move
    except Stale:
        response = yield move
    return response
