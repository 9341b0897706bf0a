"""Opens listening sockets, for labs on loopback and for real networks from a `ListenerSpec`.

A `ListenerSpec` says what is wanted, a `VmListener` is what was opened. `Unavailable` means that the device,
address or namespace does not exist yet; `Rejected` means that opening it will never succeed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias, TypeVar

from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.identity import (
    CalledAddressIdentity,
    DedicatedIdentity,
    DeviceIdentity,
    IdentityStrategy,
    MarkIdentity,
    PortIdentity,
    SourceAddressIdentity,
    bound_device,
)

T = TypeVar("T")


# Runs functions inside a Linux network namespace. A socket created there belongs to it for life.

NETNS_DIRECTORY = Path("/run/netns")  # where `ip netns` has the named ones
_CLONE_NEWNET = 0x40000000
NamespaceId: TypeAlias = "tuple[int, int] | None"


def namespace_path(namespace: str) -> Path:
    """Return the path of a network namespace: /run/netns/NAME for a name, an absolute path as it is."""
    return NETNS_DIRECTORY / namespace


def namespace_id(namespace: str) -> NamespaceId:
    """Return an id of the network namespace (a name or path), which changes if it is created again."""
    try:
        status = namespace_path(namespace).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def run_in_namespace(namespace: str, function: Callable[[], T]) -> T:
    """Run the function inside the network namespace and return its result; blocks."""
    # A new thread enters it, runs the function and ends; other threads stay in their namespace.
    if not namespace:
        return function()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _enter_namespace(namespace_path(namespace))
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter_namespace(path: Path) -> None:
    # os.setns exists since Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)


LISTEN_BACKLOG = 1024
_ANY_ADDRESS = "0.0.0.0"
_LOOPBACK_ADDRESS = "127.0.0.1"
_LOOPBACK_DEVICE = "lo"
_MAX_PORTS_TRIED = 20  # for a VM that is added to a running lab


@dataclass(frozen=True, slots=True, kw_only=True)
class VmListener:
    """Open listening TCP sockets, and the strategy that identifies the VMs that connect to them.

    Nothing accepts on the sockets until a `MetadataServer` or `WorkerPool` is started with the listener.
    """

    sockets: tuple[socket.socket, ...]  # TCP
    strategy: IdentityStrategy
    is_loopback: bool  # only programs on this machine can connect

    def close(self) -> None:
        """Close the sockets; only if no server was started on them, because that closes them itself."""
        for sock in self.sockets:
            sock.close()


class LabListenMode(StrEnum):
    """How a lab listens on loopback, best mode first. A mode that the machine does not support is skipped."""

    DEVICE = "one socket for all addresses of the loopback device"  # needs SO_BINDTODEVICE
    ADDRESSES = "one socket per loopback address"
    PORTS = "one port per VM"  # on 127.0.0.1, from the configured port upwards


class _ListenModeUnsupported(Exception):
    """A socket cannot be opened: this machine cannot bind it to a device, or lacks the device or address."""


def open_network_listener(
    address: str, port: int, *, device: str = "", network: str = "", setting: str = "metadata port"
) -> VmListener:
    """Open a listener that identifies VMs by source address; use it where addresses cannot be forged."""
    try:
        sock = _open_listening_socket(address, port, device=device, setting=setting)
    except _ListenModeUnsupported as error:
        raise Rejected(f"cannot listen on {_bracket_ipv6(address)}:{port}: {error}") from error
    is_loopback = ip_address(address).is_loopback
    return VmListener(sockets=(sock,), strategy=SourceAddressIdentity(network), is_loopback=is_loopback)


@dataclass(slots=True, kw_only=True)
class LabListeners:
    """The listeners of a lab. Each VM has a loopback address of its own; `endpoint` says where a program connects."""

    mode: LabListenMode  # the one that works on this machine
    port: int  # the bound port of every address; in mode PORTS that of the first VM; as configured if there is none yet
    setting: str  # the name of the port's setting, for errors
    listener: VmListener  # of the first addresses; without those that `add_address` returned
    _any_port: bool  # the configured port is 0
    _ports: dict[str, int]  # by address; empty for LabListenMode.DEVICE

    def endpoint(self, address: str) -> tuple[str, int]:
        """Return the address and port to which a program connects to poll as the VM with this address."""
        return (_LOOPBACK_ADDRESS, self._ports[address]) if self.mode is LabListenMode.PORTS else (address, self.port)

    def attachment(self, address: str) -> str:
        """Return the attachment by which the VM with this address is identified, for `CallerDirectory.assign`."""
        return str(self._ports[address]) if self.mode is LabListenMode.PORTS else address

    def add_address(self, address: str) -> VmListener | None:
        """Open and return a listener for one more address, on which the caller starts a server."""
        if self.mode is LabListenMode.DEVICE or address in self._ports:
            return None
        try:
            sock = self._open_socket_for(address)
        except _ListenModeUnsupported as error:
            raise Rejected(f"cannot listen on {address}:{self.port}: {error}") from error
        self._ports[address] = _bound_port(sock)
        self.port = self.port or _bound_port(sock)
        return VmListener(sockets=(sock,), strategy=self.listener.strategy, is_loopback=True)

    def _open_socket_for(self, address: str) -> socket.socket:
        if self.mode is not LabListenMode.PORTS:
            return _open_listening_socket(address, self.port, setting=self.setting)
        first = 0 if self._any_port else max(self._ports.values(), default=self.port - 1) + 1
        for port in range(first, first + _MAX_PORTS_TRIED):
            try:
                return _open_listening_socket(_LOOPBACK_ADDRESS, port, setting=self.setting)
            except Rejected:
                continue  # another program uses the port
        return _open_listening_socket(_LOOPBACK_ADDRESS, first, setting=self.setting)


def open_lab_listeners(
    find_addresses: Callable[[], Sequence[str]],
    port: int,
    *,
    modes: Sequence[LabListenMode] = tuple(LabListenMode),
    setting: str = "metadata port",
) -> LabListeners:
    """Open sockets for VMs with loopback addresses, in the first of `modes` that works here."""
    for mode in modes:
        try:
            return _open_lab_in_mode(mode, find_addresses, port, setting)
        except _ListenModeUnsupported:
            continue
    raise Rejected(f"this machine cannot serve {', '.join(find_addresses())} in an allowed mode: {', '.join(modes)}")


def _open_lab_in_mode(
    mode: LabListenMode, find_addresses: Callable[[], Sequence[str]], port: int, setting: str
) -> LabListeners:
    if mode is LabListenMode.DEVICE:
        sockets = [_open_listening_socket(_ANY_ADDRESS, port, device=_LOOPBACK_DEVICE, setting=setting)]
        ports: dict[str, int] = {}
    else:
        addresses = find_addresses()
        sockets = _open_socket_per_vm(mode, addresses, port, setting)
        ports = dict(zip(addresses, map(_bound_port, sockets), strict=True))
    strategy = PortIdentity() if mode is LabListenMode.PORTS else CalledAddressIdentity()
    listener = VmListener(sockets=tuple(sockets), strategy=strategy, is_loopback=True)
    first = _bound_port(sockets[0]) if sockets else port
    return LabListeners(mode=mode, port=first, setting=setting, listener=listener, _any_port=port == 0, _ports=ports)


def _open_socket_per_vm(mode: LabListenMode, addresses: Sequence[str], port: int, setting: str) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for index, address in enumerate(addresses):
            if mode is LabListenMode.PORTS:
                sockets.append(_open_listening_socket(_LOOPBACK_ADDRESS, port and port + index, setting=setting))
            else:
                sockets.append(_open_listening_socket(address, port, setting=setting))
                port = _bound_port(sockets[0])
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _open_listening_socket(
    address: str, port: int, *, device: str = "", setting: str, shared: bool = False
) -> socket.socket:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"the system cannot create a socket now ({error.strerror})") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if device:
            _bind_to_device(sock, device)
        _bind_and_listen(sock, address, port, setting)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_to_device(sock: socket.socket, device: str) -> None:
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:
        raise _ListenModeUnsupported("sockets cannot be bound to a device on this system")
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, device.encode() + b"\0")
    except OSError as error:
        raise _ListenModeUnsupported(f"device {device!r}: {error.strerror}") from error


def _bind_and_listen(sock: socket.socket, address: str, port: int, setting: str) -> None:
    try:
        sock.bind((address, port))
        sock.listen(LISTEN_BACKLOG)  # fails if another program began to listen on the port after the bind
    except OverflowError as error:
        raise Rejected(f"port {port}, which a VM would need, does not exist: set a lower {setting!r}") from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _ListenModeUnsupported(f"this machine does not have the address {address}") from error
        raise Rejected(_bind_error_message(error, address, port, setting)) from error


def _bind_error_message(error: OSError, address: str, port: int, setting: str) -> str:
    address = _bracket_ipv6(address)
    if error.errno == errno.EADDRINUSE:
        return f"{address}:{port} is in use by another program: stop it, or set another {setting!r} than {port}"
    if isinstance(error, PermissionError):
        return f"this user may not listen on {address}:{port}: set a {setting!r} above 1023 instead of {port}"
    return f"cannot listen on {address}:{port} ({error.strerror}): set another {setting!r} than {port}"


def _bound_port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


_FWMARK_ACCEPT_PATH = Path("/proc/sys/net/ipv4/tcp_fwmark_accept")
METADATA_ADDRESS, METADATA_PORT = "169.254.169.254", 80  # spec §2.1


class IdentifyBy(StrEnum):
    """How a configured listener identifies VMs; the values of `by` in the settings."""

    DEVICE = "device"  # each VM has a network device on the host
    NAMESPACE = "namespace"  # each VM has a network namespace, and the listener is inside it
    MARK = "mark"  # each VM's packets have a firewall mark
    SOURCE = "source"  # each VM has a source address


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """A configured listener on a real network: where to listen, and how VMs are identified there."""

    identify_by: IdentifyBy
    address: str = METADATA_ADDRESS  # an IP address
    port: int = METADATA_PORT  # of TCP
    device: str = ""  # the network device to bind to; "": any
    namespace: str = ""  # network namespace, a name of `ip netns` or an absolute path; "": that of this process
    network: str = ""  # the network of the source addresses; "": the addresses of the fleet
    assignments: tuple[tuple[str, str], ...] = ()  # pairs of attachment (see `IdentityStrategy`) and VM, as named
    wait_until_available: bool = True  # for device, address and namespace; else they must exist at the start

    @property
    def name(self) -> str:
        """A name for people, such as `169.254.169.254:80 by device tap0`."""
        suffixes = {
            IdentifyBy.DEVICE: f" by device {self.device}",
            IdentifyBy.NAMESPACE: f" by namespace {self.namespace}",
            IdentifyBy.MARK: f" by mark on {self.device}",
            IdentifyBy.SOURCE: f" by source on {self.device}" if self.device else "",
        }
        inside = f" in {self.namespace}" if self.namespace and self.identify_by is not IdentifyBy.NAMESPACE else ""
        return f"{_bracket_ipv6(self.address)}:{self.port}{suffixes[self.identify_by]}{inside}"

    @property
    def strategy(self) -> IdentityStrategy:
        """A new identity strategy for connections to this listener, as `identify_by` says."""
        match self.identify_by:
            case IdentifyBy.DEVICE:
                return DeviceIdentity(self.namespace)
            case IdentifyBy.MARK:
                return MarkIdentity(self.device, self.namespace)
            case IdentifyBy.NAMESPACE:
                return DedicatedIdentity(self.namespace)
            case IdentifyBy.SOURCE:
                return SourceAddressIdentity(self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenListener:
    """An open listener, with the device and namespace it was opened on; made by `open_listener`."""

    listener: VmListener
    device: str  # "": not bound to a device
    namespace: str  # "": the one of this process
    netns_id: NamespaceId  # of the namespace when it was opened

    @property
    def is_current(self) -> bool:
        """Whether the listener's device and namespace still exist, and were not created again."""
        # One that was created again under the same name needs a new socket.
        if self.namespace and namespace_id(self.namespace) != self.netns_id:
            return False
        return not self.device or all(bound_device(sock) == self.device for sock in self.listener.sockets)


def open_listener(spec: ListenerSpec, *, shared: bool = False) -> OpenListener:
    """Open the socket of a configured listener, in its namespace; accepts nothing yet."""
    netns_id = namespace_id(spec.namespace) if spec.namespace else None
    try:
        sock = run_in_namespace(spec.namespace, partial(_open_socket, spec, shared=shared))
    except OSError as error:
        raise _open_error(spec, error) from error
    return OpenListener(
        listener=listener_for_socket(spec, sock),
        device=spec.device,
        namespace=spec.namespace,
        netns_id=netns_id,
    )


def listener_for_socket(spec: ListenerSpec, sock: socket.socket) -> VmListener:
    """Return a listener on a socket that this or another process has opened for the spec; opens nothing."""
    on_loopback_device = spec.device == _LOOPBACK_DEVICE and not spec.namespace
    is_loopback = ip_address(spec.address).is_loopback or on_loopback_device
    return VmListener(sockets=(sock,), strategy=spec.strategy, is_loopback=is_loopback)


def _open_socket(spec: ListenerSpec, *, shared: bool) -> socket.socket:
    if spec.identify_by is IdentifyBy.MARK:
        _check_fwmark_accept()
    try:
        return _open_listening_socket(spec.address, spec.port, device=spec.device, setting="port", shared=shared)
    except _ListenModeUnsupported as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            raise Unavailable(str(error)) from error
        raise Rejected(str(error)) from error
    except Rejected as error:
        if isinstance(error.__cause__, PermissionError):
            raise Rejected(
                "permission denied: set a port above 1023, or let `forewarn sockets` open it as root"
            ) from error
        raise


def _check_fwmark_accept() -> None:
    """Reject if the kernel does not copy marks to connections, in the network namespace of this thread."""
    if _FWMARK_ACCEPT_PATH.read_text().strip() != "1":
        raise Rejected("the kernel does not mark connections: run `sysctl -w net.ipv4.tcp_fwmark_accept=1` there first")


def _open_error(spec: ListenerSpec, error: OSError) -> Rejected | Unavailable:
    path = str(namespace_path(spec.namespace))
    if not spec.namespace or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"the system cannot create a socket now ({error.strerror})")
    if isinstance(error, FileNotFoundError):
        return Unavailable(f"network namespace {path!r} does not exist")
    if isinstance(error, PermissionError):
        return Rejected(f"this user may not enter namespace {path!r}: let `forewarn sockets` do it as root")
    if error.errno == errno.EINVAL:  # `ip netns add` creates the file first
        return Unavailable(f"{path!r} is not a network namespace")
    return Rejected(f"cannot enter namespace {path!r}: {error.strerror}")


def _bracket_ipv6(address: str) -> str:
    return f"[{address}]" if ":" in address else address
