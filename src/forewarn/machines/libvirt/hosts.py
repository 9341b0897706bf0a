"""The libvirt hosts of the settings: a connection to each, and the changes that they report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import TypeVar

from forewarn.errors import Refused
from forewarn.machines.libvirt.changes import DomainChanges
from forewarn.machines.libvirt.connection import (
    DomainChange,
    LibvirtConnection,
    LibvirtHost,
    keep_open,
    operation_error,
)
from forewarn.machines.libvirt.failure import LibvirtFailure
from forewarn.machines.libvirt.session import LibvirtSession

T = TypeVar("T")


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
