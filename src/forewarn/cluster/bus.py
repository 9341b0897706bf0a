"""The bus interface: publish, request and subscribe on subjects; any message may be lost.

`nats_bus` implements it over NATS. Everything above it must stay correct if messages are lost, repeated, delayed or
reordered. `Subjects` names the subjects of one cluster, and which of them a host node may use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from forewarn.errors import Unavailable

DEFAULT_PREFIX = "forewarn"
RETRY_S = 0.25  # between repetitions of a request
_CLOCK_RESOLUTION_S = 0.001  # a wait that is shorter than this is over
_NO_RESPONDERS_PAUSE_S = 0.05  # so that a missing service does not keep a core busy


class NoAnswer(Unavailable):
    """A request got no answer in time; it may have been carried out."""


class NoResponders(NoAnswer):
    """Nobody is subscribed to the subject, the bus is out of reach, or the payload is too long: pause before a retry.

    Usually the request was not carried out, but it may have been if the connection was lost meanwhile.
    """


@dataclass(frozen=True, slots=True)
class BusMessage:
    """A message that a subscription received from the bus; `respond` answers it if it is a request."""

    subject: str  # to which it was sent
    payload: bytes  # as sent
    respond: Callable[[bytes], None]  # sends this payload as the answer; does nothing if no answer is awaited


MessageHandler = Callable[[BusMessage], None]
DoubtHandler = Callable[[str], None]  # called with the reason, in words


class Bus(Protocol):
    """A connection to the bus: publishes, requests and subscribes on subjects. Use it on one event loop.

    Any message may be lost, repeated, late or out of order. A message longer than `max_payload_bytes` is lost, which is
    only logged.
    """

    max_payload_bytes: int  # the largest payload that the bus takes
    problem: str  # what the bus does not permit this client, as one sentence for people; "": nothing that is known

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now, as far as this side knows."""

    def publish(self, subject: str, payload: bytes) -> None:
        """Send a message to the subscribers of this subject; returns at once. Nothing is kept to be sent later."""

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send a request (`payload`) to a subject, once, and return the payload of the first answer."""

    async def subscribe(self, subject: str, handler: MessageHandler) -> Callable[[], None]:
        """Call the handler with each message to this subject, in the order received, until unsubscribed.

        The handler must not block; its errors are logged. The subscription survives reconnects. Returns a function that
        unsubscribes. Refused if the server does not permit it; without a connection, only `problem` shows a refusal
        later.
        """

    def subscribe_doubts(self, handler: DoubtHandler) -> Callable[[], None]:
        """Call the handler whenever messages may have been lost: after a reconnect, or if this side was slow.

        The handler gets the reason, "reconnected" or "too slow". Returns a function that ends these calls.
        """

    async def flush(self) -> None:
        """Wait until the bus has taken everything that was published; raise NoAnswer if it does not."""

    async def close(self) -> None:
        """Close the connection; may be called twice. Messages that were not sent yet are lost."""


async def request_repeatedly(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    within_s: float,
    every_s: float = RETRY_S,
    may_send: Callable[[], bool] = lambda: True,
) -> bytes:
    """Send a request again and again until it is answered; return the payload of the first answer.

    Earlier attempts stay valid, and the receiver may carry the request out more than once. NoAnswer after `within_s`
    seconds, or as soon as `may_send` returns False.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    attempts: set[asyncio.Task[bytes]] = set()
    try:
        while (left_s := deadline - loop.time()) > _CLOCK_RESOLUTION_S and may_send():
            attempts.add(asyncio.create_task(bus.request(subject, payload, timeout_s=left_s)))
            done, attempts = await asyncio.wait(
                attempts, timeout=min(every_s, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                if attempt.exception() is None:
                    return attempt.result()
            if done:
                await asyncio.sleep(min(_NO_RESPONDERS_PAUSE_S, max(0.0, deadline - loop.time())))
        raise NoAnswer(f"no answer on {subject!r} within {within_s:g} s")
    finally:
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


def subject_token(name: str) -> str:
    """Return a name as one lower-case token of a subject; only names that differ in case alone share one."""
    return quote(name.casefold(), safe="").replace(".", "%2E").replace("~", "%7E")


@dataclass(frozen=True, slots=True)
class Subjects:
    """The names of the bus subjects of one cluster, which all begin with its prefix."""

    prefix: str = DEFAULT_PREFIX  # without a dot at its end

    @property
    def heartbeat(self) -> str:
        """The subject on which the active control node sends a `Heartbeat` to all host nodes."""
        return f"{self.prefix}.heartbeat"

    def host(self, host: str) -> str:
        """Return the subject on which the active control node sends updates and heartbeats to a host's node."""
        return f"{self.prefix}.host.{subject_token(host)}"

    def request(self, host: str) -> str:
        """Return the subject on which this host's node sends requests to the active control node."""
        return f"{self.prefix}.request.{host if host == '*' else subject_token(host)}"

    def report(self, host: str) -> str:
        """Return the subject on which this host's node sends its `SeenReport`s to the active control node."""
        return f"{self.prefix}.report.{host if host == '*' else subject_token(host)}"

    def act(self, host: str) -> str:
        """Return the subject on which the active control node sends orders and requests to a host's node."""
        return f"{self.prefix}.act.{subject_token(host)}"

    def inbox(self, name: str) -> str:
        """Return the prefix of the subjects on which a client of the bus gets answers to its requests."""
        return f"{self.prefix}.inbox.{subject_token(name)}"

    def host_node_permissions(self, host: str) -> dict[str, list[str]]:
        """Return the subjects that the bus must permit the node of this host, under "publish" and "subscribe"."""
        return {
            "publish": [self.request(host), self.report(host)],
            "subscribe": [self.heartbeat, self.host(host), self.act(host), f"{self.inbox(host)}.>"],
        }
