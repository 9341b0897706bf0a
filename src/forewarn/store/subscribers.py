"""Calls listeners after every commit, in commit order. Shared by both implementations of `Store`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from forewarn.store.interface import AppliedCommit

CommitListener = Callable[[AppliedCommit], None]


class CommitSubscribers:
    """Told of every commit in turn. One that raises is reported to the loop and keeps nobody waiting."""

    def __init__(self) -> None:
        self._listeners: list[CommitListener] = []

    def add(self, hear: CommitListener) -> Callable[[], None]:
        """Start telling `hear`; what is returned stops it, once or more often."""
        self._listeners.append(hear)

        def stop() -> None:
            self._listeners = [h for h in self._listeners if h is not hear]

        return stop

    def notify(self, committed: AppliedCommit) -> None:
        for hear in tuple(self._listeners):
            try:
                hear(committed)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a subscriber failed on commit {committed.seq}", "exception": error}
                )
