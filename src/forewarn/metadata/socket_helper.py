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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forewarn.base.unix_socket import PeerCredentials, peer_refusal
from forewarn.errors import Refused, Rejected
from forewarn.metadata import ListenerChange, ListenerManager, ListenerSpec
from forewarn.metadata.socket_passing import SOCKETS_FILE, SocketPacket, receive_packet, send_packet

log = logging.getLogger(__name__)
_ACCEPT_RETRY_S = 0.2


class SocketDistributor:
    """Keeps the open listening sockets of `forewarn sockets`, and passes them and changes to each connected client."""

    def __init__(self) -> None:
        self._open_sockets: dict[str, socket.socket] = {}
        self._client_queues: set[asyncio.Queue[str]] = set()

    def update(self, change: ListenerChange) -> None:
        """Take over an opened socket, close the previous one, and queue the change for every client."""
        name = change.spec.name
        if change.previous is not None:
            change.previous.close()
            self._open_sockets.pop(name, None)
        if change.listener is not None:
            self._open_sockets[name] = change.listener.sockets[0]
        for queue in self._client_queues:
            queue.put_nowait(name)

    async def send_to_client(self, client: socket.socket) -> None:
        """Send every open socket, then every change, until the client disconnects; closes the connection."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        for name in self._open_sockets:
            queue.put_nowait(name)
        self._client_queues.add(queue)
        tasks = [
            asyncio.create_task(self._send_changes(client, queue)),
            asyncio.create_task(_wait_for_disconnect(client)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._client_queues.discard(queue)
            await _cancel_tasks(tasks)
            client.close()

    async def _send_changes(self, client: socket.socket, queue: asyncio.Queue[str]) -> None:
        with suppress(ConnectionError):
            while True:
                name = await queue.get()
                await send_packet(client, SocketPacket(name, self._open_sockets.get(name)))


# Called once with the listeners that are open, and for the others the reason.
Announce = Callable[[list[ListenerSpec], dict[ListenerSpec, str]], None]


def run_socket_helper(listeners: Sequence[ListenerSpec], directory: Path, announce: Announce) -> None:
    """Pass the sockets of `listeners` to the service of the data directory, until SIGINT or SIGTERM. Blocks."""
    _raise_open_file_limit()
    asyncio.run(_run_until_signal(listeners, directory, announce))


async def _run_until_signal(listeners: Sequence[ListenerSpec], directory: Path, announce: Announce) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    manager, distributor = ListenerManager(listeners, shared=True), SocketDistributor()
    with _helper_socket(directory) as server:
        opened = manager.open_all()
        for change in opened:
            distributor.update(change)
        owner = directory.stat().st_uid
        tasks = [
            asyncio.create_task(manager.run(distributor.update)),
            asyncio.create_task(accept_clients(server, distributor, owner)),
        ]
        announce([change.spec for change in opened], manager.waiting)
        try:
            await stop.wait()
        finally:
            await _cancel_tasks(tasks)
            manager.close()


async def accept_clients(server: socket.socket, distributor: SocketDistributor, owner: int) -> None:
    """Accept clients on the Unix socket `server` until cancelled, and pass them the distributor's sockets."""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                client, _ = await asyncio.get_running_loop().sock_accept(server)
            except OSError as error:  # such as too many open files; connected clients must not suffer from it
                log.warning("cannot accept the service now: %s; trying again", error.strerror)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            if refusal := peer_refusal(PeerCredentials.of(client), owner):
                log.warning("a connection to the socket helper was refused: %s", refusal)
                client.close()
            else:
                group.create_task(distributor.send_to_client(client))


@contextmanager
def _helper_socket(directory: Path) -> Iterator[socket.socket]:
    path = directory / SOCKETS_FILE
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _bind_path(server, path)
        server.listen()
        server.setblocking(False)
        yield server
        with suppress(OSError):
            path.unlink()
    finally:
        server.close()


def _bind_path(server: socket.socket, path: Path) -> None:
    if not path.parent.is_dir():
        raise Rejected(
            f"data directory {str(path.parent)!r} does not exist: create it, for the user that the service runs as"
        )
    if _has_listener(path):
        raise Refused(f"another `forewarn sockets` is running at {str(path)!r}: stop that one first")
    previous_umask = os.umask(0)  # the directory's permissions protect the socket
    try:
        path.unlink(missing_ok=True)
        server.bind(os.fspath(path))
    except OSError as error:
        raise Rejected(f"cannot create {str(path)!r}: {error.strerror}; give another directory with --data") from error
    finally:
        os.umask(previous_umask)


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, suppress(OSError):
        client.connect(os.fspath(path))
        return True
    return False


async def _wait_for_disconnect(client: socket.socket) -> None:
    while await receive_packet(client) is not None:
        pass


async def _cancel_tasks(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _raise_open_file_limit() -> None:
    """One socket per VM may exceed the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
