"""The blocking `Client` and its connection. It performs the effects of flows and decides nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from forewarn.client.cursor import read_boot_id
from forewarn.client.discovery import Discovery
from forewarn.client.effects import (
    CallFunction,
    Effect,
    Flow,
    FlowRunner,
    IncompleteResponse,
    SendRequest,
    Sleep,
    YieldItem,
    incomplete_response_error,
    unreachable_error,
)
from forewarn.client.endpoint import Endpoint
from forewarn.client.events import Change, Event
from forewarn.client.http1 import ResponseReader, encode_request
from forewarn.client.session import ClientProperties, ClientSession
from forewarn.client.watch import WatchOptions, changes_flow, documents_flow
from forewarn.protocol.codec import Received
from forewarn.protocol.http_message import HttpRequest, HttpResponse


class BlockingConnection:
    """A connection that is kept from one request of a talk to the next."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, move: SendRequest) -> HttpResponse:
        is_kept = self._socket is not None and self._endpoint == move.endpoint
        incoming = ResponseReader()
        sock = self._socket if is_kept and self._socket else self._connect(move)
        try:
            sock.settimeout(move.timeout_s)
            sock.sendall(encode_request(move.request, move.endpoint))
            response = _read_response(sock, incoming, move)
        except (OSError, IncompleteResponse) as error:
            self.close()
            raise incomplete_response_error(
                move.endpoint, error, may_be_stale=is_kept and not incoming.has_received
            ) from error
        except BaseException:
            self.close()
            raise
        if not incoming.can_keep_alive:
            self.close()
        return response

    def _connect(self, move: SendRequest) -> socket.socket:
        self.close()
        try:
            at = (move.endpoint.host, move.endpoint.port)
            self._socket = socket.create_connection(at, timeout=min(move.connect_timeout_s, move.timeout_s))
        except (OSError, UnicodeError) as error:
            raise unreachable_error(move.endpoint, error) from error
        self._endpoint = move.endpoint
        return self._socket


def _read_response(sock: socket.socket, incoming: ResponseReader, move: SendRequest) -> HttpResponse:
    deadline = time.monotonic() + move.timeout_s + move.body_timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        sock.settimeout(min(left_s, move.timeout_s))
        response = incoming.feed(sock.recv(65536))
        if response is not None:
            return response
    raise TimeoutError("timed out")


def send_request(endpoint: Endpoint, request: HttpRequest, patience_s: float) -> HttpResponse:
    """One exchange, whatever its answer means. Raises Unreachable, or Unavailable if the answer broke off."""
    with BlockingConnection() as line:
        return line.send(SendRequest(endpoint=endpoint, request=request, timeout_s=patience_s))


T = TypeVar("T")


class Client(ClientProperties):
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
        self._session = ClientSession(endpoint, version=version, discovery=discovery, boot_id=boot_id, clock=clock)
        self._sleep = sleep

    @property
    def endpoint(self) -> Endpoint:
        return self.discover()

    def discover(self) -> Endpoint:
        """Where the service is; looked for once (spec §2.5)."""
        return self.run_flow(self._session.discover())

    def events(self) -> Received:
        """The document as it is now."""
        return self.run_flow(self._session.events())

    def mine(self) -> tuple[Event, ...]:
        """The events that list this VM."""
        return self.run_flow(self._session.mine())

    def name(self) -> str:
        """This VM's name, as the `resources` of events spell it."""
        return self.run_flow(self._session.name())

    def approve(self, *events: Event | str) -> None:
        """Let these events, or those with these ids, start early; harmless when repeated (spec §5.2)."""
        self.run_flow(self._session.approve(events))

    def time_left(self, event: Event) -> float | None:
        """Seconds until nothing protects from this event any more, by the service's time; None if that is unknown."""
        return self._session.time_left(event)

    def documents(self) -> Generator[Received, None, None]:
        """The document now, then each one that differs from the last, for ever.

        Outages of any length are waited out; what asking again cannot mend (NotFound, Rejected) is raised.
        """
        return self.iterate_flow(documents_flow(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> Generator[Change, None, None]:
        """Each change of each event, for ever, at least once: a change is handled when the next one is asked for, or by
        its done() (`explicit`: only so). What was not handled is told again by the next watch with the same cursor.
        """
        return self.watch_with(cursor, WatchOptions(explicit=explicit))

    def watch_with(self, cursor: Path | str | None, manner: WatchOptions) -> Generator[Any, None, None]:
        return self.iterate_flow(changes_flow(self._session, None if cursor is None else Path(cursor), manner))

    def run_flow(self, talk: Flow[T]) -> T:
        """A talk that tells nothing on its way, from beginning to end."""
        run = FlowRunner(talk)
        with BlockingConnection() as line:
            while (move := run.next_effect()) is not None:
                self._perform_effect(run, move, line)
        return run.result

    def iterate_flow(self, talk: Flow[None]) -> Generator[Any, None, None]:
        """What a talk tells, as it is told."""
        run = FlowRunner(talk)
        try:
            with BlockingConnection() as line:
                while (move := run.next_effect()) is not None:
                    if isinstance(move, YieldItem):
                        yield move.item
                    else:
                        self._perform_effect(run, move, line)
        finally:
            run.close()

    def _perform_effect(self, run: FlowRunner[T], move: Effect, line: BlockingConnection) -> None:
        try:
            match move:
                case SendRequest():
                    run.set_result(line.send(move))
                case Sleep():
                    self._sleep(move.seconds)
                case CallFunction():
                    run.set_result(move.function())
        except Exception as error:  # the talk says what becomes of it
            run.set_error(error)
