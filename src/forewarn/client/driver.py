"""The blocking driver: does what talks ask for, one after the other. It decides nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from forewarn.client.change import Change
from forewarn.client.cursor import read_boot_id
from forewarn.client.discovery import Discovery
from forewarn.client.endpoint import Endpoint
from forewarn.client.event import Event
from forewarn.client.move import Broken, Do, Move, Pause, Run, Send, Talk, Tell, broken, unreachable
from forewarn.client.session import Session
from forewarn.client.watching import Manner, changes, documents
from forewarn.client.wire import Incoming, written
from forewarn.protocol.codec import Received
from forewarn.protocol.message import Request, Response

T = TypeVar("T")


class Client:
    """Hears of maintenance and approves it, for the VM that it runs in. Without an endpoint it is discovered with the
    first question. May be shared by threads.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        version: str | None = None,
        discovery: Discovery | None = None,
        boot_id: Callable[[], str] = read_boot_id,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = Session(endpoint, version=version, discovery=discovery, boot_id=boot_id, clock=clock)
        self._sleep = sleep

    @property
    def endpoint(self) -> Endpoint:
        return self.discover()

    @property
    def version(self) -> str:
        """The api-version that is asked with: the newest that the service takes, as far as it is known yet."""
        return self._session.version

    @property
    def date(self) -> float | None:
        """The service's time with its latest document: time left is `not_before - date` (spec §12)."""
        return self._session.date

    def discover(self) -> Endpoint:
        """Where the service is; looked for once (spec §2.5)."""
        return self.ask(self._session.discover())

    def events(self) -> Received:
        """The document as it is now."""
        return self.ask(self._session.events())

    def mine(self) -> tuple[Event, ...]:
        """The events that list this VM."""
        return self.ask(self._session.mine())

    def name(self) -> str:
        """This VM's name, as the `resources` of events spell it."""
        return self.ask(self._session.name())

    def approve(self, *events: Event | str) -> None:
        """Let these events, or those with these ids, start early; harmless when repeated (spec §5.2)."""
        self.ask(self._session.approve(events))

    def time_left(self, event: Event) -> float | None:
        """Seconds until nothing protects from this event any more, by the service's time; None if that is unknown."""
        return self._session.time_left(event)

    def documents(self) -> Iterator[Received]:
        """The document now, then each one that differs from the last, for ever.

        Outages of any length are waited out; what asking again cannot mend (NotFound, Rejected) is raised.
        """
        return self.hear(documents(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> Iterator[Change]:
        """Each change of each event, for ever, at least once: a change is handled when the next one is asked for, or by
        its done() (`explicit`: only so). What was not handled is told again by the next watch with the same cursor.
        """
        return self.follow(cursor, Manner(explicit=explicit))

    def follow(self, cursor: Path | str | None, manner: Manner) -> Iterator[Any]:
        return self.hear(changes(self._session, None if cursor is None else Path(cursor), manner))

    def ask(self, talk: Talk[T]) -> T:
        """A talk that tells nothing on its way, from beginning to end."""
        run = Run(talk)
        with Line() as line:
            while (move := run.move()) is not None:
                self._perform(run, move, line)
        return run.result

    def hear(self, talk: Talk[None]) -> Iterator[Any]:
        """What a talk tells, as it is told."""
        run = Run(talk)
        try:
            with Line() as line:
                while (move := run.move()) is not None:
                    if isinstance(move, Tell):
                        yield move.news
                    else:
                        self._perform(run, move, line)
        finally:
            run.close()

    def _perform(self, run: Run[T], move: Move, line: Line) -> None:
        try:
            match move:
                case Send():
                    run.came(line.send(move))
                case Pause():
                    self._sleep(move.s)
                case Do():
                    run.came(move.call())
        except Exception as error:  # the talk says what becomes of it
            run.failed(error)


class Line:
    """A connection that is kept from one request of a talk to the next."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, move: Send) -> Response:
        deadline = time.monotonic() + move.patience_s
        is_kept = self._socket is not None and self._endpoint == move.endpoint
        incoming = Incoming()
        sock = self._socket if is_kept and self._socket else self._connect(move)
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.sendall(written(move.request, move.endpoint))
            response = _received(sock, incoming, deadline)
        except (OSError, Broken) as error:
            self.close()
            raise broken(move.endpoint, error, may_be_stale=is_kept and not incoming.began) from error
        except BaseException:
            self.close()
            raise
        if not incoming.keeps:
            self.close()
        return response

    def _connect(self, move: Send) -> socket.socket:
        self.close()
        try:
            at = (move.endpoint.host, move.endpoint.port)
            self._socket = socket.create_connection(at, timeout=min(move.connect_s, move.patience_s))
        except (OSError, UnicodeError) as error:
            raise unreachable(move.endpoint, error) from error
        self._endpoint = move.endpoint
        return self._socket


def _received(sock: socket.socket, incoming: Incoming, deadline: float) -> Response:
    """The deadline is for the whole: a body that trickles in for ever is none."""
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left_s)
        response = incoming.feed(sock.recv(65536))
        if response is not None:
            return response


def send(endpoint: Endpoint, request: Request, patience_s: float) -> Response:
    """One exchange, whatever its answer means. Raises Unreachable, or Unavailable if the answer broke off."""
    with Line() as line:
        return line.send(Send(endpoint=endpoint, request=request, patience_s=patience_s))
