"""The entrances of a running service: opened by itself, or handed to it by `forewarn sockets`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Protocol

from forewarn.assembly.handover import SOCKETS, Packet, packets
from forewarn.assembly.settings import Settings, Sockets
from forewarn.console.directory import Directory
from forewarn.errors import NotFound, Rejected
from forewarn.metadata import Callers, Entrance, Found, Listener, Porter, listener_of
from forewarn.store.seam import Store

log = logging.getLogger(__name__)


class Server(Protocol):
    """Whoever serves VMs: a `MetadataServer`, or workers."""

    async def start(self, listeners: Sequence[Listener]) -> None: ...
    async def stop(self, listener: Listener) -> None: ...


class Doorway:
    """Serves every entrance that is open, from `start` to `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._entrances = {entrance.name: entrance for entrance in settings.entrances}
        self._porter = Porter(settings.entrances) if settings.sockets is Sockets.OWN else None
        self._path = settings.directory / SOCKETS
        self._open: dict[Entrance, Listener] = {}
        self._changes: asyncio.Queue[Found] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def introduce(self, callers: Callers, store: Store) -> None:
        """Tell who lives where; a VM that the fleet never had stops the start."""
        if not any(entrance.residents for entrance in self._entrances.values()):
            return  # and no directory of the whole fleet is made for nothing
        directory = Directory(store)
        try:
            for entrance in self._entrances.values():
                for place, name in entrance.residents:
                    callers.assign(place, _key(directory, entrance, name))
        finally:
            directory.close()

    def open(self) -> None:
        """Bind every socket that is ours to open, so that a port in use stops the start."""
        for found in self._porter.open_first() if self._porter else ():
            self._changes.put_nowait(found)

    async def start(self, server: Server) -> None:
        while not self._changes.empty():
            await self._apply(server, self._changes.get_nowait())
        watching = self._porter.run(self._changes.put_nowait) if self._porter else self._be_handed()
        self._tasks = [asyncio.create_task(watching), asyncio.create_task(self._keep(server))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shown(self) -> list[dict[str, Any]]:
        """Where VMs call, for people."""
        return [
            {
                "address": entrance.address,
                "port": entrance.port,
                "identity": type(entrance.strategy).__name__,
                "name": entrance.name,
                "open": entrance in self._open,
            }
            for entrance in self._entrances.values()
        ]

    async def _keep(self, server: Server) -> None:
        while True:
            await self._apply(server, await self._changes.get())

    async def _apply(self, server: Server, found: Found) -> None:
        before = self._open.pop(found.entrance, None)
        if found.listener is not None:
            try:
                await server.start([found.listener])
                self._open[found.entrance] = found.listener
            except OSError as error:  # its device went in the same moment; there is more to hear
                log.warning("cannot serve %s: %s", found.entrance.name, error)
        if before is not None:
            await server.stop(before)

    async def _be_handed(self) -> None:
        async with aclosing(packets(self._path)) as coming:
            async for packet in coming:
                self._take(packet)

    def _take(self, packet: Packet) -> None:
        entrance = self._entrances.get(packet.entrance)
        if entrance is not None:
            listener = listener_of(entrance, packet.sock) if packet.sock else None
            self._changes.put_nowait(Found(entrance, listener))
            return
        log.warning("a socket was handed over for %s, which the settings do not have", packet.entrance)
        if packet.sock is not None:
            packet.sock.close()


def _key(directory: Directory, entrance: Entrance, name: str) -> str:
    try:
        return directory.find_any(name).key
    except NotFound:
        raise Rejected(
            f"the listener on {entrance.name} is for VM {name!r}, which the fleet does not have: "
            "add the VM to the fleet first, or correct the listener"
        ) from None
    except Rejected as error:
        raise Rejected(f"the listener on {entrance.name}: {error}") from error
