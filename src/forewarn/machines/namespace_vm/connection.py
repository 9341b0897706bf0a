"""The supervisor's connection to the service: messages both ways, and sockets passed with them."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from forewarn.errors import Refused, Rejected, Unavailable
from forewarn.machines.namespace_vm.messages import SERVICE_SOCKET, JsonMessage, VmDescription, encode_message

_HELLO_TIMEOUT_S = 60.0  # hundreds of VMs may start at once on a machine with few cores
_READ_BYTES = 65536


class ServiceConnection:
    """A supervisor's open connection to the service, over the unix socket in the data directory."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._send_lock = asyncio.Lock()  # the event loop lets only one task wait until a socket can be written

    @classmethod
    def open(cls, data: Path) -> ServiceConnection:
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
        """Send a message, with copies of these open file descriptors. Raises OSError if the service is gone."""
        data = encode_message(message)
        async with self._send_lock:
            if descriptors:
                data = data[await self._send_with_descriptors(data, descriptors) :]
            await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def _send_with_descriptors(self, data: bytes, descriptors: tuple[int, ...]) -> int:
        """Send the descriptors with the beginning of the data, at least a byte; returns how much was sent."""
        while True:
            try:
                return socket.send_fds(self._sock, [data], descriptors)
            except BlockingIOError:
                await self._wait_until_writable()

    async def _wait_until_writable(self) -> None:
        loop, is_writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._sock, is_writable.set)
        try:
            await is_writable.wait()
        finally:
            loop.remove_writer(self._sock)

    async def receive(self) -> JsonMessage | None:
        """Wait for the service's next message and return it, decoded; None when the service is gone."""
        while b"\n" not in self._buffer:
            try:
                received = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            except OSError:
                return None
            if not received:
                return None
            self._buffer += received
        data, _, self._buffer = self._buffer.partition(b"\n")
        message: JsonMessage = json.loads(data)
        return message

    async def send_hello(self, hello: JsonMessage) -> VmDescription:
        await self.send(hello)
        try:
            reply = await asyncio.wait_for(self.receive(), _HELLO_TIMEOUT_S)
        except TimeoutError:
            reply = None
        if reply is None:
            raise Unavailable("the forewarn service did not answer the VM's hello: try again")
        if "refused" in reply:
            raise Refused(str(reply["refused"]))
        return VmDescription.from_welcome(reply["welcome"])

    def close(self) -> None:
        """Close the connection's socket; may be called twice."""
        self._sock.close()


def _connect_error(path: Path, error: OSError) -> Rejected | Unavailable:
    if isinstance(error, PermissionError):
        return Unavailable(
            f"the forewarn service in {path.parent} belongs to another user: run this as that user, or name another "
            "service with --data"
        )
    if "too long" in str(error):
        return Rejected(f"the path {str(path)!r} is too long for a socket: choose a shorter --data")
    return Unavailable(
        f"no forewarn service answers in {path.parent}: start one with `forewarn up` for a lab, or with "
        "`forewarn serve` for production"
    )
