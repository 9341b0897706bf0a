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
from forewarn.metadata.identity import bound_device
from forewarn.metadata.listeners import LISTEN_BACKLOG
from forewarn.metadata.workers import messages
from forewarn.metadata.workers.handle import WorkerHandle

_SO_NETNS_COOKIE, _COOKIE_BYTES = 71, 8  # Linux 5.14; the socket module does not have it


def _open_reuseport_sockets(sock: socket.socket, count: int) -> list[socket.socket]:
    """Open `count` more listening sockets on the address and device of `sock`, with SO_REUSEPORT."""
    # Returns none if that is impossible, as in another network namespace: then workers share `sock`.
    siblings: list[socket.socket] = []
    with suppress(OSError):
        if not count or _is_in_other_namespace(sock):
            return []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(count):
            siblings.append(_open_reuseport_socket(sock))
        return siblings
    for sibling in siblings:
        sibling.close()
    return []


def _open_reuseport_socket(sock: socket.socket) -> socket.socket:
    sibling = socket.socket(sock.family, socket.SOCK_STREAM)
    try:
        sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        device = bound_device(sock)
        if device:
            sibling.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        sibling.bind(sock.getsockname()[:2])
        sibling.listen(LISTEN_BACKLOG)
        sibling.setblocking(False)
    except BaseException:
        sibling.close()
        raise
    return sibling


def _is_in_other_namespace(sock: socket.socket) -> bool:
    with socket.socket() as own:
        return _namespace_cookie(sock) != _namespace_cookie(own)


def _namespace_cookie(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedSocket:
    """A listening socket of the owner, and the slot of the worker that accepts on it."""

    sock: socket.socket
    slot: int | None  # position of the worker in the pool; None: all workers accept on it
    open_message: bytes  # encoded `OpenListenerRequest`


class SharedListeners:
    """The open listeners of a worker pool, and which worker accepts on which of their sockets.

    This process keeps every socket open, so that callers wait while a worker is missing. Workers learn of `add` and
    `remove` with the next `assign`.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._socket_ids = count(1)
        self._sockets: dict[int, _SharedSocket] = {}
        self._ids_by_listener: dict[VmListener, list[int]] = {}

    @property
    def listeners(self) -> tuple[VmListener, ...]:
        """The listeners that were added and not removed, in the order they were added."""
        return tuple(self._ids_by_listener)

    def add(self, listener: VmListener) -> None:
        """Add an open listener; where possible, open more sockets beside each of its own, one per worker."""
        for sock in listener.sockets:
            siblings = _open_reuseport_sockets(sock, self._slots - 1)
            if len(siblings) < self._slots - 1:
                self._add_socket(listener, sock, None)
                continue
            for slot, shared_sock in enumerate((sock, *siblings)):
                self._add_socket(listener, shared_sock, slot)

    def remove(self, listener: VmListener) -> None:
        """Remove a listener and close all its sockets in this process; does nothing if it was not added."""
        for number in self._ids_by_listener.pop(listener, ()):
            self._sockets.pop(number).sock.close()

    def assign(self, serving: Sequence[WorkerHandle]) -> None:
        """Send each serving worker the sockets that it must newly accept on or close, and nothing else."""
        present_slots = {worker.slot for worker in serving}
        for worker in serving:
            mine = {
                number
                for number, shared in self._sockets.items()
                if _is_assigned(shared, worker, serving, present_slots)
            }
            for number in mine - worker.socket_ids:
                worker.send_latest(("listener", number), self._sockets[number].open_message, self._sockets[number].sock)
            for number in worker.socket_ids - mine:
                worker.send_latest(("listener", number), messages.encode_message(messages.CloseListener(number)))
            worker.socket_ids = mine

    def _add_socket(self, listener: VmListener, sock: socket.socket, slot: int | None) -> None:
        number = next(self._socket_ids)
        payload = messages.encode_message(
            messages.open_message(number, listener.strategy, is_loopback=listener.is_loopback)
        )
        self._sockets[number] = _SharedSocket(sock=sock, slot=slot, open_message=payload)
        self._ids_by_listener.setdefault(listener, []).append(number)


def _is_assigned(
    shared: _SharedSocket, worker: WorkerHandle, serving: Sequence[WorkerHandle], present_slots: set[int]
) -> bool:
    if shared.slot is None or shared.slot == worker.slot:
        return True
    return shared.slot not in present_slots and serving[shared.slot % len(serving)] is worker
