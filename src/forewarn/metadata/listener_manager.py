"""Opens the configured listeners when their device, address or namespace exists, and reopens them.

A socket stays with the device it was bound to, so a device that is created again under the same name needs a new
socket. A netlink socket reports changes in this network namespace; other namespaces are checked every second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.listeners import ListenerSpec, OpenListener, VmListener, open_listener

_log = logging.getLogger(__name__)
_CHECK_INTERVAL_S = 1.0  # nobody rings for what happens in other namespaces
_DEBOUNCE_S = 0.02  # a device comes with several rings


@dataclass(frozen=True, slots=True)
class ListenerChange:
    """What one look changed at an entrance."""

    spec: ListenerSpec
    listener: VmListener | None  # None: it is shut
    previous: VmListener | None = None  # dead now; whoever serves it closes it


class ListenerManager:
    def __init__(self, entrances: Iterable[ListenerSpec], *, shared: bool = False) -> None:
        self._specs = tuple(entrances)
        self._shared = shared
        self._open: dict[ListenerSpec, OpenListener] = {}
        self._waiting: dict[ListenerSpec, str] = {}

    @property
    def waiting(self) -> dict[ListenerSpec, str]:
        """Entrances that are shut, each with what it waits for."""
        return dict(self._waiting)

    def open_all(self) -> list[ListenerChange]:
        """The first look. What is not there yet is waited for; what can never be stops the start."""
        for entrance in self._specs:
            try:
                self._open_one(entrance)
            except (Unavailable, Rejected) as error:
                if entrance.wait_until_available and isinstance(error, Unavailable):
                    self._mark_waiting(entrance, str(error))
                    continue
                self.close()
                raise Rejected(f"cannot listen on {entrance.name}: {error}") from error
        return [ListenerChange(entrance, opened.listener) for entrance, opened in self._open.items()]

    def close(self) -> None:
        """For one whose listeners nobody serves."""
        for opened in self._open.values():
            opened.listener.close()

    def refresh(self) -> list[ListenerChange]:
        """Look at every entrance, and open what can be opened now."""
        found = (self._refresh_one(entrance) for entrance in self._specs)
        return [change for change in found if change is not None]

    async def run(self, tell: Callable[[ListenerChange], None]) -> None:
        """Keep looking: when the kernel says that something changed, and every second."""
        doorbell = LinkMonitor()
        try:
            while True:
                await doorbell.wait_for_change(_CHECK_INTERVAL_S)
                await asyncio.sleep(_DEBOUNCE_S)
                for change in self.refresh():
                    tell(change)
        finally:
            doorbell.close()

    def _refresh_one(self, entrance: ListenerSpec) -> ListenerChange | None:
        opened = self._open.get(entrance)
        if opened is not None and opened.is_current:
            return None
        self._open.pop(entrance, None)
        try:
            self._open_one(entrance)
        except (Unavailable, Rejected) as error:
            self._mark_waiting(entrance, str(error))
        now, before = self._open.get(entrance), opened.listener if opened else None
        if now is None and before is None:
            return None
        return ListenerChange(entrance, now.listener if now else None, before)

    def _open_one(self, entrance: ListenerSpec) -> None:
        self._open[entrance] = open_listener(entrance, shared=self._shared)
        if self._waiting.pop(entrance, None):
            _log.warning("listening on %s now", entrance.name)

    def _mark_waiting(self, entrance: ListenerSpec, why: str) -> None:
        if self._waiting.get(entrance) != why:
            _log.warning("not listening on %s yet: %s; waiting for it", entrance.name, why)
        self._waiting[entrance] = why


_AF_NETLINK, _NETLINK_ROUTE = 16, 0  # Linux
_GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS = 0x1, 0x10, 0x100  # RTMGRP_…
_NETLINK_READ_BYTES = 65536


class LinkMonitor:
    """Rings for the network namespace it was made in; elsewhere one has to look from time to time."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sock = _open_netlink_socket()
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)

    async def wait_for_change(self, at_most_s: float) -> None:
        """Until it rings, or the time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()
        self._changed.clear()

    def close(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _on_readable(self) -> None:
        self._changed.set()
        assert self._sock is not None
        # ENOBUFS: more was said than there was room for, which is a ring as well.
        with suppress(OSError):
            while self._sock.recv(_NETLINK_READ_BYTES):
                pass


def _open_netlink_socket() -> socket.socket | None:
    try:
        sock = socket.socket(_AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE)
    except OSError:  # not Linux, or not allowed here
        return None
    sock.setblocking(False)
    sock.bind((0, _GROUP_LINK | _GROUP_IPV4_ADDRESS | _GROUP_IPV6_ADDRESS))
    return sock
