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
BODY_TIMEOUT_S = 120.0  # a slow body is worth waiting for, an endless one is not (spec §11)


class Unreachable(Unavailable):
    """Nothing accepts connections at the endpoint, or no endpoint was found; requests raise it."""


class IncompleteResponse(Unavailable):
    """The endpoint accepted the connection, and sent no complete response in time; requests raise it."""


class StaleConnection(IncompleteResponse):
    """A kept connection was closed before the response began, perhaps even before the request was sent.

    The server may not have seen the request, so `request_flow` repeats it once.
    """


class WatchInterrupted(Exception):
    """The caller of a watch has set its `interrupt`. Flows do not catch it; it is not a ForewarnError."""


def unreachable_error(endpoint: Endpoint, error: Exception) -> Unreachable:
    """Return (do not raise) the error for a failed connection attempt, for `raise … from error`."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno and reason.startswith("Connect call failed"):
        reason = os.strerror(error.errno)  # asyncio put its own text into strerror
    return Unreachable(f"nothing answers at {endpoint} ({reason}): check the endpoint")


def incomplete_response_error(endpoint: Endpoint, error: Exception, *, may_be_stale: bool) -> IncompleteResponse:
    """Return (do not raise) the error for a response that broke off because of `error`."""
    kind = StaleConnection if may_be_stale and not isinstance(error, TimeoutError) else IncompleteResponse
    return kind(f"{endpoint} broke off its answer ({str(error) or type(error).__name__}): ask again")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Effect: send the request, and return its `HttpResponse`, of any status, to the flow."""

    endpoint: Endpoint
    request: HttpRequest
    timeout_s: float  # until the response begins, and between two reads of it
    body_timeout_s: float = BODY_TIMEOUT_S  # added to timeout_s for the whole response
    connect_timeout_s: float = CONNECT_TIMEOUT_S  # to open a connection; timeout_s counts if it is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Effect: wait for this many seconds; a flow yields it, and its client waits. Its result is None."""

    seconds: float  # of real time


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFunction:
    """Effect: call a function that may block; return its result, or raise its error, in the flow."""

    function: Callable[[], Any]  # called without arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldItem:
    """Effect: yield `item` to the iterating caller; the flow resumes when the next one is requested."""

    item: Any


Effect = SendRequest | Sleep | CallFunction | YieldItem
Flow = Generator[Effect, Any, T]  # yields effects, receives their results, returns a T


class FlowRunner(Generic[T]):
    """Runs one flow (a generator of effects) step by step, for a client that performs the effects.

    Call `next_effect` until it returns None; perform each effect, then call `set_result` or `set_error`.
    """

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self._value: Any = None
        self._error: Exception | None = None
        self._results: list[T] = []

    def next_effect(self) -> Effect | None:
        """Start or resume the flow with the last result or error; return its next effect, None at its end."""
        value, error = self._value, self._error
        self._value = self._error = None
        try:
            return self._flow.send(value) if error is None else self._flow.throw(error)
        except StopIteration as end:
            self._results.append(end.value)
            return None

    def set_result(self, value: Any) -> None:
        """Set the value that `next_effect` passes to the flow as the result of its last effect."""
        self._value = value

    def set_error(self, error: Exception) -> None:
        """Set the error that `next_effect` raises inside the flow, where it yielded its last effect."""
        self._error = error

    def close(self) -> None:
        """End the flow early, so that its `finally` blocks run. No effect on a flow that has ended."""
        self._flow.close()

    @property
    def result(self) -> T:
        """The value that the flow returned; IndexError before `next_effect` has returned None."""
        return self._results[0]


def request_flow(
    endpoint: Endpoint, request: HttpRequest, timeout_s: float, *, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> Generator[Effect, Any, HttpResponse]:
    """Flow: send one request, and repeat it once if a kept connection turns out to be closed.

    The repetition is harmless: polls change nothing, and an approval may be repeated (spec §5.2). `timeout_s` limits
    the wait until the response begins, and between two reads of it.
    """
    effect = SendRequest(endpoint=endpoint, request=request, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
    try:
        response: HttpResponse = yield effect
    except StaleConnection:
        response = yield effect
    return response
