"""Serves the network listeners of the settings: opens their sockets, or gets them from the helper.

The helper is `forewarn sockets`. A listener can open and close while the service runs, together with its network
device or namespace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
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
from forewarn.metadata.socket_passing import SocketPacket, receive_packets_forever

log = logging.getLogger(__name__)


class ListenerHost(Protocol):
    """Accepts connections of VMs on listeners: a `MetadataServer` or a `WorkerPool`."""

    async def start(self, listeners: Sequence[VmListener]) -> None:
        """Start accepting on these listeners, besides those already open, and own their sockets."""

    async def stop(self, listener: VmListener) -> None:
        """Stop accepting on this listener and close its sockets; open connections stay."""


class NetworkListeners:
    """The listeners on real networks that the settings define, opened and closed with their devices.

    Without a `helper_socket`, where `forewarn sockets` passes the open sockets, this process opens them. Call
    `assign_vms`, `bind` and `start`, in this order, and `stop` at the end.
    """

    def __init__(self, specs: Sequence[ListenerSpec], *, helper_socket: Path | None = None) -> None:
        self._specs_by_name = {spec.name: spec for spec in specs}
        self._helper_socket = helper_socket
        self._manager = ListenerManager(tuple(specs)) if helper_socket is None else None
        self._open_listeners: dict[ListenerSpec, VmListener] = {}
        self._changes: asyncio.Queue[ListenerChange] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def names_vms(self) -> bool:
        """Whether a configured listener names the VM that calls on it; if not, `assign_vms` does nothing."""
        return any(spec.assignments for spec in self._specs_by_name.values())

    def assign_vms(self, callers: CallerDirectory, find_key: Callable[[str], str]) -> None:
        """Record in `callers` which VM calls on which listener, where the settings name the VM."""
        for spec in self._specs_by_name.values():
            for place, name in spec.assignments:
                callers.assign(place, _vm_key(find_key, spec, name))

    def bind(self) -> None:
        """Bind the sockets that this process opens; does nothing with a helper.

        A listener with `wait_until_available` whose device, address or namespace does not exist yet is opened later.
        After an error none is bound.
        """
        for change in self._manager.open_all() if self._manager else ():
            self._changes.put_nowait(change)

    def close(self) -> None:
        """Close the sockets that `bind` bound; call it instead of `start`, if the service cannot start."""
        if self._manager is not None:
            self._manager.close()

    async def start(self, host: ListenerHost) -> None:
        """Have `host` serve the sockets that are bound, then follow changes in the background until `stop`."""
        if not self._specs_by_name:
            return  # there is nothing to follow
        while not self._changes.empty():
            await self._apply_change(host, self._changes.get_nowait())
        watching = self._manager.run(self._changes.put_nowait) if self._manager else self._receive_sockets()
        self._tasks = [asyncio.create_task(watching), asyncio.create_task(self._apply_changes(host))]

    async def stop(self) -> None:
        """Stop following changes of devices, or of the helper's sockets. Open listeners are still served."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def describe(self) -> list[dict[str, Any]]:
        """Return a dictionary for each configured listener, as in `GET /service`, in the settings' order."""
        return [
            {
                "address": spec.address,
                "port": spec.port,
                "identity": spec.strategy.kind,
                "name": spec.name,
                "open": spec in self._open_listeners,
            }
            for spec in self._specs_by_name.values()
        ]

    async def _apply_changes(self, host: ListenerHost) -> None:
        while True:
            await self._apply_change(host, await self._changes.get())

    async def _apply_change(self, host: ListenerHost, change: ListenerChange) -> None:
        before = self._open_listeners.pop(change.spec, None)
        if change.listener is not None:
            try:
                await host.start([change.listener])
                self._open_listeners[change.spec] = change.listener
            except OSError as error:  # the device disappeared in the same moment: another change follows
                log.warning("the listener on %s cannot be served: %s", change.spec.name, error)
        if before is not None:
            await host.stop(before)

    async def _receive_sockets(self) -> None:
        assert self._helper_socket is not None
        async with aclosing(receive_packets_forever(self._helper_socket)) as packets:
            async for packet in packets:
                self._on_packet(packet)

    def _on_packet(self, packet: SocketPacket) -> None:
        spec = self._specs_by_name.get(packet.listener_name)
        if spec is not None:
            listener = listener_for_socket(spec, packet.sock) if packet.sock else None
            self._changes.put_nowait(ListenerChange(spec, listener))
            return
        log.warning("`forewarn sockets` sent a socket for %s, which is not in the settings", packet.listener_name)
        if packet.sock is not None:
            packet.sock.close()


def _vm_key(find_key: Callable[[str], str], spec: ListenerSpec, name: str) -> str:
    try:
        return find_key(name)
    except NotFound:
        raise Rejected(
            f"the listener on {spec.name} is for VM {name!r}, which the fleet does not have: "
            "add the VM to the fleet first, or correct the listener"
        ) from None
    except Rejected as error:
        message = f"the listener on {spec.name}: {error}"
        raise Rejected(message, error.remedy_code, **error.remedy_fields) from error
