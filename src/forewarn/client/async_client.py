"""The asyncio `AsyncClient` and its connection. It performs the effects of flows, decides nothing."""

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
    """A connection that is kept from one request of a talk to the next."""

    def __init__(self) -> None:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> AsyncConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def send(self, move: SendRequest) -> HttpResponse:
        is_kept = self._streams is not None and self._endpoint == move.endpoint
        incoming = ResponseReader()
        reader, writer = self._streams if is_kept and self._streams else await self._connect(move)
        try:
            async with asyncio.timeout(move.timeout_s + move.body_timeout_s):
                writer.write(encode_request(move.request, move.endpoint))
                await writer.drain()
                response = await _read_response(reader, incoming, move.timeout_s)
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

    async def _connect(self, move: SendRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.close()
        try:
            async with asyncio.timeout(min(move.connect_timeout_s, move.timeout_s)):
                self._streams = await asyncio.open_connection(move.endpoint.host, move.endpoint.port)
        except (OSError, UnicodeError) as error:
            raise unreachable_error(move.endpoint, error) from error
        self._endpoint = move.endpoint
        return self._streams


async def _read_response(reader: asyncio.StreamReader, incoming: ResponseReader, patience_s: float) -> HttpResponse:
    while True:
        async with asyncio.timeout(patience_s):
            data = await reader.read(65536)
        response = incoming.feed(data)
        if response is not None:
            return response


T = TypeVar("T")


class AsyncClient(ClientProperties):
    """`Client`, awaited: the same questions, the same answers. May be shared by tasks."""

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
        """Where the service is; looked for once (spec §2.5)."""
        return await self.run_flow(self._session.discover())

    async def events(self) -> Received:
        """The document as it is now."""
        return await self.run_flow(self._session.events())

    async def mine(self) -> tuple[Event, ...]:
        """The events that list this VM."""
        return await self.run_flow(self._session.mine())

    async def name(self) -> str:
        """This VM's name, as the `resources` of events spell it."""
        return await self.run_flow(self._session.name())

    async def approve(self, *events: Event | str) -> None:
        """Let these events, or those with these ids, start early; harmless when repeated (spec §5.2)."""
        await self.run_flow(self._session.approve(events))

    def time_left(self, event: Event) -> float | None:
        """Seconds until nothing protects from this event any more, by the service's time; None if that is unknown."""
        return self._session.time_left(event)

    def documents(self) -> AsyncGenerator[Received, None]:
        """The document now, then each one that differs from the last, for ever; as `Client.documents`."""
        return self.iterate_flow(documents_flow(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> AsyncGenerator[Change, None]:
        """Each change of each event, for ever, at least once; as `Client.watch`."""
        return self.watch_with(cursor, WatchOptions(explicit=explicit))

    def watch_with(self, cursor: Path | str | None, manner: WatchOptions) -> AsyncGenerator[Any, None]:
        return self.iterate_flow(changes_flow(self._session, None if cursor is None else Path(cursor), manner))

    async def run_flow(self, talk: Flow[T]) -> T:
        """A talk that tells nothing on its way, from beginning to end."""
        run = FlowRunner(talk)
        with AsyncConnection() as line:
            while (move := run.next_effect()) is not None:
                await self._perform_effect(run, move, line)
        return run.result

    async def iterate_flow(self, talk: Flow[None]) -> AsyncGenerator[Any, None]:
        """What a talk tells, as it is told."""
        run = FlowRunner(talk)
        try:
            with AsyncConnection() as line:
                while (move := run.next_effect()) is not None:
                    if isinstance(move, YieldItem):
                        yield move.item
                    else:
                        await self._perform_effect(run, move, line)
        finally:
            run.close()

    async def _perform_effect(self, run: FlowRunner[T], move: Effect, line: AsyncConnection) -> None:
        try:
            match move:
                case SendRequest():
                    run.set_result(await line.send(move))
                case Sleep():
                    await self._sleep(move.seconds)
                case CallFunction():
                    run.set_result(await asyncio.to_thread(move.function))
        except Exception as error:  # the talk says what becomes of it
            run.set_error(error)
