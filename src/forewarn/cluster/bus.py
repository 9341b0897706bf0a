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
    """A request got no answer in time; `Bus.request` raises it. The request may have been carried out."""


class NoResponders(NoAnswer):
    """Nobody received a request, or the bus is out of reach; `Bus.request` raises it.

    Usually the request was not carried out; it may have been if the connection was lost meanwhile.
    """


@dataclass(frozen=True, slots=True)
class BusMessage:
    """A message that was received; `respond(payload)` answers it if it is a request, else does nothing."""

    subject: str  # that it was sent to
    payload: bytes  # as sent
    respond: Callable[[bytes], None]


MessageHandler = Callable[[BusMessage], None]
DoubtHandler = Callable[[str], None]  # called with the reason, in words


class Bus(Protocol):
    """A connection to the bus: publishes, requests and subscribes on subjects. Use it on one event loop.

    Any message may be lost, repeated or late. Payloads have at most `max_payload_bytes`.
    """

    max_payload_bytes: int  # the limit of the bus
    problem: str  # what the bus does not permit this client, as one sentence for people; "": nothing that is known

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now, as far as this side knows."""

    def publish(self, subject: str, payload: bytes) -> None:
        """Send a message to the subscribers of this subject; returns at once.

        Without a connection the message is lost: nothing is kept to be sent later. `payload` is the encoded message.
        """

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send a request (`payload`) to a subject and return the payload of the first answer.

        Raises NoAnswer after `timeout_s` of real time, or NoResponders at once if nobody is subscribed or the bus is
        out of reach.
        """

    async def subscribe(self, subject: str, handler: MessageHandler) -> Callable[[], None]:
        """Call the handler with each message to this subject, in the order received; again after a reconnect.

        `subject` may end with the wildcard `*`. Errors of the handler are logged. Returns a function that unsubscribes;
        calling it twice is harmless. Raises Refused if the server does not permit it; without a connection, the server
        is asked once there is one.
        """

    def subscribe_doubts(self, handler: DoubtHandler) -> Callable[[], None]:
        """Call the handler when messages may have been lost: after a reconnect, or if this side was slow.

        It gets the reason, "reconnected" or "too slow". Returns a function that ends this; calling that twice does no
        harm.
        """

    async def flush(self) -> None:
        """Return once the bus has taken everything that was published; raises NoAnswer if it does not."""

    async def close(self) -> None:
        """Close the connection; may be called twice."""


async def request_repeatedly(
    bus: Bus,
    subject: str,
    payload: bytes,
    *,
    within_s: float,
    every_s: float = RETRY_S,
    may_send: Callable[[], bool] = lambda: True,
) -> bytes:
    """Send a request again every `every_s`, and sooner if nobody received it, until it is answered.

    Earlier attempts stay valid: the first answer to any of them is returned. Raises NoAnswer after `within_s`, or as
    soon as `may_send`, which is asked before each attempt, returns False. Times are in seconds of real time. `payload`
    is the encoded request; the result is the payload of the answer.
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
    """Return a name as one token of a subject; names have the same token only if they differ just in case."""
    return quote(name.casefold(), safe="").replace(".", "%2E").replace("~", "%7E")


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one cluster. All of them begin with its prefix. Names of hosts are in any case."""

    prefix: str = DEFAULT_PREFIX  # without a dot at its end

    @property
    def heartbeat(self) -> str:
        """The subject of the `Heartbeat` from the active node to all."""
        return f"{self.prefix}.heartbeat"

    def host(self, host: str) -> str:
        """Return the subject from the active node to the node of this host, once that has joined.

        It carries `HostUpdate` and `Heartbeat`.
        """
        return f"{self.prefix}.host.{subject_token(host)}"

    def ask(self, host: str) -> str:
        """Return the subject for requests of the node of this host to the active node; "*": of all hosts."""
        return f"{self.prefix}.ask.{host if host == '*' else subject_token(host)}"

    def seen(self, host: str) -> str:
        """Return the subject for reports of this host's node to the active node; "*": of all hosts."""
        return f"{self.prefix}.seen.{host if host == '*' else subject_token(host)}"

    def act(self, host: str) -> str:
        """Return the subject for orders and other requests of the active node to the node of this host."""
        return f"{self.prefix}.act.{subject_token(host)}"

    def inbox(self, name: str) -> str:
        """Return the prefix of the subjects on which this client gets answers to its requests.

        `name` is that of the client: a host, or a control node.
        """
        return f"{self.prefix}.inbox.{subject_token(name)}"

    def host_node_permissions(self, host: str) -> dict[str, list[str]]:
        """Return the subjects that the node of this host must be permitted to "publish" and "subscribe".

        It must also be permitted to answer requests (`allow_responses` in the configuration of NATS).
        """
        return {
            "publish": [self.ask(host), self.seen(host)],
            "subscribe": [self.heartbeat, self.host(host), self.act(host), f"{self.inbox(host)}.>"],
        }
