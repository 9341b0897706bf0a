"""The agent's main loop: record changes, decide, act. A reconcile pass takes every due action.

Event times are compared with the server's time (spec §12): its latest Date plus what has passed since. In a lab that
time can jump, so sleepers check it again after every answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from forewarn.agent.actions import AgentAction, AgentSnapshot, CloseEvent, RecordStepEnd, WaitUntil, record_after_action
from forewarn.agent.approval import BoardView
from forewarn.agent.config import AgentConfig
from forewarn.agent.decision import next_actions
from forewarn.agent.event_tracking import record_after_reboot, record_under_new_rules, records_after_changes
from forewarn.agent.journal import AgentJournal
from forewarn.agent.reactions.processes import end_all_orphan_processes
from forewarn.agent.readiness_board import BoardSynchronizer, ReadinessBoard
from forewarn.agent.reporting import (
    AgentObserver,
    NullObserver,
    report_event_change,
    report_step_end,
    with_errors_logged,
)
from forewarn.agent.runner import (
    ActionRunner,
    AgentContext,
    keys_with_step_folders,
    remove_stale_step_folders,
    set_step_folders_aside,
)
from forewarn.agent.status import AgentReport, events_with_schedule, open_problems
from forewarn.agent.watcher import RETRY_S, EventWatcher, repair_cursor
from forewarn.base.clock import Clock, read_real_time
from forewarn.client import AsyncClient, Change
from forewarn.client.cursor import read_boot_id
from forewarn.client.requests import LONG_POLL_S
from forewarn.errors import ForewarnError, Rejected, Unavailable

MAX_SLEEP_S = 1.0  # the server's time may jump, so sleepers look at it this often


class ServerClock:
    """A `Clock` that follows the server's time; this machine's own until the server has given one."""

    def __init__(
        self, server_time: Callable[[], float | None], *, local_time: Callable[[], float] = read_real_time
    ) -> None:
        self._server_time, self._local_time = server_time, local_time

    def now(self) -> float:
        """Return the server's time in POSIX seconds; this machine's time before the server's first answer."""
        server_time = self._server_time()
        return self._local_time() if server_time is None else server_time

    async def sleep_until(self, at: float | None) -> None:
        # It looks at the time at least every second, so it ends soon even if the server's time jumps.
        while at is None or self.now() < at:
            await asyncio.sleep(MAX_SLEEP_S if at is None else min(MAX_SLEEP_S, at - self.now()))


LOG = logging.getLogger("forewarn.agent")
_FIXED_SETTINGS = ("endpoint", "vm", "state", "listen", "board")  # of AgentConfig; only a restart changes them
VM_NAME_TIMEOUT_S = 5.0  # if the name is already in the journal: a Preempt gives only 30 s (spec §6.3)


class AgentDaemon:
    """One agent. Create it on a running event loop, await `run` or `run_once` once; `stop` ends `run`."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        client: AsyncClient | None = None,
        observer: AgentObserver | None = None,
        clock: Clock | None = None,
        boot_id: str | None = None,
        hold_s: float = LONG_POLL_S,
        open_journal: Callable[[Path], AgentJournal] | None = None,
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
        open_journal = open_journal or partial(AgentJournal, config_file=config.file)
        self._journal = open_journal(config.journal_path)
        self._runner = ActionRunner(self._context, self._journal, self._client, self._observer, self._on_runner_change)
        self._watcher = EventWatcher(
            self._client,
            config.cursor_path,
            self._observer,
            on_changes=self._record_changes,
            on_poll=self._on_poll,
            hold_s=hold_s,
        )

    async def run(self) -> None:
        """Watch for events and act on them until `stop` is called, then close the journal.

        Before the endpoint's first answer it takes no action, not even an undo. At the end running steps get the grace
        period; unfinished ones stay journalled as begun. It waits out outages of the endpoint and, after the start, of
        the disk.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = group.create_task(self._run_tasks())
                await self._stopping.wait()
                tasks.cancel()
            await self._runner.shut_down(self._config.grace_s)
        except ExceptionGroup as group_error:
            raise _first_error(group_error) from group_error
        finally:
            await self._close()

    async def run_once(self) -> None:
        """Poll the endpoint until one answer, run what is due, and return when no task runs any more.

        Steps that are due later, or wait for other VMs, are left to the next run.
        """
        try:
            await self._prepare(retry=False)
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
        """Make `run` end, and return at once; `run` first gives running steps the grace period."""
        self._stopping.set()

    def reload(self, config: AgentConfig) -> None:
        """Use the rules, steps and grace period of a new configuration from now on, and wake the main loop.

        A running step continues as it began. Known events keep the name of their rule, with its new settings for
        approval and undo, and the steps planned for them. Rejected, and nothing changed, if it differs in a setting
        that only a restart can change.
        """
        fixed = [name for name in _FIXED_SETTINGS if getattr(config, name) != getattr(self._config, name)]
        if fixed:
            raise Rejected(f"{' and '.join(fixed)} cannot change while the agent runs: restart it")
        old_config = self._config
        self._use_config(config)
        try:
            if self._context.vm:
                self._apply_new_rules()
        except Unavailable:
            self._use_config(old_config)
            raise
        self._woken.set()

    def _use_config(self, config: AgentConfig) -> None:
        self._config = config
        self._context.steps, self._context.rules = config.steps, config.rules
        self._rules = {rule.name: rule for rule in config.rules}

    def _record_changes(self, changes: Sequence[Change]) -> None:
        context, now = self._context, self._context.clock.now()
        known = {record.key for record in self._journal.open_records}
        records = records_after_changes(
            self._journal.open_records,
            changes,
            rules=context.rules,
            vm=context.vm,
            now=now,
            boot_id=context.boot_id,
            count_records=self._journal.count_records,
        )
        if not records:
            return
        self._journal.save(*records)
        for record in records:
            report_event_change(self._observer, record, is_new=record.key not in known, vm=context.vm, now=now)
            known.add(record.key)
        self._woken.set()

    def reconcile(self) -> float | None:
        """Journal and take every action that is due; return the server time of the next one in POSIX seconds."""
        # None if only a change of an event or the end of a task can cause one. Starts tasks and does not wait for them.
        actions = self._take_next_actions()
        # Each of these may allow further actions.
        while any(isinstance(action, RecordStepEnd | CloseEvent) for action in actions):
            actions = self._take_next_actions()
        self._waits = tuple(action for action in actions if isinstance(action, WaitUntil))
        return min((wait.until for wait in self._waits if wait.until is not None), default=None)

    def snapshot(self) -> AgentSnapshot:
        """Return what decisions are based on, as of now: open records, configuration, time, tasks and board."""
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
        """Return the agent's state now, for people: endpoint, problems, open events, and their waits."""
        snapshot, answered_at = self.snapshot(), self._client.answered_at
        board = self._board_synchronizer.problem if self._board_synchronizer is not None else ""
        problems = tuple(text for text in (self._watcher.problem, self._problem, board) if text)
        return AgentReport(
            endpoint=self._endpoint,
            vm=snapshot.vm,
            boot_id=snapshot.boot_id,
            now=snapshot.now,
            silent_s=None if answered_at is None else asyncio.get_running_loop().time() - answered_at,
            problems=(*problems, *open_problems(snapshot.open_records)),
            events=events_with_schedule(snapshot),
            waits=tuple((wait.key, wait.reason) for wait in self._waits),
        )

    async def _run_tasks(self) -> None:
        await self._prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watcher.run())
            group.create_task(self._reconcile_loop())
            if self._board_synchronizer is not None:
                group.create_task(self._board_synchronizer.run())

    async def _prepare(self, *, retry: bool = True) -> None:
        # First, because a step with an unknown outcome must not still run while it is checked or the next one runs.
        await end_all_orphan_processes(self._config.step_folders)
        self._journal.prune()
        self._tidy_step_folders()
        self._context.vm = await self._find_vm_name(retry=retry)
        self._apply_new_rules()
        repair_cursor(self._config.cursor_path, self._journal, self._context.boot_id)
        if self._config.board is not None:
            board = ReadinessBoard(self._config.board, self._context.vm)
            self._board_synchronizer = BoardSynchronizer(board, self.snapshot, self._woken.set)

    def _tidy_step_folders(self) -> None:
        """Removes folders that no record needs; moves all aside if the journal is empty, because it was lost."""
        needed = (*self._journal.keys(), *keys_with_step_folders(self._journal.open_records))
        if needed:
            remove_stale_step_folders(self._config.step_folders, needed)
            return
        try:
            aside = set_step_folders_aside(self._config.step_folders, read_real_time())
        except OSError as error:
            LOG.error(
                "the step folders of a lost journal cannot be moved aside (%s): move them by hand", error.strerror
            )
            return
        if aside is not None:
            LOG.error("the journal is empty, but steps have run: undo them by hand, with the notes in %s", aside)

    def _apply_new_rules(self) -> None:
        """Applies the current rules to open events: the file may have changed since they were seen."""
        for record in self._journal.open_records:
            after = record_under_new_rules(record, rules=self._context.rules, vm=self._context.vm)
            if after is not None:
                LOG.info("%s %s, now under rule %r", after.event.kind, after.key, after.rule)
                self._journal.save(after)

    async def _find_vm_name(self, *, retry: bool) -> str:
        """This VM's name: as configured, as the endpoint says, or as it said last time."""
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
                if not retry:
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
        await self._first_answer.wait()  # before it, neither the time nor the listed events are known
        while True:
            self._woken.clear()
            try:
                until, self._problem = self.reconcile(), ""
            except ForewarnError as error:
                LOG.error("%s", error)
                until, self._problem = self._context.clock.now() + RETRY_S, str(error)
            await self._wait_until_due(until)

    async def _wait_until_due(self, until: float | None) -> None:
        waits: list[Coroutine[Any, Any, Any]] = [self._woken.wait()]
        if until is not None:
            waits.append(self._context.clock.sleep_until(until))
        tasks = [asyncio.create_task(wait) for wait in waits]
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
        actions = next_actions(self.snapshot())
        for action in actions:
            self._take_action(action)
        return actions

    def _take_action(self, action: AgentAction) -> None:
        record = self._journal.open_records.get(action.key)
        assert record is not None, "an action belongs to an open event"
        after = record_after_action(record, action, now=self._context.clock.now(), boot_id=self._context.boot_id)
        if after != record:
            self._journal.save(after)
        if isinstance(action, RecordStepEnd):
            report_step_end(self._observer, record, action, self._context.steps)
        if isinstance(action, CloseEvent):
            self._journal.prune()
        self._runner.start(action)

    def _on_runner_change(self) -> None:
        self._woken.set()
        if self._board_synchronizer is not None:
            self._board_synchronizer.wake()

    def _on_poll(self) -> None:
        """Wakes the loop after each answer, because the server's time may have jumped."""
        for record in self._journal.open_records:
            if (after := record_after_reboot(record, self._context.boot_id)) is not None:
                self._journal.save(after)
        self._first_answer.set()
        self._woken.set()


def _first_error(group_error: ExceptionGroup[Exception]) -> Exception:
    error = group_error.exceptions[0]
    return _first_error(error) if isinstance(error, ExceptionGroup) else error
