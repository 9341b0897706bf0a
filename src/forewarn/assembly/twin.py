"""More sockets that listen where one does already, so that each worker has its own and the kernel shares callers out.

The first was opened alone, so that a port which is in use was noticed; only then are others let in beside it.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from forewarn.metadata.entrance import device_of
from forewarn.metadata.listener import BACKLOG

_SO_NETNS_COOKIE, _COOKIE_BYTES = 71, 8  # Linux 5.14; the socket module does not have it


def twins_of(sock: socket.socket, count: int) -> list[socket.socket]:
    """So many beside it; none where that cannot be, and all have to share the one."""
    twins: list[socket.socket] = []
    with suppress(OSError):
        if not count or _is_elsewhere(sock):
            return []
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(count):
            twins.append(_twin(sock))
        return twins
    for twin in twins:
        twin.close()
    return []


def _twin(sock: socket.socket) -> socket.socket:
    twin = socket.socket(sock.family, socket.SOCK_STREAM)
    try:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        device = device_of(sock)
        if device:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        twin.bind(sock.getsockname()[:2])
        twin.listen(BACKLOG)
        twin.setblocking(False)
    except BaseException:
        twin.close()
        raise
    return twin


def _is_elsewhere(sock: socket.socket) -> bool:
    """Whether it belongs to another network namespace than what we open ourselves; OSError where nobody can tell."""
    with socket.socket() as ours:
        return _namespace(sock) != _namespace(ours)


def _namespace(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE_BYTES)
