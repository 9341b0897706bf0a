"""The privileged helper `forewarn sockets`: opens listening sockets and passes them to the service.

It never reads a request of a VM. The service then needs no privilege, and VMs can connect while the service
restarts. Only root and the owner of the data directory receive sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forewarn.errors import Refused, Rejected
from forewarn.metadata import ListenerChange, ListenerManager, ListenerSpec
from forewarn.metadata.socket_passing import SOCKETS_FILE, SocketPacket, receive_packet, send_packet

log = logging.getLogger(__name__)
_ROOT_UID = 0
_ACCEPT_RETRY_S = 0.2


class SocketDistributor:
    """The open sockets, and whoever is being handed them."""

    def __init__(self) -> None:
        self._open_sockets: dict[str, socket.socket] = {}
        self._client_queues: set[asyncio.Queue[str]] = set()

    def update(self, found: ListenerChange) -> None:
        name = found.spec.name
        if found.previous is not None:
            found.previous.close()
            self._open_sockets.pop(name, None)
        if found.listener is not None:
            self._open_sockets[name] = found.listener.sockets[0]
        for visitor in self._client_queues:
            visitor.put_nowait(name)

    async def send_to_client(self, link: socket.socket) -> None:
        """Everything that is open, then every change, until the visitor leaves."""
        visitor: asyncio.Queue[str] = asyncio.Queue()
        for name in self._open_sockets:
            visitor.put_nowait(name)
        self._client_queues.add(visitor)
        tasks = [
            asyncio.create_task(self._send_changes(link, visitor)),
            asyncio.create_task(_wait_for_disconnect(link)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._client_queues.discard(visitor)
            await _cancel_tasks(tasks)
            link.close()

    async def _send_changes(self, link: socket.socket, visitor: asyncio.Queue[str]) -> None:
        with suppress(ConnectionError):
            while True:
                name = await visitor.get()
                await send_packet(link, SocketPacket(name, self._open_sockets.get(name)))


Announce = Callable[[list[ListenerSpec], dict[ListenerSpec, str]], None]


def run_socket_helper(listeners: Sequence[ListenerSpec], directory: Path, announce: Announce) -> None:
    """Pass the sockets of `listeners` to the service of the data directory, until a signal stops it.

    `announce` is called once, with the listeners that are open and, for the others, what each waits for.
    """
    _raise_open_file_limit()
    asyncio.run(_run_until_signal(listeners, directory, announce))


async def _run_until_signal(listeners: Sequence[ListenerSpec], directory: Path, announce: Announce) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    porter, shelf = ListenerManager(listeners, shared=True), SocketDistributor()
    with _helper_socket(directory) as door:
        opened = porter.open_all()
        for found in opened:
            shelf.update(found)
        owner = directory.stat().st_uid
        tasks = [
            asyncio.create_task(porter.run(shelf.update)),
            asyncio.create_task(accept_clients(door, shelf, owner)),
        ]
        announce([found.spec for found in opened], porter.waiting)
        try:
            await stop.wait()
        finally:
            await _cancel_tasks(tasks)
            porter.close()


async def accept_clients(door: socket.socket, shelf: SocketDistributor, owner: int) -> None:
    """For ever: hand everything to root and to the owner, and nothing to anybody else."""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                link, _ = await asyncio.get_running_loop().sock_accept(door)
            except OSError as error:  # too many open files, say: whoever was let in before is not to suffer for it
                log.warning("nobody can be handed sockets now: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            if _peer_uid(link) in (_ROOT_UID, owner):
                group.create_task(shelf.send_to_client(link))
            else:
                link.close()


@contextmanager
def _helper_socket(directory: Path) -> Iterator[socket.socket]:
    """DATA/forewarn.sockets. The directory is the service's; its owner and root are let in, nobody else."""
    path = directory / SOCKETS_FILE
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _bind_path(door, path)
        door.listen()
        door.setblocking(False)
        yield door
        with suppress(OSError):
            path.unlink()
    finally:
        door.close()


def _bind_path(door: socket.socket, path: Path) -> None:
    if not path.parent.is_dir():
        raise Rejected(f"data directory {str(path.parent)!r} is not there: make it, for the user the service runs as")
    if _has_listener(path):
        raise Refused(f"another `forewarn sockets` hands over at {str(path)!r}: stop that one first")
    before = os.umask(0)  # the directory keeps others out
    try:
        path.unlink(missing_ok=True)
        door.bind(os.fspath(path))
    except OSError as error:
        raise Rejected(f"{str(path)!r} cannot be made: {error.strerror}; name another directory with --data") from error
    finally:
        os.umask(before)


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, suppress(OSError):
        link.connect(os.fspath(path))
        return True
    return False


def _peer_uid(link: socket.socket) -> int:
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


async def _wait_for_disconnect(link: socket.socket) -> None:
    while await receive_packet(link) is not None:
        pass


async def _cancel_tasks(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _raise_open_file_limit() -> None:
    """One socket per VM may be more than is usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
