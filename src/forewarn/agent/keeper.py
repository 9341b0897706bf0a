"""Keeps the board: shows every few seconds what this agent has to show, and remembers what others do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from forewarn.agent.approval import BoardView
from forewarn.agent.board import BEAT_S, Board
from forewarn.agent.decision import is_ready
from forewarn.agent.move import Situation
from forewarn.agent.record import Record
from forewarn.agent.value import When
from forewarn.client.event import key_of

LOG = logging.getLogger("forewarn.agent")


class Keeper:
    def __init__(self, board: Board, situation: Callable[[], Situation], changed: Callable[[], None]) -> None:
        self._board, self._situation, self._changed = board, situation, changed
        self._poked = asyncio.Event()
        self._shown: set[str] = set()
        self.view = BoardView()
        self.trouble = ""

    def poke(self) -> None:
        """Something may be ready now."""
        self._poked.set()

    async def run(self) -> None:
        while True:
            self._poked.clear()
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):  # wait_for may swallow our end when it is poked at that moment
                    await self._poked.wait()

    async def look(self) -> None:
        now = self._situation()
        shared = [record for record in now.book if _is_shared(record, now)]
        shown = {key_of(record.event) for record in shared}
        ready = {key_of(record.event) for record in shared if is_ready(record, now)}
        try:
            view = await asyncio.to_thread(self._board.look, ready, shown)
            for id_ in self._shown - shown:
                await asyncio.to_thread(self._board.forget, id_)
        except OSError as error:
            self._say(f"the board cannot be used ({error.strerror or error}): others wait for this VM")
            return
        self._shown, self.trouble = shown, ""
        if shared and view != self.view:
            self.view = view
            self._changed()

    def _say(self, why: str) -> None:
        if why != self.trouble:
            LOG.error("%s", why)
        self.trouble = why


def _is_shared(record: Record, now: Situation) -> bool:
    rule = now.rules.get(record.rule)
    return record.gone_at is None and rule is not None and rule.approve.when is When.ALL_DONE
