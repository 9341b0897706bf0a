"""Watches which VMs start or stop polling for events while a page is open.

The metadata server reports a VM that starts. A VM counts as silent after `SILENCE_LIMIT_S` without a poll, so each
polling VM is checked about once in that time, in batches. Uses real time, not lab time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence

from forewarn.core.explain.polling import SILENCE_LIMIT_S
from forewarn.web.dependencies import Dependencies

CHECK_INTERVAL_S = 1.0  # of real time, between two checks of VMs that may have stopped polling
IDLE_GRACE_S = 60.0  # with no page open, until the monitor forgets everything: a user may be between two pages
PAGE_LAG_S = 5.0  # by which a page may be older than it says
MAX_CHANGED_SCOPES = 2_000  # in one update, and remembered
_BATCH_SIZE = 2_000  # VMs checked before other tasks run

ChangedScopes = frozenset[str] | None  # ids of scopes in which a VM started or stopped polling; None: any scope


class PollingMonitor:
    """Notes the scopes in which VMs start or stop polling for events, from `start` on, for open pages."""

    def __init__(self, dependencies: Dependencies, on_change: Callable[[], None]) -> None:
        self._dependencies = dependencies
        self._notify = on_change
        self._unsubscribe: Callable[[], None] | None = None  # None while the monitor is stopped
        self._task: asyncio.Task[None] | None = None
        self._reset_timer: asyncio.TimerHandle | None = None
        self._scheduled_vms: set[str] = set()  # keys of polling VMs
        self._checks_by_second: dict[int, list[str]] = {}  # the same, by the second in which they may be silent
        self._unchecked_vms: list[str] | None = None  # keys that were never checked; None: all
        self._changed_at: dict[str, float] = {}  # scope id → time of its last change; the oldest first
        self._complete_since = math.inf  # `_changed_at` holds every change since then
        self._new_changes: dict[str, None] = {}  # ids of scopes that `take_changes` has not returned yet

    def start(self) -> None:
        """Start to check, in a task, or continue within the grace period. Call it when the first page opens."""
        if self._reset_timer is not None:
            self._reset_timer.cancel()
        self._new_changes.clear()  # a new page asks for what it missed with `changes_within`
        if self._unsubscribe is None:
            self._unsubscribe, self._complete_since = (
                self._dependencies.subscribe_polling(self._on_polling_started),
                _loop_time(),
            )
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop checking, and forget everything after 60 real seconds, unless `start` is called before."""
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._reset_timer = asyncio.get_running_loop().call_later(IDLE_GRACE_S, self._reset)

    def take_changes(self) -> ChangedScopes:
        """Return and drop the ids of the scopes in which VMs started or stopped polling since the last call."""
        changes, self._new_changes = self._new_changes, {}
        return frozenset(changes) if len(changes) <= MAX_CHANGED_SCOPES else None

    def changes_within(self, age_s: float) -> ChangedScopes:
        """Return the ids of the scopes in which VMs started or stopped polling within `age_s` + 5 seconds."""
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
        pace = self._dependencies.pace_of(key)
        if pace is None or pace.is_silent:
            return False
        if key not in self._scheduled_vms:
            self._scheduled_vms.add(key)
            self._checks_by_second.setdefault(
                math.ceil(_loop_time() + max(SILENCE_LIMIT_S - pace.counted_s, CHECK_INTERVAL_S)), []
            ).append(key)
        return True

    def _on_polling_started(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._schedule_check(key)
            self._record_change(key)

    def _record_change(self, key: str) -> None:
        try:
            scope_id = self._dependencies.control.placement.scope_of(key)
        except KeyError:
            return  # it was removed, and no page shows it
        self._changed_at.pop(scope_id, None)
        self._changed_at[scope_id] = _loop_time()
        if len(self._changed_at) > MAX_CHANGED_SCOPES:
            self._complete_since = self._changed_at.pop(next(iter(self._changed_at)))
        if len(self._new_changes) <= MAX_CHANGED_SCOPES:
            self._new_changes[scope_id] = None
        self._notify()


def _loop_time() -> float:
    """Real time, in which clients poll; the lab clock does not count."""
    return asyncio.get_running_loop().time()


async def _pop_in_batches(keys: list[str]) -> AsyncIterator[str]:
    """Pops keys off the list, lets other tasks run after each batch; if cancelled, the rest stays."""
    while keys:
        for _ in range(min(len(keys), _BATCH_SIZE)):
            yield keys.pop()
        await asyncio.sleep(0)
