"""A bus in memory that loses, repeats, delays and reorders messages, and that can be down or partitioned.

    broker = MemoryBroker(Random(7))
    broker.faults = BusFaults(loss=0.2, repeat=0.1, max_delay_s=0.3)
    bus = broker.connect("h1")

It uses timers of the running event loop, so in virtual time nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from forewarn.cluster.bus import BusMessage, DoubtHandler, MessageHandler, NoAnswer, NoResponders
from forewarn.cluster.messages import ActOrder, decode_to_host
from forewarn.errors import Refused

_MIN_DELAY_S = 0.0005


@dataclass(frozen=True, slots=True)
class BusFaults:
    """How the bus misbehaves: probabilities per message and receiver, and the longest delay, which also reorders."""

    loss: float = 0.0
    repeat: float = 0.0
    max_delay_s: float = 0.0


class MemoryBroker:
    """The server of a bus. `faults`, `is_down` and `cut_off` (names of clients) may change at any time."""

    def __init__(self, chance: Random) -> None:
        self.faults = BusFaults()
        self.delivered = self.lost = 0
        self._chance = chance
        self._is_down = False
        self._cut_off: set[str] = set()
        self._lost_subject = self._without_replies = self._refused_subject = ""
        self._clients: list[MemoryBus] = []
        self.on_delivery: Callable[[MemoryBus], None] = lambda client: None  # called after each message
        self.on_reply: Callable[[str, bytes, bytes], None] = lambda subject, request, reply: None

    def connect(self, name: str) -> MemoryBus:
        """A new client."""
        client = MemoryBus(self, name)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """Lose the connection of every client, as if the server was killed."""
        self._is_down = True

    def start(self) -> None:
        """Let all clients connect again; they are told that messages may have been lost."""
        self._is_down = False
        for client in self._clients:
            client.doubt("reconnected")

    def cut_off(self, name: str) -> None:
        """Lose everything from and to this client, without either side noticing."""
        self._cut_off.add(name)

    def heal(self, name: str) -> None:
        """Let messages from and to this client pass again."""
        self._cut_off.discard(name)

    def lose_subject(self, subject: str) -> None:
        """Lose all messages to this subject from now on; "": none."""
        self._lost_subject = subject

    def lose_replies_of(self, name: str) -> None:
        """Lose all answers of this client from now on; "": none."""
        self._without_replies = name

    def refuse_subject(self, subject: str) -> None:
        """Permit nobody to subscribe to this subject from now on; "": permit it again."""
        self._refused_subject = subject

    def refuses(self, subject: str) -> bool:
        return subject == self._refused_subject

    def answers_of(self, name: str) -> bool:
        return self.can_pass(name) and name != self._without_replies

    def can_pass(self, name: str) -> bool:
        return not self._is_down and name not in self._cut_off

    @property
    def is_down(self) -> bool:
        return self._is_down

    def forget(self, client: MemoryBus) -> None:
        if client in self._clients:
            self._clients.remove(client)

    def send(self, sender: str, subject: str, payload: bytes, respond: Callable[[str, bytes], None]) -> bool:
        """Deliver a message to all subscribers, with faults; return whether there is any that can be reached."""
        if not self.can_pass(sender) or subject == self._lost_subject:
            return False
        found = False
        for client in self._clients:
            for pattern, handler in client.subscriptions:
                if _matches(pattern, subject):
                    found = True
                    self._deliver(client, handler, subject, payload, respond)
        return found

    def _deliver(
        self,
        client: MemoryBus,
        handler: MessageHandler,
        subject: str,
        payload: bytes,
        respond: Callable[[str, bytes], None],
    ) -> None:
        def arrive() -> None:
            if self.can_pass(client.name) and not client.is_closed:
                self.delivered += 1
                handler(BusMessage(subject, payload, reply))
                self.on_delivery(client)

        def reply(answer: bytes) -> None:
            if not client.is_closed:
                self.on_reply(subject, payload, answer)
                respond(client.name, answer)

        for delay_s in self.delays():
            asyncio.get_running_loop().call_later(delay_s, arrive)

    def delays(self) -> list[float]:
        """After which times a message arrives: usually one, none if it is lost, two if it is repeated."""
        faults, chance = self.faults, self._chance
        if chance.random() < faults.loss:
            self.lost += 1
            return []
        copies = 2 if chance.random() < faults.repeat else 1
        return [_MIN_DELAY_S + chance.random() * faults.max_delay_s for _ in range(copies)]


class MemoryBus:
    """A client of a `MemoryBroker`: implements `Bus`."""

    max_payload_bytes = 1 << 20

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name = name
        self.subscriptions: list[tuple[str, MessageHandler]] = []
        self.is_closed = False
        self.problem = ""
        self._broker = broker
        self._doubt_handlers: list[DoubtHandler] = []

    @property
    def is_connected(self) -> bool:
        return not self.is_closed and not self._broker.is_down

    def publish(self, subject: str, payload: bytes) -> None:
        if not self.is_closed:
            self._broker.send(self.name, subject, payload, lambda client, answer: None)

    async def request(self, subject: str, payload: bytes, *, timeout_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def arrive(data: bytes) -> None:
            if not answer.done() and self._broker.can_pass(self.name):
                answer.set_result(data)

        def respond(client: str, data: bytes) -> None:
            if self._broker.answers_of(client):
                for delay_s in self._broker.delays():
                    loop.call_later(delay_s, arrive, data)

        if self.is_closed:
            raise NoResponders("the connection is closed")
        is_received = self._broker.send(self.name, subject, payload, respond)
        if not is_received and self._broker.can_pass(self.name):
            await asyncio.sleep(_MIN_DELAY_S)
            raise NoResponders(f"nobody is subscribed to {subject!r}")
        if not self.is_connected:
            raise NoResponders("the bus is out of reach")
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise NoAnswer(f"no answer on {subject!r} within {timeout_s:g} s") from None

    async def subscribe(self, subject: str, handler: MessageHandler) -> Callable[[], None]:
        if self._broker.refuses(subject):
            raise Refused(f"the bus does not permit {self.name!r} to subscribe to {subject!r}")
        entry = (subject, handler)
        self.subscriptions.append(entry)

        def unsubscribe() -> None:
            if entry in self.subscriptions:
                self.subscriptions.remove(entry)

        return unsubscribe

    def subscribe_doubts(self, handler: DoubtHandler) -> Callable[[], None]:
        self._doubt_handlers.append(handler)

        def unsubscribe() -> None:
            if handler in self._doubt_handlers:
                self._doubt_handlers.remove(handler)

        return unsubscribe

    def doubt(self, reason: str) -> None:
        """Tell the subscribers that messages may have been lost."""
        for handler in tuple(self._doubt_handlers):
            handler(reason)

    async def flush(self) -> None:
        if not self.is_connected:
            raise NoAnswer("the bus is out of reach")

    async def close(self) -> None:
        self.is_closed = True
        self._broker.forget(self)


def decode_order(payload: bytes) -> ActOrder:
    """The order in a message to a host node; any other message fails."""
    order = decode_to_host(payload)
    assert isinstance(order, ActOrder)
    return order


def _matches(pattern: str, subject: str) -> bool:
    if pattern.endswith(".*"):
        return subject.rpartition(".")[0] == pattern[:-2]
    return pattern == subject
