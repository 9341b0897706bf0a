"""Publishes scopes that a commit has changed: few at once, many in turns.

A commit of a whole fleet changes tens of thousands of scopes. Publishing them takes seconds of CPU time. Without turns
the event loop would answer no VM meanwhile, and send no heartbeat to workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

log = logging.getLogger(__name__)
_MAX_AT_ONCE = 100  # scopes; takes a few milliseconds
_TURN_S = 0.005  # real time
_RETRY_S = 1.0
_MAX_WAIT_S = 30.0


class PublishQueue:
    """Calls `publish(scope_id)` for changed scopes on the event loop: few at once, many in short turns.

    Waiting scopes are published once, in the order they were added; one that fails goes to the end.
    """

    def __init__(self, publish: Callable[[str], None]) -> None:
        self._publish = publish
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, scope_ids: Collection[str]) -> None:
        """Publish the scopes with these ids: up to 100 before it returns, more than 100 in the background.

        A few scopes do not wait for many that were added before. With at most 100 scopes an error of `publish` is
        raised; otherwise it is logged, and the scope is tried again.
        """
        if len(scope_ids) <= _MAX_AT_ONCE:
            for scope_id in scope_ids:
                self._publish(scope_id)
                self._waiting.pop(scope_id, None)
            return
        self._waiting.update(dict.fromkeys(scope_ids))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._publish_waiting())

    async def wait_until_empty(self) -> None:
        """Wait until no scope waits any more, but at most 30 s (real time); returns at once if none does."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_MAX_WAIT_S)

    async def close(self) -> None:
        """Stop publishing; scopes that still wait are not published. May be called again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._waiting.clear()

    async def _publish_waiting(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._publish_for_a_turn())
        finally:
            self._task = None

    def _publish_for_a_turn(self) -> float:
        """Publish waiting scopes for one turn, at least one; return the seconds to wait before the next turn."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + _TURN_S
        while self._waiting:
            scope_id = next(iter(self._waiting))
            del self._waiting[scope_id]
            try:
                self._publish(scope_id)
            except Exception:
                log.exception("scope %s cannot be published now, trying again", scope_id)
                self._waiting[scope_id] = None
                return _RETRY_S
            if clock() >= ends_at:
                break
        return 0.0
