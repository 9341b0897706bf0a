"""The agent's main loop: record changes, decide, act. A reconcile pass takes every due action.

Event times are compared with the server's time (spec §12): its latest Date plus what has passed since. In a lab that
time can jump, so sleepers check it again after every answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from forewarn.agent.actions import AgentAction, AgentSnapshot, CloseEvent, RecordStepEnd, WaitUntil, record_after_action
from forewarn.agent.approval import BoardView
from forewarn.agent.config import AgentConfig
from forewarn.agent.decision import next_actions
from forewarn.agent.event_tracking import record_after_change, record_after_reboot, record_under_new_rules
from forewarn.agent.journal import AgentJournal
from forewarn.agent.readiness_board import BoardSynchronizer, ReadinessBoard
from forewarn.agent.reporting import (
    AgentObserver,
    NullObserver,
    report_event_change,
    report_step_end,
    with_errors_logged,
)
from forewarn.agent.runner import ActionRunner, AgentContext, remove_stale_step_folders
from forewarn.agent.status import AgentReport, events_with_schedule, open_problems
from forewarn.agent.watcher import RETRY_S, EventWatcher, repair_cursor
from forewarn.client import AsyncClient, Change
from forewarn.client.cursor import read_boot_id
from forewarn.client.requests import LONG_POLL_S
from forewarn.clock import Clock, read_real_time
from forewarn.errors import ForewarnError

MAX_SLEEP_S = 1.0


class ServerClock:
    """A `Clock` over what a client was told; this machine's own time until the server tells its."""

    def __init__(self, told: Callable[[], float | None], *, own: Callable[[], float] = read_real_time) -> None:
        self._server_time, self._local_time = told, own

    def now(self) -> float:
        told = self._server_time()
        return self._local_time() if told is None else told

    async def sleep_until(self, at: float | None) -> None:
        while at is None or self.now() < at:
            await asyncio.sleep(MAX_SLEEP_S if at is None else min(MAX_SLEEP_S, at - self.now()))


LOG = logging.getLogger("forewarn.agent")
VM_NAME_TIMEOUT_S = 5.0  # for the answer to a question that was answered before: a Preempt gives 30 s only (spec §6.3)


class AgentDaemon:
    """One agent, made on a running loop. `run` it; `stop` lets it end."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        client: AsyncClient | None = None,
        observer: AgentObserver | None = None,
        clock: Clock | None = None,
        boot_id: str | None = None,
        hold_s: float = LONG_POLL_S,
    ) -> None:
        self._config, self._client = config, client or AsyncClient(config.endpoint)
        self._observer = with_errors_logged(observer or NullObserver())
        self._context = AgentContext(
            vm=config.vm,
            boot_id=read_boot_id() if boot_id is None else boot_id,
            clock=clock or ServerClock(lambda: self._client.now),
            step_folders=config.step_folders,
            steps=config.steps,
            rules=config.rules,
        )
        self._rules = {rule.name: rule for rule in config.rules}
        self._stopping, self._woken, self._first_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._waits: tuple[WaitUntil, ...] = ()
        self._problem, self._endpoint = "", config.endpoint or ""
        self._board_synchronizer: BoardSynchronizer | None = None
        self._journal = AgentJournal(config.journal_path)
        self._runner = ActionRunner(self._context, self._journal, self._client, self._observer, self._on_runner_change)
        self._watcher = EventWatcher(
            self._client,
            config.cursor_path,
            self._observer,
            hear=self.record_change,
            polled=self._on_poll,
            hold_s=hold_s,
        )

    async def run(self) -> None:
        """Until `stop`. Steps under way have a grace then; what is not done stands as begun, and is found so."""
        try:
            async with asyncio.TaskGroup() as group:
                work = group.create_task(self._run_tasks())
                await self._stopping.wait()
                work.cancel()
            await self._runner.shut_down(self._config.grace_s)
        except ExceptionGroup as several:
            raise _first_error(several) from several
        finally:
            await self._close()

    async def run_once(self) -> None:
        """Look once, do what is due, and end."""
        try:
            await self._prepare(patient=False)
            await self._watcher.watch(once=True)
            if self._board_synchronizer is not None:
                await self._board_synchronizer.synchronize()
            self.reconcile()
            while self._runner.running_tasks:
                self._woken.clear()
                await self._woken.wait()
                self.reconcile()
        finally:
            await self._close()

    def stop(self) -> None:
        self._stopping.set()

    def record_change(self, change: Change) -> None:
        """Journal a change; when this returns it is durable."""
        setting, now = self._context, self._context.clock.now()
        record = record_after_change(
            self._journal.open_records,
            change,
            rules=setting.rules,
            vm=setting.vm,
            now=now,
            boot_id=setting.boot_id,
            rounds=self._journal.count_records,
        )
        if record is not None:
            is_new = self._journal.open_records.get(record.key) is None
            self._journal.save(record)
            report_event_change(self._observer, record, is_new=is_new, vm=setting.vm, now=now)
            self._woken.set()

    def reconcile(self) -> float | None:
        """Make every move that is due; when the next one will be, None if that is for others to say."""
        moves = self._take_next_actions()
        while any(isinstance(move, RecordStepEnd | CloseEvent) for move in moves):  # each ends something for good
            moves = self._take_next_actions()
        self._waits = tuple(move for move in moves if isinstance(move, WaitUntil))
        return min((wait.until for wait in self._waits if wait.until is not None), default=None)

    def snapshot(self) -> AgentSnapshot:
        return AgentSnapshot(
            open_records=self._journal.open_records,
            rules=self._rules,
            steps=self._context.steps,
            vm=self._context.vm,
            now=self._context.clock.now(),
            boot_id=self._context.boot_id,
            running_tasks=self._runner.running_tasks,
            board=self._board_synchronizer.view if self._board_synchronizer is not None else BoardView(),
        )

    def report(self) -> AgentReport:
        now, answered_at = self.snapshot(), self._client.answered_at
        board = self._board_synchronizer.problem if self._board_synchronizer is not None else ""
        troubles = tuple(text for text in (self._watcher.problem, self._problem, board) if text)
        return AgentReport(
            endpoint=self._endpoint,
            vm=now.vm,
            boot_id=now.boot_id,
            now=now.now,
            silent_s=None if answered_at is None else asyncio.get_running_loop().time() - answered_at,
            problems=(*troubles, *open_problems(now.open_records)),
            events=events_with_schedule(now),
            waits=tuple((wait.key, wait.reason) for wait in self._waits),
        )

    async def _run_tasks(self) -> None:
        await self._prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watcher.run())
            group.create_task(self._reconcile_loop())
            if self._board_synchronizer is not None:
                group.create_task(self._board_synchronizer.run())

    async def _prepare(self, *, patient: bool = True) -> None:
        self._journal.prune()
        remove_stale_step_folders(self._config.step_folders, (record.key for record in self._journal.records()))
        self._context.vm = await self._find_vm_name(patient=patient)
        self._apply_new_rules()
        repair_cursor(self._config.cursor_path, self._journal, self._context.boot_id)
        if self._config.board is not None:
            board = ReadinessBoard(self._config.board, self._context.vm)
            self._board_synchronizer = BoardSynchronizer(board, self.snapshot, self._woken.set)

    def _apply_new_rules(self) -> None:
        """The file may have changed since these events were seen."""
        for record in self._journal.open_records:
            after = record_under_new_rules(record, rules=self._context.rules, vm=self._context.vm)
            if after is not None:
                LOG.info("%s %s, rule %r now", after.event.kind, after.key, after.rule)
                self._journal.save(after)

    async def _find_vm_name(self, *, patient: bool) -> str:
        """Whose agent this is: as configured, as the endpoint says, or as it said the last time."""
        if self._context.vm:
            return self._context.vm
        known = self._journal.load_value("vm")
        while True:
            try:
                async with asyncio.timeout(None if known is None else VM_NAME_TIMEOUT_S):
                    self._endpoint = str(await self._client.discover())
                    name = await self._client.name()
            except (ForewarnError, TimeoutError) as error:
                if known is not None:
                    return str(known)
                if not patient:
                    raise
                self._problem = f"this VM's name is not known yet: {error}"
                LOG.warning("%s", self._problem)
                self._observer.poll_failed(self._problem)
                await asyncio.sleep(RETRY_S)
            else:
                self._problem = ""
                if name != known:
                    self._journal.save_value("vm", name)
                return name

    async def _reconcile_loop(self) -> None:
        await self._first_answer.wait()  # before that nobody knows what time it is, nor what is listed
        while True:
            self._woken.clear()
            try:
                until, self._problem = self.reconcile(), ""
            except ForewarnError as error:
                LOG.error("%s", error)
                until, self._problem = self._context.clock.now() + RETRY_S, str(error)
            await self._wait_until_due(until)

    async def _wait_until_due(self, until: float | None) -> None:
        works: list[Coroutine[Any, Any, Any]] = [self._woken.wait()]
        if until is not None:
            works.append(self._context.clock.sleep_until(until))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        await self._runner.shut_down(0.0)
        self._journal.close()

    def _take_next_actions(self) -> tuple[AgentAction, ...]:
        moves = next_actions(self.snapshot())
        for move in moves:
            self._take_action(move)
        return moves

    def _take_action(self, move: AgentAction) -> None:
        """The journal first, then the world."""
        record = self._journal.open_records.get(move.key)
        assert record is not None, "a move is about an open event"
        after = record_after_action(record, move, now=self._context.clock.now(), boot_id=self._context.boot_id)
        if after != record:
            self._journal.save(after)
        if isinstance(move, RecordStepEnd):
            report_step_end(self._observer, record, move, self._context.steps)
        if isinstance(move, CloseEvent):
            self._journal.prune()
        self._runner.start(move)

    def _on_runner_change(self) -> None:
        self._woken.set()
        if self._board_synchronizer is not None:
            self._board_synchronizer.wake()

    def _on_poll(self) -> None:
        """Time may have jumped: look again."""
        for record in self._journal.open_records:
            if (after := record_after_reboot(record, self._context.boot_id)) is not None:
                self._journal.save(after)
        self._first_answer.set()
        self._woken.set()


def _first_error(several: ExceptionGroup[Exception]) -> Exception:
    """What is wrong, without the tasks that it was found in."""
    error = several.exceptions[0]
    return _first_error(error) if isinstance(error, ExceptionGroup) else error
