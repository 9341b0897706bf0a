"""The kernel rings when a network device or an address comes or goes. What it says is not read: who hears it looks."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

_AF_NETLINK, _NETLINK_ROUTE = 16, 0  # Linux
_LINKS, _IPV4_ADDRESSES, _IPV6_ADDRESSES = 0x1, 0x10, 0x100  # RTMGRP_…
_READ_BYTES = 65536


class Doorbell:
    """Rings for the network namespace it was made in; elsewhere one has to look from time to time."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sock = _listen()
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._hear)

    async def wait(self, at_most_s: float) -> None:
        """Until it rings, or the time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._rung.wait()
        self._rung.clear()

    def close(self) -> None:
        if self._sock is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _hear(self) -> None:
        self._rung.set()
        assert self._sock is not None
        # ENOBUFS: more was said than there was room for, which is a ring as well.
        with suppress(OSError):
            while self._sock.recv(_READ_BYTES):
                pass


def _listen() -> socket.socket | None:
    try:
        sock = socket.socket(_AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE)
    except OSError:  # not Linux, or not allowed here
        return None
    sock.setblocking(False)
    sock.bind((0, _LINKS | _IPV4_ADDRESSES | _IPV6_ADDRESSES))
    return sock
