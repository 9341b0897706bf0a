"""Sockets to listen on: the lab's, in whichever way this machine allows, and those of real networks."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from forewarn.errors import Rejected
from forewarn.metadata.identity import CalledAddress, PerPort, SourceAddress, Strategy

BACKLOG = 1024
_EVERY_ADDRESS = "0.0.0.0"
_LOOPBACK = "127.0.0.1"
_LOOPBACK_DEVICE = "lo"
_PORTS_TRIED = 20  # for a VM that comes to a running lab


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Bound, listening sockets, and how to tell which VM calls on them."""

    sockets: tuple[socket.socket, ...]
    strategy: Strategy
    is_loopback: bool

    def close(self) -> None:
        """For a listener that no server was started on."""
        for sock in self.sockets:
            sock.close()


class Way(StrEnum):
    """How a lab listens, best first: what a machine does not allow, the next one does without."""

    DEVICE = "one socket for all addresses of the loopback device"
    ADDRESSES = "one socket per loopback address"
    PORTS = "one port per VM"


class NotHere(Exception):
    """This machine does not allow that way."""


def open_network(
    address: str, port: int, *, device: str = "", network: str = "", setting: str = "metadata port"
) -> Listener:
    """Listen on a real network whose source addresses can be trusted; `network` tells equal ones apart."""
    try:
        sock = listen(address, port, device=device, setting=setting)
    except NotHere as error:
        raise Rejected(f"cannot listen on {address}:{port}: {error}") from error
    return Listener(sockets=(sock,), strategy=SourceAddress(network), is_loopback=ip_address(address).is_loopback)


@dataclass(slots=True, kw_only=True)
class Lab:
    """A lab's listeners: every VM was given a loopback address, and `endpoint` says where it is really served."""

    way: Way
    port: int
    setting: str
    listener: Listener
    _any_port: bool
    _ports: dict[str, int]  # by address; empty for Way.DEVICE

    def endpoint(self, address: str) -> tuple[str, int]:
        """The address and port that the VM with this address should call."""
        return (_LOOPBACK, self._ports[address]) if self.way is Way.PORTS else (address, self.port)

    def place(self, address: str) -> str:
        """Where the calls of the VM with this address come in, for `Callers.assign`."""
        return str(self._ports[address]) if self.way is Way.PORTS else address

    def add(self, address: str) -> Listener | None:
        """Serve one more address; None: it is served already, else a server must be started on the listener."""
        if self.way is Way.DEVICE or address in self._ports:
            return None
        sock = self._listen_for(address)
        self._ports[address] = _port_of(sock)
        self.port = self.port or _port_of(sock)
        return Listener(sockets=(sock,), strategy=self.listener.strategy, is_loopback=True)

    def _listen_for(self, address: str) -> socket.socket:
        if self.way is not Way.PORTS:
            return listen(address, self.port, setting=self.setting)
        first = 0 if self._any_port else max(self._ports.values(), default=self.port - 1) + 1
        for port in range(first, first + _PORTS_TRIED):
            try:
                return listen(_LOOPBACK, port, setting=self.setting)
            except Rejected:
                continue  # another program's
        return listen(_LOOPBACK, first, setting=self.setting)


def open_lab(
    addresses: Sequence[str], port: int, *, ways: Sequence[Way] = tuple(Way), setting: str = "metadata port"
) -> Lab:
    """Listen for VMs on these loopback addresses, in the first way that works here. Port 0: any that is free."""
    for way in ways:
        try:
            return _open_lab(way, addresses, port, setting)
        except NotHere:
            continue
    raise Rejected(f"this machine can serve {', '.join(addresses)} in no way that was allowed: {', '.join(ways)}")


def _open_lab(way: Way, addresses: Sequence[str], port: int, setting: str) -> Lab:
    if way is Way.DEVICE:
        sockets = [listen(_EVERY_ADDRESS, port, device=_LOOPBACK_DEVICE, setting=setting)]
        ports: dict[str, int] = {}
    else:
        sockets = _listen_each(way, addresses, port, setting)
        ports = dict(zip(addresses, map(_port_of, sockets), strict=True))
    strategy = PerPort() if way is Way.PORTS else CalledAddress()
    listener = Listener(sockets=tuple(sockets), strategy=strategy, is_loopback=True)
    first = _port_of(sockets[0]) if sockets else port
    return Lab(way=way, port=first, setting=setting, listener=listener, _any_port=port == 0, _ports=ports)


def _listen_each(way: Way, addresses: Sequence[str], port: int, setting: str) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for index, address in enumerate(addresses):
            if way is Way.PORTS:
                sockets.append(listen(_LOOPBACK, port and port + index, setting=setting))
            else:
                sockets.append(listen(address, port, setting=setting))
                port = _port_of(sockets[0])
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def listen(address: str, port: int, *, device: str = "", setting: str, shared: bool = False) -> socket.socket:
    """A listening socket; `shared` with others of this user that say so too, so that one can take over from another."""
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if device:
            _bind_to_device(sock, device)
        _bind(sock, address, port, setting)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_to_device(sock: socket.socket, device: str) -> None:
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:
        raise NotHere("sockets cannot be bound to a device on this system")
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, device.encode() + b"\0")
    except OSError as error:
        raise NotHere(f"device {device!r}: {error.strerror}") from error


def _bind(sock: socket.socket, address: str, port: int, setting: str) -> None:
    try:
        sock.bind((address, port))
    except OverflowError as error:
        raise Rejected(f"there is no port {port}, which a VM would need: set a lower {setting!r}") from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise NotHere(f"the address {address} is not one of this machine's") from error
        raise Rejected(_why_not(error, address, port, setting)) from error


def _why_not(error: OSError, address: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address}:{port} is in use by another program: stop it, or set another {setting!r} than {port}"
    if isinstance(error, PermissionError):
        return f"this user may not listen on {address}:{port}: set a {setting!r} above 1023 instead of {port}"
    return f"cannot listen on {address}:{port} ({error.strerror}): set another {setting!r} than {port}"


def _port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port
