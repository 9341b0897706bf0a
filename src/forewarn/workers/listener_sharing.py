"""Which worker accepts on which listening socket; one SO_REUSEPORT socket per worker where possible.

The owner keeps every socket open. If a worker dies, its callers wait in the backlog and another worker accepts them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from forewarn.metadata import VmListener
from forewarn.metadata.listeners import LISTEN_BACKLOG, bound_device
from forewarn.workers import messages
from forewarn.workers.handle import WorkerHandle

_SO_NETNS_COOKIE, _COOKIE_BYTES = 71, 8  # Linux 5.14; the socket module does not have it


def open_reuseport_sockets(sock: socket.socket, count: int) -> list[socket.socket]:
    """So many beside it; none where that cannot be, and all have to share the one."""
    twins: list[socket.socket] = []
    with suppress(OSError):
        if not count or _is_in_other_namespace(sock):
            return []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(count):
            twins.append(_open_reuseport_socket(sock))
        return twins
    for twin in twins:
        twin.close()
    return []


def _open_reuseport_socket(sock: socket.socket) -> socket.socket:
    twin = socket.socket(sock.family, socket.SOCK_STREAM)
    try:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        device = bound_device(sock)
        if device:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        twin.bind(sock.getsockname()[:2])
        twin.listen(LISTEN_BACKLOG)
        twin.setblocking(False)
    except BaseException:
        twin.close()
        raise
    return twin


def _is_in_other_namespace(sock: socket.socket) -> bool:
    """Whether it belongs to another network namespace than what we open ourselves; OSError where nobody can tell."""
    with socket.socket() as ours:
        return _namespace_cookie(sock) != _namespace_cookie(ours)


def _namespace_cookie(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSocket:
    sock: socket.socket
    slot: int | None  # whose it is; None: all share it
    open_message: bytes  # how a worker is told to open it


class SharedListeners:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._socket_ids = count(1)
        self._sockets: dict[int, SharedSocket] = {}
        self._ids_by_listener: dict[VmListener, list[int]] = {}

    @property
    def listeners(self) -> tuple[VmListener, ...]:
        return tuple(self._ids_by_listener)

    def add(self, listener: VmListener) -> None:
        for sock in listener.sockets:
            twins = open_reuseport_sockets(sock, self._slots - 1)
            if len(twins) < self._slots - 1:
                self._add_socket(listener, sock, None)
                continue
            for slot, each in enumerate((sock, *twins)):
                self._add_socket(listener, each, slot)

    def remove(self, listener: VmListener) -> None:
        """Nobody is to accept there; whoever still does must be told by `share_out`."""
        for number in self._ids_by_listener.pop(listener, ()):
            self._sockets.pop(number).sock.close()

    def assign(self, serving: Sequence[WorkerHandle]) -> None:
        """Every stand is somebody's: that of a worker which is not there, another one's for the time."""
        there = {member.slot for member in serving}
        for member in serving:
            mine = {number for number, stand in self._sockets.items() if _is_assigned(stand, member, serving, there)}
            for number in mine - member.socket_ids:
                member.send_fact(("stand", number), self._sockets[number].open_message, self._sockets[number].sock)
            for number in member.socket_ids - mine:
                member.send_fact(("stand", number), messages.encode_message(messages.CloseListener(number)))
            member.socket_ids = mine

    def _add_socket(self, listener: VmListener, sock: socket.socket, slot: int | None) -> None:
        number = next(self._socket_ids)
        raw = messages.encode_message(
            messages.open_message(number, listener.strategy, is_loopback=listener.is_loopback)
        )
        self._sockets[number] = SharedSocket(sock=sock, slot=slot, open_message=raw)
        self._ids_by_listener.setdefault(listener, []).append(number)


def _is_assigned(stand: SharedSocket, member: WorkerHandle, serving: Sequence[WorkerHandle], there: set[int]) -> bool:
    if stand.slot is None or stand.slot == member.slot:
        return True
    return stand.slot not in there and serving[stand.slot % len(serving)] is member
