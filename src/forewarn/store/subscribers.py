"""Notifies listeners of every commit, in commit order. Shared by both implementations of `Store`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from forewarn.store.interface import AppliedCommit

CommitListener = Callable[[AppliedCommit], None]  # must not block


class CommitSubscribers:
    """The listeners of one store. An error of one is reported to the event loop; the others still run."""

    def __init__(self) -> None:
        self._listeners: list[CommitListener] = []

    def add(self, listener: CommitListener) -> Callable[[], None]:
        """Add a listener for later commits; return a function that removes it; calling that twice is harmless."""
        self._listeners.append(listener)

        def stop() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return stop

    def notify(self, applied: AppliedCommit) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(applied)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a subscriber failed on commit {applied.seq}", "exception": error}
                )
