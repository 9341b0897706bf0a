"""The blocking driver: does what talks ask for, one after the other. It decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from forewarn.client.change import Change
from forewarn.client.cursor import read_boot_id
from forewarn.client.discovery import Discovery
from forewarn.client.endpoint import Endpoint
from forewarn.client.event import Event
from forewarn.client.known import Known
from forewarn.client.line import Line
from forewarn.client.move import Do, Move, Pause, Run, Send, Talk, Tell
from forewarn.client.session import Session
from forewarn.client.watching import Manner, changes, documents
from forewarn.protocol.codec import Received

T = TypeVar("T")


class Client(Known):
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

    def documents(self) -> Generator[Received, None, None]:
        """The document now, then each one that differs from the last, for ever.

        Outages of any length are waited out; what asking again cannot mend (NotFound, Rejected) is raised.
        """
        return self.hear(documents(self._session))

    def watch(self, cursor: Path | str | None = None, *, explicit: bool = False) -> Generator[Change, None, None]:
        """Each change of each event, for ever, at least once: a change is handled when the next one is asked for, or by
        its done() (`explicit`: only so). What was not handled is told again by the next watch with the same cursor.
        """
        return self.follow(cursor, Manner(explicit=explicit))

    def follow(self, cursor: Path | str | None, manner: Manner) -> Generator[Any, None, None]:
        return self.hear(changes(self._session, None if cursor is None else Path(cursor), manner))

    def ask(self, talk: Talk[T]) -> T:
        """A talk that tells nothing on its way, from beginning to end."""
        run = Run(talk)
        with Line() as line:
            while (move := run.move()) is not None:
                self._perform(run, move, line)
        return run.result

    def hear(self, talk: Talk[None]) -> Generator[Any, None, None]:
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
