"""The effects that a flow asks its client to perform: send, sleep, call, yield an item.

A flow is a generator: it decides and yields effects. The client performs each one, blocking or awaiting, and sends
back the result or throws in the error. This keeps all decisions out of the two clients.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from forewarn.client.endpoint import Endpoint
from forewarn.errors import Unavailable
from forewarn.protocol.http_message import HttpRequest, HttpResponse

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
BODY_TIMEOUT_S = 120.0  # a slow document is better than none, but one that never ends is none (spec §11)


class Unreachable(Unavailable):
    """Nothing accepts connections at the endpoint."""


class IncompleteResponse(Unavailable):
    """A connection was accepted, and the answer did not come, or not whole."""


class StaleConnection(IncompleteResponse):
    """A connection that was kept had been closed meanwhile: nothing is known to have been heard."""


def unreachable_error(endpoint: Endpoint, error: Exception) -> Unreachable:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno and why.startswith("Connect call failed"):
        why = os.strerror(error.errno)  # those were asyncio's words
    return Unreachable(f"nothing answers at {endpoint} ({why}): check the endpoint")


def incomplete_response_error(endpoint: Endpoint, error: Exception, *, may_be_stale: bool) -> IncompleteResponse:
    """`may_be_stale`: the connection had been kept, and nothing came over it."""
    kind = StaleConnection if may_be_stale and not isinstance(error, TimeoutError) else IncompleteResponse
    return kind(f"{endpoint} broke off its answer ({str(error) or type(error).__name__}): ask again")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send this and read the answer: a Response. Raises Unreachable or Broken."""

    endpoint: Endpoint
    request: HttpRequest
    timeout_s: float  # until the answer begins, and for more of it at any time
    body_timeout_s: float = BODY_TIMEOUT_S  # beyond that for the whole
    connect_timeout_s: float = CONNECT_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFunction:
    """Call this: it may block for a moment, and what it returns or raises comes back."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldItem:
    """Give this to whoever iterates; the talk goes on when they ask for more."""

    item: Any


Effect = SendRequest | Sleep | CallFunction | YieldItem
Flow = Generator[Effect, Any, T]


class FlowRunner(Generic[T]):
    """A talk under way: `move()` until it is None, each followed by `came` or `failed`; then there is a `result`."""

    def __init__(self, talk: Flow[T]) -> None:
        self._flow = talk
        self._value: Any = None
        self._error: Exception | None = None
        self._results: list[T] = []

    def next_effect(self) -> Effect | None:
        came, failed = self._value, self._error
        self._value = self._error = None
        try:
            return self._flow.send(came) if failed is None else self._flow.throw(failed)
        except StopIteration as end:
            self._results.append(end.value)
            return None

    def set_result(self, what: Any) -> None:
        self._value = what

    def set_error(self, error: Exception) -> None:
        self._error = error

    def close(self) -> None:
        self._flow.close()

    @property
    def result(self) -> T:
        return self._results[0]


def request_flow(
    endpoint: Endpoint, request: HttpRequest, patience_s: float, *, connect_s: float = CONNECT_TIMEOUT_S
) -> Generator[Effect, Any, HttpResponse]:
    """One request and its answer; once more at once if a kept connection turns out to be closed. That is harmless:
    polls change nothing, and an approval may be repeated (spec §5.2).
    """
    move = SendRequest(endpoint=endpoint, request=request, timeout_s=patience_s, connect_timeout_s=connect_s)
    try:
        response: HttpResponse = yield move
    except StaleConnection:
        response = yield move
    return response
