"""Changes that libvirt hosts report, for those who read all of them and for acts that wait for one VM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from forewarn.machines.libvirt.connection import DomainChange


class DomainChanges:
    """Passes on the changes that libvirt hosts report, to subscribers and to calls that wait for one VM."""

    def __init__(self) -> None:
        self._subscribers: set[asyncio.Queue[DomainChange]] = set()
        self._changed: set[tuple[str, str]] = set()  # (host, VM) in lower case, changed since it was last forgotten
        self._any_change = asyncio.Event()  # set and replaced at each change

    def report(self, change: DomainChange) -> None:
        """Pass a change on to all subscribers, and wake the calls of `wait_for` for its VM. Returns at once."""
        self.note(change.host, change.vm)
        for queue in self._subscribers:
            queue.put_nowait(change)

    def note(self, host: str, vm: str) -> None:
        """Note that this VM has changed on this host, and wake the calls of `wait_for` for it."""
        self._changed.add((host.casefold(), vm.casefold()))
        self._any_change.set()
        self._any_change = asyncio.Event()

    def forget(self, host: str, vm: str) -> None:
        """Forget the changes of this VM on this host up to now, because the caller is about to look at it."""
        self._changed.discard((host.casefold(), vm.casefold()))

    async def wait_for(self, host: str, vm: str, *, within_s: float) -> bool:
        """Wait for a change of this VM on this host since `forget`, and return whether one came."""
        key = (host.casefold(), vm.casefold())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while key not in self._changed:
                    await self._any_change.wait()
                self._changed.discard(key)
                return True
        return False

    @contextlib.contextmanager
    def subscribe(self) -> Iterator[asyncio.Queue[DomainChange]]:
        """Return a context manager for a queue that gets every later change until the block is left."""
        queue: asyncio.Queue[DomainChange] = asyncio.Queue()
        self._subscribers.add(queue)
        try:
            yield queue
        finally:
            self._subscribers.discard(queue)
