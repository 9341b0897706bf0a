"""The asyncio driver: does what talks ask for, awaiting. It decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from forewarn.client.async_line import Line
from forewarn.client.change import Change
from forewarn.client.cursor import read_boot_id
from forewarn.client.discovery import Discovery
from forewarn.client.endpoint import Endpoint
from forewarn.client.event import Event
from forewarn.client.known import Known
from forewarn.client.move import Do, Move, Pause, Run, Send, Talk, Tell
from forewarn.client.session import Session
from forewarn.client.watching import Manner, changes, documents
from forewarn.protocol.codec import Received

T = TypeVar("T")


class AsyncClient(Known):
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
        self._session = Session(endpoint, version=version, discovery=discovery, boot_id=boot_id, clock=clock)
        self._sleep = sleep

    async def discover(self) -> Endpoint:
        """Where the service is; looked for once (spec §2.5)."""
        return await self.ask(self._session.discover())

    async def events(self) -> Received:
        """The document as it is now."""
        return await self.ask(self._session.events())

    async def mine(self) -> tuple[Event, ...]:
        """The events that list this VM."""
        return await self.ask(self._session.mine())

    async def name(self) -> str:
        """This VM's name, as the `resources` of events spell it."""
        return await self.ask(self._session.name())

    async def approve(self, *events: Event | str) -> None:
        """Let these events, or those with these ids, start early; harmless when repeated (spec §5.2)."""
        await self.ask(self._session.approve(events))

    def time_left(self, event: Event) -> float | None:
        """Seconds until nothing protects from this event any more, by the service's time; None if that is unknown."""
        return self._session.time_left(event)

    def documents(self) -> AsyncGenerator[Received, None]:
        """The document now, then each one that differs from the last, for ever; as `Client.documents`."""
        return self.hear(documents(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> AsyncGenerator[Change, None]:
        """Each change of each event, for ever, at least once; as `Client.watch`."""
        return self.follow(cursor, Manner(explicit=explicit))

    def follow(self, cursor: Path | str | None, manner: Manner) -> AsyncGenerator[Any, None]:
        return self.hear(changes(self._session, None if cursor is None else Path(cursor), manner))

    async def ask(self, talk: Talk[T]) -> T:
        """A talk that tells nothing on its way, from beginning to end."""
        run = Run(talk)
        with Line() as line:
            while (move := run.move()) is not None:
                await self._perform(run, move, line)
        return run.result

    async def hear(self, talk: Talk[None]) -> AsyncGenerator[Any, None]:
        """What a talk tells, as it is told."""
        run = Run(talk)
        try:
            with Line() as line:
                while (move := run.move()) is not None:
                    if isinstance(move, Tell):
                        yield move.news
                    else:
                        await self._perform(run, move, line)
        finally:
            run.close()

    async def _perform(self, run: Run[T], move: Move, line: Line) -> None:
        try:
            match move:
                case Send():
                    run.came(await line.send(move))
                case Pause():
                    await self._sleep(move.s)
                case Do():
                    run.came(await asyncio.to_thread(move.call))
        except Exception as error:  # the talk says what becomes of it
            run.failed(error)
