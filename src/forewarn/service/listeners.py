"""Serves the network listeners of the settings: opened here, or received from `forewarn sockets`.

Listeners may come and go while the service runs, with their network devices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Protocol

from forewarn.errors import NotFound, Rejected
from forewarn.metadata import (
    CallerDirectory,
    ListenerChange,
    ListenerManager,
    ListenerSpec,
    VmListener,
    listener_for_socket,
)
from forewarn.metadata.socket_passing import SOCKETS_FILE, SocketPacket, receive_packets_forever
from forewarn.service.settings import Settings, SocketOwner
from forewarn.store.interface import Store
from forewarn.web.directory import FleetDirectory

log = logging.getLogger(__name__)


class ListenerHost(Protocol):
    """Whoever serves VMs: a `MetadataServer`, or workers."""

    async def start(self, listeners: Sequence[VmListener]) -> None: ...
    async def stop(self, listener: VmListener) -> None: ...


class NetworkListeners:
    """Serves every entrance that is open, from `start` to `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._specs_by_name = {entrance.name: entrance for entrance in settings.metadata_listeners}
        self._socket_opener = (
            ListenerManager(settings.metadata_listeners) if settings.sockets is SocketOwner.OWN else None
        )
        self._helper_socket_path = settings.directory / SOCKETS_FILE
        self._open_listeners: dict[ListenerSpec, VmListener] = {}
        self._changes: asyncio.Queue[ListenerChange] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def assign_vms(self, callers: CallerDirectory, store: Store) -> None:
        """Tell who lives where; a VM that the fleet never had stops the start."""
        if not any(entrance.assignments for entrance in self._specs_by_name.values()):
            return  # and no directory of the whole fleet is made for nothing
        directory = FleetDirectory(store)
        try:
            for entrance in self._specs_by_name.values():
                for place, name in entrance.assignments:
                    callers.assign(place, _vm_key(directory, entrance, name))
        finally:
            directory.close()

    def bind(self) -> None:
        """Bind every socket that is ours to open, so that a port in use stops the start."""
        for found in self._socket_opener.open_all() if self._socket_opener else ():
            self._changes.put_nowait(found)

    async def start(self, server: ListenerHost) -> None:
        while not self._changes.empty():
            await self._apply_change(server, self._changes.get_nowait())
        watching = self._socket_opener.run(self._changes.put_nowait) if self._socket_opener else self._receive_sockets()
        self._tasks = [asyncio.create_task(watching), asyncio.create_task(self._apply_changes(server))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def describe(self) -> list[dict[str, Any]]:
        """Where VMs call, for people."""
        return [
            {
                "address": entrance.address,
                "port": entrance.port,
                "identity": type(entrance.strategy).__name__,
                "name": entrance.name,
                "open": entrance in self._open_listeners,
            }
            for entrance in self._specs_by_name.values()
        ]

    async def _apply_changes(self, server: ListenerHost) -> None:
        while True:
            await self._apply_change(server, await self._changes.get())

    async def _apply_change(self, server: ListenerHost, found: ListenerChange) -> None:
        before = self._open_listeners.pop(found.spec, None)
        if found.listener is not None:
            try:
                await server.start([found.listener])
                self._open_listeners[found.spec] = found.listener
            except OSError as error:  # its device went in the same moment; there is more to hear
                log.warning("cannot serve %s: %s", found.spec.name, error)
        if before is not None:
            await server.stop(before)

    async def _receive_sockets(self) -> None:
        async with aclosing(receive_packets_forever(self._helper_socket_path)) as coming:
            async for packet in coming:
                self._on_packet(packet)

    def _on_packet(self, packet: SocketPacket) -> None:
        entrance = self._specs_by_name.get(packet.listener_name)
        if entrance is not None:
            listener = listener_for_socket(entrance, packet.sock) if packet.sock else None
            self._changes.put_nowait(ListenerChange(entrance, listener))
            return
        log.warning("a socket was handed over for %s, which the settings do not have", packet.listener_name)
        if packet.sock is not None:
            packet.sock.close()


def _vm_key(directory: FleetDirectory, entrance: ListenerSpec, name: str) -> str:
    try:
        return directory.find_any(name).key
    except NotFound:
        raise Rejected(
            f"the listener on {entrance.name} is for VM {name!r}, which the fleet does not have: "
            "add the VM to the fleet first, or correct the listener"
        ) from None
    except Rejected as error:
        raise Rejected(f"the listener on {entrance.name}: {error}") from error
