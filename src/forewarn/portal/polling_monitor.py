"""Watches which VMs start or stop polling for events while a page is open.

The metadata server reports a VM that starts. A VM counts as silent after `SILENT_S` without a poll, so each polling
VM is checked about once in that time, in batches. Uses real time, not lab time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence

from forewarn.explain.polling import SILENCE_LIMIT_S
from forewarn.web.dependencies import Dependencies

CHECK_INTERVAL_S = 1.0  # of real time, between two looks at those who could be silent
IDLE_GRACE_S = 60.0  # for whoever goes from one page to another, with nobody looking in between
PAGE_LAG_S = 5.0  # what pages show is at most so much older than they know
MAX_CHANGED_SCOPES = 2_000  # that are told one by one, and remembered
_BATCH_SIZE = 2_000  # VMs

ChangedScopes = frozenset[str] | None  # where somebody began to ask or fell silent; None: it may be anywhere


class PollingMonitor:
    """Begins when somebody looks; ends a little after nobody does any more."""

    def __init__(self, dependencies: Dependencies, tell: Callable[[], None]) -> None:
        self._dependencies = dependencies
        self._notify = tell
        self._unsubscribe: Callable[[], None] | None = None  # while it lasts
        self._task: asyncio.Task[None] | None = None
        self._reset_timer: asyncio.TimerHandle | None = None
        self._scheduled_vms: set[str] = set()  # keys of the VMs that ask
        self._checks_by_second: dict[
            int, list[str]
        ] = {}  # the same by the second in which they could have become silent
        self._unchecked_vms: list[str] | None = None  # VMs that were never looked at; None: all
        self._changed_at: dict[str, float] = {}  # scope → when something was last told of it; the oldest first
        self._complete_since = math.inf  # since when all is remembered
        self._new_changes: dict[str, None] = {}  # scopes that are not told yet

    def start(self) -> None:
        if self._reset_timer is not None:
            self._reset_timer.cancel()
        self._new_changes.clear()  # nobody looked meanwhile, and whoever comes is told what they missed
        if self._unsubscribe is None:
            self._unsubscribe, self._complete_since = (
                self._dependencies.subscribe_polling(self._on_polling_started),
                _loop_time(),
            )
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._reset_timer = asyncio.get_running_loop().call_later(IDLE_GRACE_S, self._reset)

    def take_changes(self) -> ChangedScopes:
        """Where something has changed since the last time."""
        fresh, self._new_changes = self._new_changes, {}
        return frozenset(fresh) if len(fresh) <= MAX_CHANGED_SCOPES else None

    def changes_within(self, age_s: float) -> ChangedScopes:
        """Where something has changed in the time that a page is old."""
        since = _loop_time() - age_s - PAGE_LAG_S
        if since <= self._complete_since:
            return None
        return frozenset(scope_id for scope_id, at in self._changed_at.items() if at >= since)

    def _reset(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._unsubscribe, self._reset_timer, self._unchecked_vms = None, None, None
        self._scheduled_vms, self._checks_by_second, self._changed_at, self._new_changes = set(), {}, {}, {}

    async def _run(self) -> None:
        """May be broken off wherever it waits, and goes on with the next who looks."""
        if self._unchecked_vms is None:
            self._unchecked_vms = self._dependencies.control.placement.vm_keys()
        async for key in _pop_in_batches(self._unchecked_vms):
            self._schedule_check(key)
        while True:
            for second in sorted(second for second in self._checks_by_second if second <= _loop_time()):
                async for key in _pop_in_batches(self._checks_by_second[second]):
                    self._scheduled_vms.discard(key)
                    if not self._schedule_check(key):
                        self._record_change(key)
                del self._checks_by_second[second]
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _schedule_check(self, key: str) -> bool:
        """Look at this VM again when it could be silent; False: it is."""
        pace = self._dependencies.pace_of(key)
        if pace is None or pace.is_silent:
            return False
        if key not in self._scheduled_vms:
            self._scheduled_vms.add(key)
            self._checks_by_second.setdefault(
                math.ceil(_loop_time() + max(SILENCE_LIMIT_S - pace.silent_s, CHECK_INTERVAL_S)), []
            ).append(key)
        return True

    def _on_polling_started(self, begun: Sequence[str]) -> None:
        for key in begun:
            self._schedule_check(key)
            self._record_change(key)

    def _record_change(self, key: str) -> None:
        try:
            scope_id = self._dependencies.control.placement.scope_of(key)
        except KeyError:
            return  # a VM that was never placed: no page shows it
        self._changed_at.pop(scope_id, None)
        self._changed_at[scope_id] = _loop_time()
        if len(self._changed_at) > MAX_CHANGED_SCOPES:
            self._complete_since = self._changed_at.pop(next(iter(self._changed_at)))
        if len(self._new_changes) <= MAX_CHANGED_SCOPES:
            self._new_changes[scope_id] = None
        self._notify()


def _loop_time() -> float:
    """Real time: silence is no matter of a lab's clock."""
    return asyncio.get_running_loop().time()


async def _pop_in_batches(keys: list[str]) -> AsyncIterator[str]:
    """In stretches, so that nobody else waits; who breaks it off leaves the others on the list."""
    while keys:
        for _ in range(min(len(keys), _BATCH_SIZE)):
            yield keys.pop()
        await asyncio.sleep(0)
