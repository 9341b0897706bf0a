"""The asyncio `AsyncClient` and its connection. It performs the effects of flows and decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
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
from forewarn.protocol.http_message import HttpResponse


class AsyncConnection:
    """A connection to an endpoint, opened by `send` and kept for the next request to the same endpoint.

    One request at a time. Use it as a context manager, or call `close`. It only keeps `interrupt`; when that is set,
    the client cancels `send` and ends the watch with WatchInterrupted.
    """

    def __init__(self, interrupt: asyncio.Event | None = None) -> None:
        self.interrupt = interrupt
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> AsyncConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at once if it is open; unsent data is lost."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def send(self, effect: SendRequest) -> HttpResponse:
        """Send a request and return its response; reuse the open connection if the endpoint is the same.

        Returns a response of any status. Raises Unreachable if it cannot connect, IncompleteResponse if the response
        does not come whole or in time, or StaleConnection if the server had closed the kept connection. An error or a
        cancellation closes the connection.
        """
        is_reused = self._streams is not None and self._endpoint == effect.endpoint
        response_reader = ResponseReader()
        reader, writer = self._streams if is_reused and self._streams else await self._connect(effect)
        try:
            async with asyncio.timeout(effect.timeout_s + effect.body_timeout_s):
                writer.write(encode_request(effect.request, effect.endpoint))
                await writer.drain()
                response = await _read_response(reader, response_reader, effect.timeout_s)
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

    async def _connect(self, effect: SendRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.close()
        try:
            async with asyncio.timeout(min(effect.connect_timeout_s, effect.timeout_s)):
                self._streams = await asyncio.open_connection(effect.endpoint.host, effect.endpoint.port)
        except (OSError, UnicodeError) as error:
            raise unreachable_error(effect.endpoint, error) from error
        self._endpoint = effect.endpoint
        return self._streams


async def _read_response(
    reader: asyncio.StreamReader, response_reader: ResponseReader, timeout_s: float
) -> HttpResponse:
    while True:
        async with asyncio.timeout(timeout_s):
            data = await reader.read(65536)
        response = response_reader.feed(data)
        if response is not None:
            return response


T = TypeVar("T")


async def _unless_interrupted(work: Awaitable[T], interrupt: asyncio.Event | None) -> T:
    """Awaits the work and returns its result; if `interrupt` is set first, raises WatchInterrupted."""
    if interrupt is None:
        return await work
    task, waiter = asyncio.ensure_future(work), asyncio.ensure_future(interrupt.wait())
    both: set[asyncio.Future[Any]] = {task, waiter}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in both:
            each.cancel()  # no effect on the one that is done
        await asyncio.wait(both)
    if task.cancelled():
        raise WatchInterrupted
    return task.result()


class AsyncClient(ClientProperties):
    """`Client` for asyncio: the same arguments and methods. Tasks of one event loop may share it.

    It reads and approves scheduled events for the VM that it runs in. Await the methods, except `time_left` and the
    generators below; an `interrupt` is an `asyncio.Event`. `endpoint` is a host, address or http:// URL. Without it,
    the client takes the endpoint from the environment, or discovers one with the first request, as `discovery` says
    (None: with the defaults); an address that is not valid raises Rejected. Without `version` it negotiates the
    api-version. `boot_id`, `sleep` (awaited) and `clock` replace those of the system. There is no property `endpoint`:
    await `discover()`. `documents`, `watch`, `follow` and `iterate_flow` return async generators; close one that you
    leave early with `aclose()`. The client itself has nothing to close.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        version: str | None = None,
        discovery: Discovery | None = None,
        boot_id: Callable[[], str] = read_boot_id,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = ClientSession(endpoint, version=version, discovery=discovery, boot_id=boot_id, clock=clock)
        self._sleep = sleep

    async def discover(self) -> Endpoint:
        """Return the endpoint: as configured, without a request, or discovered once and then kept (spec §2.5).

        The discovery may take minutes. Raises Unreachable if none is found; the next call then searches again.
        """
        return await self.run_flow(self._session.discover())

    async def events(self) -> Received:
        """Return the current document. Retries transient failures a few times, then raises Unavailable.

        It lists the events of this VM's whole scope, including those of other VMs, unless the service shows each VM
        only its own. An unknown endpoint is discovered first. Raises Unreachable at once if nothing accepts the
        connection, NotFound or Rejected if a retry cannot help.
        """
        return await self.run_flow(self._session.events())

    async def own_events(self) -> tuple[Event, ...]:
        """Return the events that list this VM, in the document's order; () if none does.

        Asks for the document, and first for this VM's name if it is not known; letter case of names does not matter. An
        unknown endpoint is discovered first, which may take minutes. Retries transient failures a few times, then
        raises Unavailable. Raises Unreachable at once if nothing accepts the connection, NotFound or Rejected if a
        retry cannot help.
        """
        return await self.run_flow(self._session.own_events())

    async def name(self) -> str:
        """Return this VM's name, as the `resources` of events spell it; ask only until it is known.

        An unknown endpoint is discovered first, which may take minutes. Retries transient failures a few times, then
        raises Unavailable; also does so if the answer cannot be a name. Raises Unreachable at once if nothing accepts
        the connection, NotFound or Rejected if a retry cannot help.
        """
        return await self.run_flow(self._session.name())

    async def approve(self, *events: Event | str) -> None:
        """Approve events, given as events or ids, so that they may start early; repeating it is harmless.

        It sends one request: if the endpoint refuses it, as for an unknown id, no event is approved (spec §5.2). An
        unknown endpoint is discovered first, which may take minutes. Retries transient failures a few times, then
        raises Unavailable; Unreachable at once if nothing accepts the connection. Raises Rejected if no id is given, an
        id is empty or the endpoint refuses, NotFound if it answers 404.
        """
        await self.run_flow(self._session.approve(events))

    def time_left(self, event: Event) -> float | None:
        """Return the seconds from now until the event's NotBefore by the service's time, negative after it.

        Returns None if the event has no NotBefore, or the service's time is not known yet: no answer to a poll had a
        Date, or the watch still confirms the first one (`WatchOptions.confirm_time`). Sends nothing.
        """
        return self._session.time_left(event)

    def documents(self) -> AsyncGenerator[Received, None]:
        """Yield the current document, then each one that differs from the last, for ever.

        It waits out outages of any length, even a failed discovery. It raises NotFound and Rejected, which a retry
        cannot fix.
        """
        return self.iterate_flow(documents_flow(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> AsyncGenerator[Change, None]:
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
        self, cursor: Path | str | None, options: WatchOptions, *, interrupt: asyncio.Event | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield each change of each event, at least once: `watch` with all `WatchOptions`. Never ends.

        If `options` sets `max_poll_s`, it also yields None after each poll, even a failed one. When `interrupt` is set,
        it raises WatchInterrupted, even in the middle of a poll or pause. Waits out outages. Raises NotFound or
        Rejected if the endpoint refuses, and Rejected if the file `cursor` (None: no file) cannot be used at the start.
        """
        flow = changes_flow(self._session, None if cursor is None else Path(cursor), options)
        return self.iterate_flow(flow, interrupt=interrupt)

    async def run_flow(self, flow: Flow[T]) -> T:
        """Run a flow (a generator of effects, such as requests) that yields no items, and return its result.

        It performs the effects on a connection of its own. Raises what the flow raises, and TypeError if the flow
        yields an item.
        """
        runner = FlowRunner(flow)
        with AsyncConnection() as connection:
            while (effect := runner.next_effect()) is not None:
                if isinstance(effect, YieldItem):
                    runner.close()
                    raise TypeError("this flow yields items: run it with `iterate_flow`")
                await self._perform_effect(runner, effect, connection)
        return runner.result

    async def iterate_flow(
        self, flow: Flow[None], *, interrupt: asyncio.Event | None = None
    ) -> AsyncGenerator[Any, None]:
        """Run a flow (a generator of effects, such as requests and pauses), and yield its items as they come.

        Raises what the flow raises. Closing the generator ends the flow and closes its connection; so does `interrupt`,
        with WatchInterrupted, once a blocking function that the flow calls has ended.
        """
        runner = FlowRunner(flow)
        try:
            with AsyncConnection(interrupt) as connection:
                while (effect := runner.next_effect()) is not None:
                    if isinstance(effect, YieldItem):
                        yield effect.item
                    else:
                        await self._perform_effect(runner, effect, connection)
        finally:
            runner.close()

    async def _perform_effect(self, runner: FlowRunner[T], effect: Effect, connection: AsyncConnection) -> None:
        try:
            match effect:
                case SendRequest():
                    runner.set_result(await _unless_interrupted(connection.send(effect), connection.interrupt))
                case Sleep():
                    await _unless_interrupted(self._sleep(effect.seconds), connection.interrupt)
                case CallFunction():  # it may write the cursor file: let it end
                    runner.set_result(await asyncio.to_thread(effect.function))
        except Exception as error:  # the flow decides how to handle it
            runner.set_error(error)
