"""The privileged program: opens the sockets that VMs call, keeps them open, and hands them to the service.

It reads settings, opens sockets and passes them on, and nothing else: no request of any VM is ever read here. The
service then needs no privilege, and may be restarted without a VM being refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forewarn.assembly.handover import SOCKETS, Packet, receive, send
from forewarn.assembly.settings import Settings
from forewarn.errors import Refused, Rejected
from forewarn.metadata import Entrance, Found, Porter

log = logging.getLogger(__name__)
_ROOT = 0
_AGAIN_S = 0.2


class Shelf:
    """The open sockets, and whoever is being handed them."""

    def __init__(self) -> None:
        self._open: dict[str, socket.socket] = {}
        self._visitors: set[asyncio.Queue[str]] = set()

    def take(self, found: Found) -> None:
        name = found.entrance.name
        if found.before is not None:
            found.before.close()
            self._open.pop(name, None)
        if found.listener is not None:
            self._open[name] = found.listener.sockets[0]
        for visitor in self._visitors:
            visitor.put_nowait(name)

    async def hand_over(self, link: socket.socket) -> None:
        """Everything that is open, then every change, until the visitor leaves."""
        visitor: asyncio.Queue[str] = asyncio.Queue()
        for name in self._open:
            visitor.put_nowait(name)
        self._visitors.add(visitor)
        tasks = [asyncio.create_task(self._send(link, visitor)), asyncio.create_task(_until_gone(link))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._visitors.discard(visitor)
            await _end(tasks)
            link.close()

    async def _send(self, link: socket.socket, visitor: asyncio.Queue[str]) -> None:
        with suppress(ConnectionError):
            while True:
                name = await visitor.get()
                await send(link, Packet(name, self._open.get(name)))


def run(settings: Settings, announce: Callable[[list[Entrance], dict[Entrance, str]], None]) -> None:
    """Until a signal says to stop; `announce` is called with what is open and with what is waited for."""
    _allow_many_files()
    asyncio.run(_run(settings, announce))


async def _run(settings: Settings, announce: Callable[[list[Entrance], dict[Entrance, str]], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    porter, shelf = Porter(settings.entrances, shared=True), Shelf()
    with _meeting_point(settings.directory) as door:
        opened = porter.open_first()
        for found in opened:
            shelf.take(found)
        owner = settings.directory.stat().st_uid
        tasks = [
            asyncio.create_task(porter.run(shelf.take)),
            asyncio.create_task(receive_visitors(door, shelf, owner)),
        ]
        announce([found.entrance for found in opened], porter.waits)
        try:
            await stop.wait()
        finally:
            await _end(tasks)
            porter.close()


async def receive_visitors(door: socket.socket, shelf: Shelf, owner: int) -> None:
    """For ever: hand everything to root and to the owner, and nothing to anybody else."""
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                link, _ = await asyncio.get_running_loop().sock_accept(door)
            except OSError as error:  # too many open files, say: whoever was let in before is not to suffer for it
                log.warning("nobody can be handed sockets now: %s", error.strerror)
                await asyncio.sleep(_AGAIN_S)
                continue
            if _user_of(link) in (_ROOT, owner):
                group.create_task(shelf.hand_over(link))
            else:
                link.close()


@contextmanager
def _meeting_point(directory: Path) -> Iterator[socket.socket]:
    """DATA/forewarn.sockets. The directory is the service's; its owner and root are let in, nobody else."""
    path = directory / SOCKETS
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _bind(door, path)
        door.listen()
        door.setblocking(False)
        yield door
        with suppress(OSError):
            path.unlink()
    finally:
        door.close()


def _bind(door: socket.socket, path: Path) -> None:
    if not path.parent.is_dir():
        raise Rejected(f"data directory {str(path.parent)!r} is not there: make it, for the user the service runs as")
    if _is_answered(path):
        raise Refused(f"another `forewarn sockets` hands over at {str(path)!r}: stop that one first")
    before = os.umask(0)  # the directory keeps others out
    try:
        path.unlink(missing_ok=True)
        door.bind(os.fspath(path))
    except OSError as error:
        raise Rejected(f"{str(path)!r} cannot be made: {error.strerror}; name another directory with --data") from error
    finally:
        os.umask(before)


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, suppress(OSError):
        link.connect(os.fspath(path))
        return True
    return False


def _user_of(link: socket.socket) -> int:
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


async def _until_gone(link: socket.socket) -> None:
    while await receive(link) is not None:
        pass


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _allow_many_files() -> None:
    """One socket per VM may be more than is usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
