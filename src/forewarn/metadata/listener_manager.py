"""The porter keeps entrances open: each as soon as what it stands on is there, and again when that was made anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.doorbell import Doorbell
from forewarn.metadata.entrance import Entrance, Opened, open_entrance
from forewarn.metadata.listener import Listener

log = logging.getLogger(__name__)
_LOOKS_EVERY_S = 1.0  # nobody rings for what happens in other namespaces
_PAUSE_S = 0.02  # a device comes with several rings


@dataclass(frozen=True, slots=True)
class Found:
    """What one look changed at an entrance."""

    entrance: Entrance
    listener: Listener | None  # None: it is shut
    before: Listener | None = None  # dead now; whoever serves it closes it


class Porter:
    def __init__(self, entrances: Iterable[Entrance], *, shared: bool = False) -> None:
        self._entrances = tuple(entrances)
        self._shared = shared
        self._open: dict[Entrance, Opened] = {}
        self._waits: dict[Entrance, str] = {}

    @property
    def waits(self) -> dict[Entrance, str]:
        """Entrances that are shut, each with what it waits for."""
        return dict(self._waits)

    def open_first(self) -> list[Found]:
        """The first look. What is not there yet is waited for; what can never be stops the start."""
        for entrance in self._entrances:
            try:
                self._try(entrance)
            except (Unavailable, Rejected) as error:
                if entrance.waits and isinstance(error, Unavailable):
                    self._wait(entrance, str(error))
                    continue
                self.close()
                raise Rejected(f"cannot listen on {entrance.name}: {error}") from error
        return [Found(entrance, opened.listener) for entrance, opened in self._open.items()]

    def close(self) -> None:
        """For one whose listeners nobody serves."""
        for opened in self._open.values():
            opened.listener.close()

    def turn(self) -> list[Found]:
        """Look at every entrance, and open what can be opened now."""
        found = (self._look(entrance) for entrance in self._entrances)
        return [change for change in found if change is not None]

    async def run(self, tell: Callable[[Found], None]) -> None:
        """Keep looking: when the kernel says that something changed, and every second."""
        doorbell = Doorbell()
        try:
            while True:
                await doorbell.wait(_LOOKS_EVERY_S)
                await asyncio.sleep(_PAUSE_S)
                for change in self.turn():
                    tell(change)
        finally:
            doorbell.close()

    def _look(self, entrance: Entrance) -> Found | None:
        opened = self._open.get(entrance)
        if opened is not None and opened.is_current:
            return None
        self._open.pop(entrance, None)
        try:
            self._try(entrance)
        except (Unavailable, Rejected) as error:
            self._wait(entrance, str(error))
        now, before = self._open.get(entrance), opened.listener if opened else None
        if now is None and before is None:
            return None
        return Found(entrance, now.listener if now else None, before)

    def _try(self, entrance: Entrance) -> None:
        self._open[entrance] = open_entrance(entrance, shared=self._shared)
        if self._waits.pop(entrance, None):
            log.warning("listening on %s now", entrance.name)

    def _wait(self, entrance: Entrance, why: str) -> None:
        if self._waits.get(entrance) != why:
            log.warning("not listening on %s yet: %s; waiting for it", entrance.name, why)
        self._waits[entrance] = why
