"""Changes that libvirt hosts report, for those who read all of them and for acts that wait for one VM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from forewarn.hypervisor.libvirt.connection import DomainChange


class DomainChanges:
    """Passes on what hosts report. All methods are called on one event loop; names ignore case."""

    def __init__(self) -> None:
        self._subscribers: set[asyncio.Queue[DomainChange]] = set()
        self._changed: set[tuple[str, str]] = set()  # (host, VM) in lower case, changed since it was last forgotten
        self._any_change = asyncio.Event()  # set and replaced at each change

    def report(self, change: DomainChange) -> None:
        """Pass a change on to all subscribers, and to those who wait for this VM."""
        self.note(change.host, change.vm)
        for queue in self._subscribers:
            queue.put_nowait(change)

    def note(self, host: str, vm: str) -> None:
        """Note that this VM has changed on this host, and wake those who wait for that.

        A later `wait_for` returns at once, unless the change was forgotten. Subscribers get nothing.
        """
        self._changed.add((host.casefold(), vm.casefold()))
        self._any_change.set()
        self._any_change = asyncio.Event()

    def forget(self, host: str, vm: str) -> None:
        """Forget changes of this VM up to now: somebody is about to look at it.

        `host` and `vm` are names, in any case.
        """
        self._changed.discard((host.casefold(), vm.casefold()))

    async def wait_for(self, host: str, vm: str, *, within_s: float) -> bool:
        """Return True once the VM has changed since `forget`, and False after `within_s` seconds.

        They are seconds of real time. True also forgets the changes so far. `host` and `vm` are names, in any case.
        """
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
        """Return a context manager that gives a queue, which gets every later change until the block is left.

        The queue is not bounded.
        """
        queue: asyncio.Queue[DomainChange] = asyncio.Queue()
        self._subscribers.add(queue)
        try:
            yield queue
        finally:
            self._subscribers.discard(queue)
