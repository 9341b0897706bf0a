"""The agent as a whole: hears, decides, acts. One `turn` makes all moves that are due; a small loop takes turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from forewarn.agent.approval import BoardView
from forewarn.agent.board import Board
from forewarn.agent.config import Config
from forewarn.agent.decision import next_moves
from forewarn.agent.folder import forget_others
from forewarn.agent.journal import Journal
from forewarn.agent.keeper import Keeper
from forewarn.agent.move import Close, Move, Settle, Situation, Wait, made
from forewarn.agent.observer import Observer, Unobserved, shielded
from forewarn.agent.report import Report, events_of, problems_of
from forewarn.agent.runner import Runner
from forewarn.agent.servertime import ServerTime
from forewarn.agent.setting import Setting
from forewarn.agent.sight import outlived, reconsidered, sighted
from forewarn.agent.telling import tell_seen, tell_settled
from forewarn.agent.watcher import AGAIN_S, Watcher, mend
from forewarn.client import AsyncClient, Change
from forewarn.client.cursor import read_boot_id
from forewarn.client.exchange import HOLD_S
from forewarn.clock import Clock
from forewarn.errors import ForewarnError

LOG = logging.getLogger("forewarn.agent")
NAME_S = 5.0  # for the answer to a question that was answered before: a Preempt gives 30 s only (spec §6.3)


class Daemon:
    """One agent, made on a running loop. `run` it; `stop` lets it end."""

    def __init__(
        self,
        config: Config,
        *,
        client: AsyncClient | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        boot_id: str | None = None,
        hold_s: float = HOLD_S,
    ) -> None:
        self._config, self._client = config, client or AsyncClient(config.endpoint)
        self._observer = shielded(observer or Unobserved())
        self._setting = Setting(
            vm=config.vm,
            boot_id=read_boot_id() if boot_id is None else boot_id,
            clock=clock or ServerTime(lambda: self._client.now),
            folders=config.folders,
            steps=config.steps,
            rules=config.rules,
        )
        self._rules = {rule.name: rule for rule in config.rules}
        self._stopping, self._woken, self._answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._waits: tuple[Wait, ...] = ()
        self._trouble, self._endpoint = "", config.endpoint or ""
        self._keeper: Keeper | None = None
        self._journal = Journal(config.journal)
        self._runner = Runner(self._setting, self._journal, self._client, self._observer, self._changed)
        self._watcher = Watcher(
            self._client, config.cursor, self._observer, hear=self.hear, polled=self._polled, hold_s=hold_s
        )

    async def run(self) -> None:
        """Until `stop`. Steps under way have a grace then; what is not done stands as begun, and is found so."""
        try:
            async with asyncio.TaskGroup() as group:
                work = group.create_task(self._live())
                await self._stopping.wait()
                work.cancel()
            await self._runner.wind_up(self._config.grace_s)
        except ExceptionGroup as several:
            raise _first(several) from several
        finally:
            await self._close()

    async def once(self) -> None:
        """Look once, do what is due, and end."""
        try:
            await self._prepare(patient=False)
            await self._watcher.watch(once=True)
            if self._keeper is not None:
                await self._keeper.look()
            self.turn()
            while self._runner.busy:
                self._woken.clear()
                await self._woken.wait()
                self.turn()
        finally:
            await self._close()

    def stop(self) -> None:
        self._stopping.set()

    def hear(self, change: Change) -> None:
        """Journal a change; when this returns it is durable."""
        setting, now = self._setting, self._setting.clock.now()
        record = sighted(
            self._journal.book,
            change,
            rules=setting.rules,
            vm=setting.vm,
            now=now,
            boot_id=setting.boot_id,
            rounds=self._journal.rounds,
        )
        if record is not None:
            is_new = self._journal.book.get(record.key) is None
            self._journal.put(record)
            tell_seen(self._observer, record, is_new=is_new, vm=setting.vm, now=now)
            self._woken.set()

    def turn(self) -> float | None:
        """Make every move that is due; when the next one will be, None if that is for others to say."""
        moves = self._make_moves()
        while any(isinstance(move, Settle | Close) for move in moves):  # each ends something for good
            moves = self._make_moves()
        self._waits = tuple(move for move in moves if isinstance(move, Wait))
        return min((wait.until for wait in self._waits if wait.until is not None), default=None)

    def situation(self) -> Situation:
        return Situation(
            book=self._journal.book,
            rules=self._rules,
            steps=self._setting.steps,
            vm=self._setting.vm,
            now=self._setting.clock.now(),
            boot_id=self._setting.boot_id,
            busy=self._runner.busy,
            board=self._keeper.view if self._keeper is not None else BoardView(),
        )

    def state(self) -> Report:
        now, answered_at = self.situation(), self._client.answered_at
        board = self._keeper.trouble if self._keeper is not None else ""
        troubles = tuple(text for text in (self._watcher.trouble, self._trouble, board) if text)
        return Report(
            endpoint=self._endpoint,
            vm=now.vm,
            boot_id=now.boot_id,
            now=now.now,
            silent_s=None if answered_at is None else asyncio.get_running_loop().time() - answered_at,
            problems=(*troubles, *problems_of(now.book)),
            events=events_of(now),
            waits=tuple((wait.key, wait.why) for wait in self._waits),
        )

    async def _live(self) -> None:
        await self._prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watcher.run())
            group.create_task(self._take_turns())
            if self._keeper is not None:
                group.create_task(self._keeper.run())

    async def _prepare(self, *, patient: bool = True) -> None:
        self._journal.prune()
        forget_others(self._config.folders, (record.key for record in self._journal.records()))
        self._setting.vm = await self._name(patient=patient)
        self._reconsider()
        mend(self._config.cursor, self._journal, self._setting.boot_id)
        if self._config.board is not None:
            board = Board(self._config.board, self._setting.vm)
            self._keeper = Keeper(board, self.situation, self._woken.set)

    def _reconsider(self) -> None:
        """The file may have changed since these events were seen."""
        for record in self._journal.book:
            after = reconsidered(record, rules=self._setting.rules, vm=self._setting.vm)
            if after is not None:
                LOG.info("%s %s, rule %r now", after.event.kind, after.key, after.rule)
                self._journal.put(after)

    async def _name(self, *, patient: bool) -> str:
        """Whose agent this is: as configured, as the endpoint says, or as it said the last time."""
        if self._setting.vm:
            return self._setting.vm
        known = self._journal.recall("vm")
        while True:
            try:
                async with asyncio.timeout(None if known is None else NAME_S):
                    self._endpoint = str(await self._client.discover())
                    name = await self._client.name()
            except (ForewarnError, TimeoutError) as error:
                if known is not None:
                    return str(known)
                if not patient:
                    raise
                self._trouble = f"this VM's name is not known yet: {error}"
                LOG.warning("%s", self._trouble)
                self._observer.failed(self._trouble)
                await asyncio.sleep(AGAIN_S)
            else:
                self._trouble = ""
                if name != known:
                    self._journal.remember("vm", name)
                return name

    async def _take_turns(self) -> None:
        await self._answered.wait()  # before that nobody knows what time it is, nor what is listed
        while True:
            self._woken.clear()
            try:
                until, self._trouble = self.turn(), ""
            except ForewarnError as error:
                LOG.error("%s", error)
                until, self._trouble = self._setting.clock.now() + AGAIN_S, str(error)
            await self._sleep(until)

    async def _sleep(self, until: float | None) -> None:
        works: list[Coroutine[Any, Any, Any]] = [self._woken.wait()]
        if until is not None:
            works.append(self._setting.clock.sleep_until(until))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        await self._runner.wind_up(0.0)
        self._journal.close()

    def _make_moves(self) -> tuple[Move, ...]:
        moves = next_moves(self.situation())
        for move in moves:
            self._make(move)
        return moves

    def _make(self, move: Move) -> None:
        """The journal first, then the world."""
        record = self._journal.book.get(move.key)
        assert record is not None, "a move is about an open event"
        after = made(record, move, now=self._setting.clock.now(), boot_id=self._setting.boot_id)
        if after != record:
            self._journal.put(after)
        if isinstance(move, Settle):
            tell_settled(self._observer, record, move, self._setting.steps)
        if isinstance(move, Close):
            self._journal.prune()
        self._runner.start(move)

    def _changed(self) -> None:
        self._woken.set()
        if self._keeper is not None:
            self._keeper.poke()

    def _polled(self) -> None:
        """Time may have jumped: look again."""
        for record in self._journal.book:
            if (after := outlived(record, self._setting.boot_id)) is not None:
                self._journal.put(after)
        self._answered.set()
        self._woken.set()


def _first(several: ExceptionGroup[Exception]) -> Exception:
    """What is wrong, without the tasks that it was found in."""
    error = several.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
