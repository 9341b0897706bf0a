"""The supervisor's connection to the service: messages both ways, and sockets passed with them."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.namespace_vm.messages import SERVICE_SOCKET, JsonMessage, VmDescription, encode_message

_HELLO_TIMEOUT_S = 60.0  # a whole fleet may say hello at once, on a machine with few cores
_READ_BYTES = 65536


class ServiceConnection:
    """An open connection. It belongs to no event loop, so that it may be opened before a fork and used after."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    @classmethod
    def open(cls, data: Path) -> ServiceConnection:
        """Unavailable when no service listens there."""
        path = data / SERVICE_SOCKET
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(path))
        except OSError as error:
            sock.close()
            raise _connect_error(path, error) from error
        sock.setblocking(False)
        return cls(sock)

    async def send(self, message: JsonMessage, descriptors: tuple[int, ...] = ()) -> None:
        raw = encode_message(message)
        if descriptors:
            sent = socket.send_fds(self._sock, [raw], descriptors)
            raw = raw[sent:]
        await asyncio.get_running_loop().sock_sendall(self._sock, raw)

    async def receive(self) -> JsonMessage | None:
        """The next message; None when the service has gone."""
        while b"\n" not in self._buffer:
            try:
                read = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            except OSError:
                return None
            if not read:
                return None
            self._buffer += read
        raw, _, self._buffer = self._buffer.partition(b"\n")
        message: JsonMessage = json.loads(raw)
        return message

    async def send_hello(self, hello: JsonMessage) -> VmDescription:
        """Say hello; what the service says about the VM, or Refused in its words."""
        await self.send(hello)
        try:
            reply = await asyncio.wait_for(self.receive(), _HELLO_TIMEOUT_S)
        except TimeoutError:
            reply = None
        if reply is None:
            raise Unavailable("the forewarn service broke off when a VM said hello: try again")
        if "refused" in reply:
            raise Refused(str(reply["refused"]))
        return VmDescription.from_welcome(reply["welcome"])

    def close(self) -> None:
        self._sock.close()


def _connect_error(path: Path, error: OSError) -> Rejected | Unavailable:
    if isinstance(error, PermissionError):
        return Unavailable(
            f"the forewarn service in {path.parent} belongs to another user: run this as that user, or name another "
            "service with --data"
        )
    if "too long" in str(error):
        return Rejected(f"the path {str(path)!r} is too long for a socket: choose a shorter --data")
    return Unavailable(f"no forewarn service answers in {path.parent}: start one with `forewarn up`")
