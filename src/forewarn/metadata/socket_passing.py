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

SOCKETS_FILE = "forewarn.sockets"
_MAX_NAME_BYTES = 4096
_RECONNECT_S = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SocketPacket:
    listener_name: str  # its name
    sock: socket.socket | None  # None: it is shut


async def send_packet(link: socket.socket, packet: SocketPacket) -> None:
    while True:
        fd = packet.sock.fileno() if packet.sock else -1  # it may have been closed while we waited
        try:
            socket.send_fds(link, [packet.listener_name.encode()], [fd] if fd >= 0 else [])
            return
        except BlockingIOError:
            await _wait_writable(link)


async def receive_packet(link: socket.socket) -> SocketPacket | None:
    """The next packet; None: the other side is gone."""
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
    """What the program that opens sockets sends, for ever; without one, we wait until there is one again."""
    is_told = False
    while True:
        link = _connect(path)
        if link is None:
            if not is_told:
                log.warning("nobody hands over sockets at %s: start `forewarn sockets`; waiting for it", path)
            is_told = True
            await asyncio.sleep(_RECONNECT_S)
            continue
        is_told = False
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

    def be_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(sock.fileno(), be_ready)
    try:
        await ready
    finally:
        remove(sock.fileno())
