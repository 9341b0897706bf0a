"""Keeps the board: shows every few seconds what this agent has to show, and remembers what others do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from forewarn.agent.approval import BoardView
from forewarn.agent.board import BEAT_S, Board
from forewarn.agent.decision import is_ready
from forewarn.agent.record import Book, Record
from forewarn.agent.value import Rule, When
from forewarn.client.event import key_of

LOG = logging.getLogger("forewarn.agent")


class Keeper:
    def __init__(self, board: Board, rules: Mapping[str, Rule], book: Callable[[], Book], changed: Callable[[], None]):
        self._board, self._rules, self._book, self._changed = board, rules, book, changed
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
        shared = [record for record in self._book() if self._is_shared(record)]
        shown = {key_of(record.event) for record in shared}
        ready = {key_of(record.event) for record in shared if is_ready(record)}
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

    def _is_shared(self, record: Record) -> bool:
        rule = self._rules.get(record.rule)
        return record.gone_at is None and rule is not None and rule.approve.when is When.ALL_DONE

    def _say(self, why: str) -> None:
        if why != self.trouble:
            LOG.error("%s", why)
        self.trouble = why
