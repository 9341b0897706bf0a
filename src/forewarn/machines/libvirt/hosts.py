"""The libvirt hosts of the settings: a connection to each, and the changes that they report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from forewarn.errors import Refused
from forewarn.machines.libvirt.connection import (
    DomainChange,
    LibvirtConnection,
    LibvirtHost,
    keep_open,
    operation_error,
)
from forewarn.machines.libvirt.session import LibvirtFailure, LibvirtSession

T = TypeVar("T")


# Changes that libvirt hosts report, for those who read all of them and for acts that wait for one VM.


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


class LibvirtHosts:
    """The connections to the libvirt hosts of the settings, by name; `on_open` is called in a thread."""

    def __init__(self, hosts: Mapping[str, LibvirtHost], on_open: Callable[[str, LibvirtSession], None]) -> None:
        self.changes = DomainChanges()
        self._connections = {
            name.casefold(): LibvirtConnection(
                name, host, on_change=self.changes.report, on_open=partial(on_open, name)
            )
            for name, host in hosts.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hosts, as the settings spell them, in their order."""
        return tuple(connection.name for connection in self._connections.values())

    def connection(self, host: str) -> LibvirtConnection:
        connection = self._connections.get(host.casefold())
        if connection is None:
            raise Refused(f"the settings say nothing about host {host}: add [libvirt.hosts.{host}] with its uri")
        return connection

    async def run(
        self, host: str, vm: str, what: str, work: Callable[[LibvirtSession], T], *, is_exclusive: bool = False
    ) -> T:
        """Run `work` in a thread with the host's session, and return its result.

        `work` may run twice, if the connection ends meanwhile, and may go on after HostUnreachable. With
        `is_exclusive`, only one such work runs on the VM at a time. `what` says in errors what could not be done with
        the VM.
        """
        try:
            return await self.connection(host).call(work, exclusive=vm if is_exclusive else "")
        except LibvirtFailure as failure:
            raise operation_error(host, vm, what, failure) from failure

    async def watch(self) -> AsyncGenerator[DomainChange, None]:
        """Yield each change that a host reports about a VM or itself, from now on until it is closed."""
        with self.changes.subscribe() as queue:
            tasks = [asyncio.create_task(keep_open(connection)) for connection in self._connections.values()]
            try:
                while True:
                    yield await queue.get()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close all connections; may be called twice. Later calls of `run` raise HostUnreachable."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))
