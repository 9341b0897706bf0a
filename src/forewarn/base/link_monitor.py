"""Waits for changes of network devices and addresses, which the kernel reports by netlink."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

_AF_NETLINK, _NETLINK_ROUTE = 16, 0  # Linux
_GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS = 0x1, 0x10, 0x100  # RTMGRP_…
_NETLINK_READ_BYTES = 65536


class LinkMonitor:
    """Waits for changes of devices and addresses in this network namespace, by netlink, where that is allowed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sock = _open_netlink_socket()
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return at the next change, at once if one came since the last call, or after `timeout_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    def close(self) -> None:
        """Close the netlink socket; may be called twice. `wait_for_change` then only times out."""
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _on_readable(self) -> None:
        self._changed.set()
        assert self._sock is not None
        # ENOBUFS means that messages were lost, so there was a change.
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
