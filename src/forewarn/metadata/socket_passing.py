"""Passes listening sockets from `forewarn sockets` to the service over DATA/forewarn.sockets.

One packet per listener that opened or closed: its name, and the socket unless it closed. A new client first
receives every open listener, so neither side has to remember anything over a restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

SOCKETS_FILE = "forewarn.sockets"  # a Unix socket in the data directory
_MAX_NAME_BYTES = 4096
_RECONNECT_S = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SocketPacket:
    """A message from `forewarn sockets` to the service: a listener that opened or closed."""

    listener_name: str  # the `ListenerSpec.name` of the listener
    sock: socket.socket | None  # its listening socket, which the receiver owns (the sender keeps its own); None: closed


async def send_packet(link: socket.socket, packet: SocketPacket) -> None:
    """Send a packet over the non-blocking Unix socket `link`, waiting until the socket takes it."""
    while True:
        fd = packet.sock.fileno() if packet.sock else -1  # the socket may have closed while this waited
        try:
            socket.send_fds(link, [packet.listener_name.encode()], [fd] if fd >= 0 else [])
            return
        except BlockingIOError:
            await _wait_writable(link)


async def receive_packet(link: socket.socket) -> SocketPacket | None:
    """Wait for the next packet on `link`, a non-blocking SOCK_SEQPACKET socket; None if the peer is gone."""
    while True:
        try:
            name, fds, _, _ = socket.recv_fds(link, _MAX_NAME_BYTES, 1)
            break
        except BlockingIOError:
            await _wait_readable(link)
        except ConnectionError:
            return None
    if not name:
        return None
    return SocketPacket(name.decode(), _listening_socket(fds[0]) if fds else None)


async def receive_packets_forever(path: Path) -> AsyncGenerator[SocketPacket, None]:
    """Connect to the helper's Unix socket at `path` and yield its packets, without end."""
    is_logged = False
    while True:
        link = _connect(path)
        if link is None:
            if not is_logged:
                log.warning("the socket helper is not running at %s: start `forewarn sockets`; waiting for it", path)
            is_logged = True
            await asyncio.sleep(_RECONNECT_S)
            continue
        is_logged = False
        try:
            while (packet := await receive_packet(link)) is not None:
                yield packet
        finally:
            link.close()


def _connect(path: Path) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(os.fspath(path))
    except OSError:
        link.close()
        return None
    link.setblocking(False)
    return link


def _listening_socket(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


async def _wait_writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _wait_ready(sock, loop.add_writer, loop.remove_writer)


async def _wait_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await _wait_ready(sock, loop.add_reader, loop.remove_reader)


async def _wait_ready(sock: socket.socket, add: Callable[..., None], remove: Callable[[int], object]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), on_ready)
    try:
        await ready
    finally:
        remove(sock.fileno())
