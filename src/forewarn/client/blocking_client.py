"""The blocking `Client` and its connection. It performs the effects of flows and decides nothing."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Generator
from contextlib import suppress
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
    WatchInterrupted,
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


class WatchInterrupt:
    """Ends the waits of a blocking watch from outside; not set at first, and once set it stays set.

    Pass it to `Client.follow` or `iterate_flow` as `interrupt`. Use it as a context manager, which closes its sockets
    at the end.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)

    def __enter__(self) -> WatchInterrupt:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._sender.close()
        self._receiver.close()

    def set(self) -> None:
        """Make the current wait and all later ones raise WatchInterrupted.

        It has no effect after the context has ended. It takes no lock, so that signal handlers and other threads may
        call it at any moment.
        """
        with suppress(OSError):  # closed, or full of earlier calls
            self._sender.send(b"!")

    def wait(self, timeout_s: float, *, sock: socket.socket | None = None) -> bool:
        """Wait until the socket has data, at most `timeout_s` seconds; return whether it has.

        Without a socket it waits for the whole time and returns False. Raises WatchInterrupted as soon as `set` is
        called, or at once if it was called before.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._receiver, selectors.EVENT_READ)
            if sock is not None:
                selector.register(sock, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(max(0.0, timeout_s))]
        if self._receiver in ready:
            raise WatchInterrupted
        return bool(ready)


class BlockingConnection:
    """A connection to an endpoint, opened by `send` and kept for the next request to the same endpoint.

    One request at a time. Use it as a context manager, or call `close`. Setting `interrupt` (None: there is none) ends
    a wait for a response with WatchInterrupted, but not an attempt to connect.
    """

    def __init__(self, interrupt: WatchInterrupt | None = None) -> None:
        self.interrupt = interrupt
        self._socket: socket.socket | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection if it is open; `send` may open it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, effect: SendRequest) -> HttpResponse:
        """Send a request and return its response; reuse the open connection if the endpoint is the same.

        Returns a response of any status. Raises Unreachable if it cannot connect, IncompleteResponse if the response
        does not come whole or in time, StaleConnection if the server had closed the kept connection, or
        WatchInterrupted if the `interrupt` is set while it waits for the response. An error closes the connection. The
        time to resolve a host name is not limited.
        """
        is_reused = self._socket is not None and self._endpoint == effect.endpoint
        response_reader = ResponseReader()
        sock = self._socket if is_reused and self._socket else self._connect(effect)
        try:
            sock.settimeout(effect.timeout_s)
            sock.sendall(encode_request(effect.request, effect.endpoint))
            response = _read_response(sock, response_reader, effect, self.interrupt)
        except (OSError, IncompleteResponse) as error:
            self.close()
            raise incomplete_response_error(
                effect.endpoint, error, may_be_stale=is_reused and not response_reader.has_received
            ) from error
        except BaseException:
            self.close()
            raise
        if not response_reader.can_keep_alive:
            self.close()
        return response

    def _connect(self, effect: SendRequest) -> socket.socket:
        self.close()
        try:
            address = (effect.endpoint.host, effect.endpoint.port)
            self._socket = socket.create_connection(address, timeout=min(effect.connect_timeout_s, effect.timeout_s))
        except (OSError, UnicodeError) as error:
            raise unreachable_error(effect.endpoint, error) from error
        self._endpoint = effect.endpoint
        return self._socket


def _read_response(
    sock: socket.socket, response_reader: ResponseReader, effect: SendRequest, interrupt: WatchInterrupt | None
) -> HttpResponse:
    deadline = time.monotonic() + effect.timeout_s + effect.body_timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        timeout_s = min(left_s, effect.timeout_s)
        if interrupt is not None and not interrupt.wait(timeout_s, sock=sock):
            break
        sock.settimeout(timeout_s)
        response = response_reader.feed(sock.recv(65536))
        if response is not None:
            return response
    raise TimeoutError("timed out")


def send_request(endpoint: Endpoint, request: HttpRequest, timeout_s: float) -> HttpResponse:
    """Send one request on a new connection and return the response, of any status; blocks.

    Raises Unreachable if no connection is made within CONNECT_TIMEOUT_S (5 s), or within `timeout_s` if that is
    shorter. Raises IncompleteResponse if the response does not begin within `timeout_s` seconds, pauses for longer than
    that, breaks off, or is not complete after `timeout_s` + BODY_TIMEOUT_S (120 s) in all. It does not retry.
    """
    with BlockingConnection() as connection:
        return connection.send(SendRequest(endpoint=endpoint, request=request, timeout_s=timeout_s))


T = TypeVar("T")


class Client(ClientProperties):
    """Reads and approves scheduled events for the VM that it runs in; blocking.

    `endpoint` is a host, address or http:// URL. Without it, it uses FOREWARN_ENDPOINT or SCHEDULEDEVENTSIP, else it
    discovers the endpoint with the first request, as `discovery` says (None: with the defaults); an address that is not
    valid raises Rejected. `version` fixes the api-version, None negotiates it. `boot_id`, `sleep` and `clock` replace
    those of the system; an interrupt does not end such a `sleep`. Threads may share a client. There is nothing to
    close.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        version: str | None = None,
        discovery: Discovery | None = None,
        boot_id: Callable[[], str] = read_boot_id,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = ClientSession(endpoint, version=version, discovery=discovery, boot_id=boot_id, clock=clock)
        self._sleep = sleep

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint: as configured, else discovered once, which sends requests and may take minutes.

        Raises Unreachable if none is found; the next access then searches again.
        """
        return self.discover()

    def discover(self) -> Endpoint:
        """Return the endpoint: as configured, without a request, or discovered once and then kept (spec §2.5).

        The discovery may take minutes. Raises Unreachable if none is found; the next call then searches again.
        """
        return self.run_flow(self._session.discover())

    def events(self) -> Received:
        """Return the current document. Retries transient failures a few times, then raises Unavailable.

        It lists the events of this VM's whole scope, including those of other VMs, unless the service shows each VM
        only its own. An unknown endpoint is discovered first. Raises Unreachable at once if nothing accepts the
        connection, NotFound or Rejected if a retry cannot help.
        """
        return self.run_flow(self._session.events())

    def own_events(self) -> tuple[Event, ...]:
        """Return the events that list this VM, in the document's order; () if none does.

        Asks for the document, and first for this VM's name if it is not known; letter case of names does not matter. An
        unknown endpoint is discovered first, which may take minutes. Retries transient failures a few times, then
        raises Unavailable. Raises Unreachable at once if nothing accepts the connection, NotFound or Rejected if a
        retry cannot help.
        """
        return self.run_flow(self._session.own_events())

    def name(self) -> str:
        """Return this VM's name, as the `resources` of events spell it; ask only until it is known.

        An unknown endpoint is discovered first, which may take minutes. Retries transient failures a few times, then
        raises Unavailable; also does so if the answer cannot be a name. Raises Unreachable at once if nothing accepts
        the connection, NotFound or Rejected if a retry cannot help.
        """
        return self.run_flow(self._session.name())

    def approve(self, *events: Event | str) -> None:
        """Approve events, given as events or ids, so that they may start early; repeating it is harmless.

        It sends one request: if the endpoint refuses it, as for an unknown id, no event is approved (spec §5.2). An
        unknown endpoint is discovered first, which may take minutes. Retries transient failures a few times, then
        raises Unavailable; Unreachable at once if nothing accepts the connection. Raises Rejected if no id is given, an
        id is empty or the endpoint refuses, NotFound if it answers 404.
        """
        self.run_flow(self._session.approve(events))

    def time_left(self, event: Event) -> float | None:
        """Return the seconds from now until the event's NotBefore by the service's time, negative after it.

        Returns None if the event has no NotBefore, or the service's time is not known yet: no answer to a poll had a
        Date, or the watch still confirms the first one (`WatchOptions.confirm_time`). Sends nothing.
        """
        return self._session.time_left(event)

    def documents(self) -> Generator[Received, None, None]:
        """Yield the current document, then each one that differs from the last, for ever.

        It waits out outages of any length, even a failed discovery. It raises NotFound and Rejected, which a retry
        cannot fix.
        """
        return self.iterate_flow(documents_flow(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> Generator[Change, None, None]:
        """Yield each change of each event, other VMs' events included, at least once; never ends.

        A change is a Scheduled, Started or Gone; a new NotBefore of a listed event, for example, is not a change. A
        change is handled when the next one is requested or its `done()` is called; with `explicit`, only by `done()`.
        The next watch with the same cursor file first repeats the changes that were not handled; without a file, or
        with a new one, it begins with all listed events. Waits out outages of any length. Raises NotFound or Rejected
        if the endpoint refuses, and Rejected if the cursor file cannot be read or written at the start. A damaged file
        is replaced, with a warning in the log.
        """
        return self.follow(cursor, WatchOptions(explicit=explicit))

    def follow(
        self, cursor: Path | str | None, options: WatchOptions, *, interrupt: WatchInterrupt | None = None
    ) -> Generator[Any, None, None]:
        """Yield each change of each event, at least once: `watch` with all `WatchOptions`. Never ends.

        If `options` sets `max_poll_s`, it also yields None after each poll, even a failed one. When `interrupt` is set,
        it raises WatchInterrupted, even in the middle of a poll or pause. Waits out outages. Raises NotFound or
        Rejected if the endpoint refuses, and Rejected if the file `cursor` (None: no file) cannot be used at the start.
        """
        flow = changes_flow(self._session, None if cursor is None else Path(cursor), options)
        return self.iterate_flow(flow, interrupt=interrupt)

    def run_flow(self, flow: Flow[T]) -> T:
        """Run a flow (a generator of effects, such as requests) that yields no items, and return its result.

        It performs the effects on a connection of its own, and blocks meanwhile. Raises what the flow raises, and
        TypeError if the flow yields an item.
        """
        runner = FlowRunner(flow)
        with BlockingConnection() as connection:
            while (effect := runner.next_effect()) is not None:
                if isinstance(effect, YieldItem):
                    runner.close()
                    raise TypeError("this flow yields items: run it with `iterate_flow`")
                self._perform_effect(runner, effect, connection)
        return runner.result

    def iterate_flow(self, flow: Flow[None], *, interrupt: WatchInterrupt | None = None) -> Generator[Any, None, None]:
        """Run a flow (a generator of effects, such as requests and pauses), and yield its items as they come.

        Raises what the flow raises. Closing the generator ends the flow and closes its connection; so does `interrupt`,
        with WatchInterrupted, at the next wait for a response or pause.
        """
        runner = FlowRunner(flow)
        try:
            with BlockingConnection(interrupt) as connection:
                while (effect := runner.next_effect()) is not None:
                    if isinstance(effect, YieldItem):
                        yield effect.item
                    else:
                        self._perform_effect(runner, effect, connection)
        finally:
            runner.close()

    def _perform_effect(self, runner: FlowRunner[T], effect: Effect, connection: BlockingConnection) -> None:
        try:
            match effect:
                case SendRequest():
                    runner.set_result(connection.send(effect))
                case Sleep():
                    self._pause(effect.seconds, connection.interrupt)
                case CallFunction():
                    runner.set_result(effect.function())
        except Exception as error:  # the flow decides how to handle it
            runner.set_error(error)

    def _pause(self, seconds: float, interrupt: WatchInterrupt | None) -> None:
        if self._sleep is not None:
            self._sleep(seconds)
        elif interrupt is not None:
            interrupt.wait(seconds)
        else:
            time.sleep(seconds)
