"""Who wants to hear of commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from forewarn.store.seam import Committed

Hear = Callable[[Committed], None]


class Subscribers:
    """Told of every commit in turn. One that raises is reported to the loop and keeps nobody waiting."""

    def __init__(self) -> None:
        self._hears: list[Hear] = []

    def add(self, hear: Hear) -> Callable[[], None]:
        """Start telling `hear`; what is returned stops it, once or more often."""
        self._hears.append(hear)

        def stop() -> None:
            self._hears = [h for h in self._hears if h is not hear]

        return stop

    def tell(self, committed: Committed) -> None:
        for hear in tuple(self._hears):
            try:
                hear(committed)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a subscriber failed on commit {committed.seq}", "exception": error}
                )
