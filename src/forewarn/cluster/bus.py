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
    """Raised by `Bus.request` if a request got no answer in time; it may have been carried out.

    `request_repeatedly` raises it too, and so does `Bus.flush`: at once without a connection, else if the bus does not
    confirm. Its subclass NoResponders is raised at once if nobody is subscribed or the bus is out of reach: pause
    before a retry.
    """


class NoResponders(NoAnswer):
    """Raised at once by `Bus.request` if nobody is subscribed to the subject, or the bus is out of reach.

    It is also raised for a payload that is too long. Usually the request was not carried out, but it may have been if
    the connection was lost meanwhile.
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

    Any message may be lost, repeated, late or out of order. Payloads have at most `max_payload_bytes`: a longer message
    is lost, which is only logged, and a longer request raises NoResponders. `NatsBus` implements it, and connects again
    by itself; `close` ends it.
    """

    max_payload_bytes: int  # the largest payload that the bus takes
    problem: str  # what the bus does not permit this client, as one sentence for people; "": nothing that is known

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now, as far as this side knows.

        A dead connection is noticed later (by `NatsBus` after about six seconds); False after `close`.
        """

    def publish(self, subject: str, payload: bytes) -> None:
        """Send a message to the subscribers of this subject; returns at once.

        Without a connection the message is lost: nothing is kept to be sent later. A message that is longer than
        `max_payload_bytes` is lost, too, and logged. Raises nothing. `payload` is the encoded message.
        """

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send a request (`payload`) to a subject, once, and return the payload of the first answer.

        Raises NoAnswer after `timeout_s` of real time, or NoResponders at once if nobody is subscribed, the bus is out
        of reach, or the payload is longer than `max_payload_bytes`.
        """

    async def subscribe(self, subject: str, handler: MessageHandler) -> Callable[[], None]:
        """Call the handler with each message to this subject, in the order received, until unsubscribed.

        The handler runs on the event loop, so it must not block; its errors are logged. The subscription survives
        reconnects. `subject` may end with the wildcard `*`. Returns a function that unsubscribes; calling it twice is
        harmless. Raises Refused if the server does not permit it; without a connection, the server is asked once there
        is one, and then only `problem` shows a refusal.
        """

    def subscribe_doubts(self, handler: DoubtHandler) -> Callable[[], None]:
        """Call the handler whenever messages may have been lost: after a reconnect, or if this side was slow.

        The handler gets the reason, "reconnected" or "too slow". Returns a function that ends these calls; calling it
        twice is harmless.
        """

    async def flush(self) -> None:
        """Wait until the bus has taken everything that was published; raise NoAnswer if it does not.

        It raises at once without a connection, and after a short time (`NatsBus`: 2 s) without a confirmation.
        """

    async def close(self) -> None:
        """Close the connection; may be called twice. Messages that were not sent yet are lost.

        Later messages are lost, too, and later requests raise NoResponders.
        """


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

    The request (`payload`) is sent every `every_s` seconds, and sooner if nobody received it; earlier attempts stay
    valid. Raises NoAnswer after `within_s` seconds, or as soon as `may_send`, which is called before each attempt,
    returns False; any error of an attempt counts as no answer. Both times are real time. The receiver may carry the
    request out more than once.
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
    """Return a name as one lower-case token of a subject; only names that differ in case alone share one.

    Characters that a subject cannot have, such as dots and blanks, are percent-encoded.
    """
    return quote(name.casefold(), safe="").replace(".", "%2E").replace("~", "%7E")


@dataclass(frozen=True, slots=True)
class Subjects:
    """The names of the bus subjects of one cluster, which all begin with its prefix.

    Names of hosts may be given in any letter case.
    """

    prefix: str = DEFAULT_PREFIX  # without a dot at its end

    @property
    def heartbeat(self) -> str:
        """The subject on which the active control node sends a `Heartbeat` to all host nodes."""
        return f"{self.prefix}.heartbeat"

    def host(self, host: str) -> str:
        """Return the subject on which the active control node sends updates and heartbeats to a host's node.

        Nothing is sent there before that node has joined. The messages are `HostUpdate` and `Heartbeat`.
        """
        return f"{self.prefix}.host.{subject_token(host)}"

    def ask(self, host: str) -> str:
        """Return the subject on which this host's node sends requests to the active control node.

        They are joins, requests for parts of the state, and calls of VMs. With "*", it is the pattern for all hosts.
        """
        return f"{self.prefix}.ask.{host if host == '*' else subject_token(host)}"

    def seen(self, host: str) -> str:
        """Return the subject on which this host's node sends its `SeenReport`s to the active control node.

        With "*", it is the pattern for all hosts.
        """
        return f"{self.prefix}.seen.{host if host == '*' else subject_token(host)}"

    def act(self, host: str) -> str:
        """Return the subject on which the active control node sends orders and requests to a host's node."""
        return f"{self.prefix}.act.{subject_token(host)}"

    def inbox(self, name: str) -> str:
        """Return the prefix of the subjects on which a client of the bus gets answers to its requests.

        `name` is the client's name: that of a host, or of a control node.
        """
        return f"{self.prefix}.inbox.{subject_token(name)}"

    def host_node_permissions(self, host: str) -> dict[str, list[str]]:
        """Return the subjects that the bus must permit the node of this host, under "publish" and "subscribe".

        The node must also be permitted to answer requests (`allow_responses` in the configuration of NATS).
        """
        return {
            "publish": [self.ask(host), self.seen(host)],
            "subscribe": [self.heartbeat, self.host(host), self.act(host), f"{self.inbox(host)}.>"],
        }
