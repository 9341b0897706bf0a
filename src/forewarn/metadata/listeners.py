"""Opens listening sockets, for labs on loopback and for real networks from a `ListenerSpec`.

A `ListenerSpec` says what is wanted, a `VmListener` is what was opened. `Unavailable` means that the device,
address or namespace does not exist yet; `Rejected` means that opening it will never succeed.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.identity import BoundDevice, CalledAddress, Fixed, IdentityStrategy, Mark, PerPort, SourceAddress
from forewarn.metadata.netns import NamespaceId, namespace_id, namespace_path, run_in_namespace

LISTEN_BACKLOG = 1024
_ANY_ADDRESS = "0.0.0.0"
_LOOPBACK_ADDRESS = "127.0.0.1"
_LOOPBACK_DEVICE = "lo"
_MAX_PORTS_TRIED = 20  # for a VM that comes to a running lab


@dataclass(frozen=True, slots=True, kw_only=True)
class VmListener:
    """Bound, listening sockets, and how to tell which VM calls on them."""

    sockets: tuple[socket.socket, ...]
    strategy: IdentityStrategy
    is_loopback: bool

    def close(self) -> None:
        """For a listener that no server was started on."""
        for sock in self.sockets:
            sock.close()


class LabListenMode(StrEnum):
    """How a lab listens, best first: what a machine does not allow, the next one does without."""

    DEVICE = "one socket for all addresses of the loopback device"
    ADDRESSES = "one socket per loopback address"
    PORTS = "one port per VM"


class ListenModeUnsupported(Exception):
    """This machine does not allow that way."""


def open_network_listener(
    address: str, port: int, *, device: str = "", network: str = "", setting: str = "metadata port"
) -> VmListener:
    """Listen on a real network whose source addresses can be trusted; `network` tells equal ones apart."""
    try:
        sock = open_listening_socket(address, port, device=device, setting=setting)
    except ListenModeUnsupported as error:
        raise Rejected(f"cannot listen on {address}:{port}: {error}") from error
    return VmListener(sockets=(sock,), strategy=SourceAddress(network), is_loopback=ip_address(address).is_loopback)


@dataclass(slots=True, kw_only=True)
class LabListeners:
    """A lab's listeners: every VM was given a loopback address, and `endpoint` says where it is really served."""

    mode: LabListenMode
    port: int
    setting: str
    listener: VmListener
    _any_port: bool
    _ports: dict[str, int]  # by address; empty for Way.DEVICE

    def endpoint(self, address: str) -> tuple[str, int]:
        """The address and port that the VM with this address should call."""
        return (_LOOPBACK_ADDRESS, self._ports[address]) if self.mode is LabListenMode.PORTS else (address, self.port)

    def attachment(self, address: str) -> str:
        """Where the calls of the VM with this address come in, for `Callers.assign`."""
        return str(self._ports[address]) if self.mode is LabListenMode.PORTS else address

    def add_address(self, address: str) -> VmListener | None:
        """Serve one more address; None: it is served already, else a server must be started on the listener."""
        if self.mode is LabListenMode.DEVICE or address in self._ports:
            return None
        sock = self._open_socket_for(address)
        self._ports[address] = _bound_port(sock)
        self.port = self.port or _bound_port(sock)
        return VmListener(sockets=(sock,), strategy=self.listener.strategy, is_loopback=True)

    def _open_socket_for(self, address: str) -> socket.socket:
        if self.mode is not LabListenMode.PORTS:
            return open_listening_socket(address, self.port, setting=self.setting)
        first = 0 if self._any_port else max(self._ports.values(), default=self.port - 1) + 1
        for port in range(first, first + _MAX_PORTS_TRIED):
            try:
                return open_listening_socket(_LOOPBACK_ADDRESS, port, setting=self.setting)
            except Rejected:
                continue  # another program's
        return open_listening_socket(_LOOPBACK_ADDRESS, first, setting=self.setting)


def open_lab_listeners(
    addresses: Sequence[str],
    port: int,
    *,
    ways: Sequence[LabListenMode] = tuple(LabListenMode),
    setting: str = "metadata port",
) -> LabListeners:
    """Listen for VMs on these loopback addresses, in the first way that works here. Port 0: any that is free."""
    for way in ways:
        try:
            return _open_lab_in_mode(way, addresses, port, setting)
        except ListenModeUnsupported:
            continue
    raise Rejected(f"this machine can serve {', '.join(addresses)} in no way that was allowed: {', '.join(ways)}")


def _open_lab_in_mode(way: LabListenMode, addresses: Sequence[str], port: int, setting: str) -> LabListeners:
    if way is LabListenMode.DEVICE:
        sockets = [open_listening_socket(_ANY_ADDRESS, port, device=_LOOPBACK_DEVICE, setting=setting)]
        ports: dict[str, int] = {}
    else:
        sockets = _open_socket_per_vm(way, addresses, port, setting)
        ports = dict(zip(addresses, map(_bound_port, sockets), strict=True))
    strategy = PerPort() if way is LabListenMode.PORTS else CalledAddress()
    listener = VmListener(sockets=tuple(sockets), strategy=strategy, is_loopback=True)
    first = _bound_port(sockets[0]) if sockets else port
    return LabListeners(mode=way, port=first, setting=setting, listener=listener, _any_port=port == 0, _ports=ports)


def _open_socket_per_vm(way: LabListenMode, addresses: Sequence[str], port: int, setting: str) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for index, address in enumerate(addresses):
            if way is LabListenMode.PORTS:
                sockets.append(open_listening_socket(_LOOPBACK_ADDRESS, port and port + index, setting=setting))
            else:
                sockets.append(open_listening_socket(address, port, setting=setting))
                port = _bound_port(sockets[0])
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def open_listening_socket(
    address: str, port: int, *, device: str = "", setting: str, shared: bool = False
) -> socket.socket:
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
        sock.listen(LISTEN_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_to_device(sock: socket.socket, device: str) -> None:
    option = getattr(socket, "SO_BINDTODEVICE", None)
    if option is None:
        raise ListenModeUnsupported("sockets cannot be bound to a device on this system")
    try:
        sock.setsockopt(socket.SOL_SOCKET, option, device.encode() + b"\0")
    except OSError as error:
        raise ListenModeUnsupported(f"device {device!r}: {error.strerror}") from error


def _bind(sock: socket.socket, address: str, port: int, setting: str) -> None:
    try:
        sock.bind((address, port))
    except OverflowError as error:
        raise Rejected(f"there is no port {port}, which a VM would need: set a lower {setting!r}") from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise ListenModeUnsupported(f"the address {address} is not one of this machine's") from error
        raise Rejected(_bind_error_message(error, address, port, setting)) from error


def _bind_error_message(error: OSError, address: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address}:{port} is in use by another program: stop it, or set another {setting!r} than {port}"
    if isinstance(error, PermissionError):
        return f"this user may not listen on {address}:{port}: set a {setting!r} above 1023 instead of {port}"
    return f"cannot listen on {address}:{port} ({error.strerror}): set another {setting!r} than {port}"


def _bound_port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


_FWMARK_ACCEPT_PATH = Path("/proc/sys/net/ipv4/tcp_fwmark_accept")
_IFNAMSIZ = 16  # IFNAMSIZ
_LO_DEVICE = "lo"
METADATA_ADDRESS, METADATA_PORT = "169.254.169.254", 80  # spec §2.1


class IdentifyBy(StrEnum):
    """What tells which VM calls."""

    DEVICE = "device"
    NAMESPACE = "namespace"
    MARK = "mark"
    SOURCE = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    identify_by: IdentifyBy
    address: str = METADATA_ADDRESS
    port: int = METADATA_PORT
    device: str = ""
    namespace: str = ""  # "": ours
    network: str = ""  # whose source addresses are meant; "": those of the fleet
    assignments: tuple[tuple[str, str], ...] = ()  # place → the name of the VM that is there
    wait_until_available: bool = True  # for what it stands on; else that must be there at the start

    @property
    def name(self) -> str:
        """For people, and the same in every process that reads the same settings."""
        told = {
            IdentifyBy.DEVICE: f" by device {self.device}",
            IdentifyBy.NAMESPACE: f" by namespace {self.namespace}",
            IdentifyBy.MARK: f" by mark on {self.device}",
            IdentifyBy.SOURCE: f" by source on {self.device}" if self.device else "",
        }
        inside = f" in {self.namespace}" if self.namespace and self.identify_by is not IdentifyBy.NAMESPACE else ""
        return f"{_bracket_ipv6(self.address)}:{self.port}{told[self.identify_by]}{inside}"

    @property
    def strategy(self) -> IdentityStrategy:
        match self.identify_by:
            case IdentifyBy.DEVICE:
                return BoundDevice(self.namespace)
            case IdentifyBy.MARK:
                return Mark(self.device, self.namespace)
            case IdentifyBy.NAMESPACE:
                return Fixed(self.namespace)
            case IdentifyBy.SOURCE:
                return SourceAddress(self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenListener:
    """An entrance that is open, on what was there at the time."""

    listener: VmListener
    device: str
    namespace: str
    netns_id: NamespaceId

    @property
    def is_current(self) -> bool:
        """Whether its device and its namespace are still those of this name."""
        if self.namespace and namespace_id(self.namespace) != self.netns_id:
            return False
        return not self.device or all(bound_device(sock) == self.device for sock in self.listener.sockets)


def open_listener(entrance: ListenerSpec, *, shared: bool = False) -> OpenListener:
    """Listen there. Unavailable: what it stands on is not there yet. Rejected: it will not be possible."""
    identity = namespace_id(entrance.namespace) if entrance.namespace else None
    try:
        sock = run_in_namespace(entrance.namespace, partial(_open_socket, entrance, shared=shared))
    except OSError as error:
        raise _open_error(entrance, error) from error
    return OpenListener(
        listener=listener_for_socket(entrance, sock),
        device=entrance.device,
        namespace=entrance.namespace,
        netns_id=identity,
    )


def listener_for_socket(entrance: ListenerSpec, sock: socket.socket) -> VmListener:
    """A socket that listens at the entrance, whoever opened it."""
    is_loopback = ip_address(entrance.address).is_loopback or (entrance.device == _LO_DEVICE and not entrance.namespace)
    return VmListener(sockets=(sock,), strategy=entrance.strategy, is_loopback=is_loopback)


def bound_device(sock: socket.socket) -> str:
    """The present name of the device a socket is bound to; "" if that is gone, or it is bound to none."""
    try:
        name = sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _IFNAMSIZ)
    except OSError:
        return ""
    return name.rstrip(b"\0").decode(errors="replace")


def _open_socket(entrance: ListenerSpec, *, shared: bool) -> socket.socket:
    if entrance.identify_by is IdentifyBy.MARK:
        _check_fwmark_accept()
    try:
        return open_listening_socket(
            entrance.address, entrance.port, device=entrance.device, setting="port", shared=shared
        )
    except ListenModeUnsupported as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            raise Unavailable(str(error)) from error
        raise Rejected(str(error)) from error
    except Rejected as error:
        if isinstance(error.__cause__, PermissionError):
            raise Rejected(
                "this user may not: take a port above 1023, or let `forewarn sockets` open it as root"
            ) from error
        raise


def _check_fwmark_accept() -> None:
    """/proc/sys/net is that of the thread's own network namespace."""
    if _FWMARK_ACCEPT_PATH.read_text().strip() != "1":
        raise Rejected("marks do not reach connections: say `sysctl -w net.ipv4.tcp_fwmark_accept=1` there first")


def _open_error(entrance: ListenerSpec, error: OSError) -> Rejected | Unavailable:
    path = str(namespace_path(entrance.namespace))
    if not entrance.namespace or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"the system has no socket for it now ({error.strerror})")
    if isinstance(error, FileNotFoundError):
        return Unavailable(f"there is no network namespace {path!r}")
    if isinstance(error, PermissionError):
        return Rejected(f"this user may not enter namespace {path!r}: let `forewarn sockets` do it as root")
    if error.errno == errno.EINVAL:  # `ip netns add` makes the file first
        return Unavailable(f"{path!r} is no network namespace")
    return Rejected(f"namespace {path!r} cannot be entered: {error.strerror}")


def _bracket_ipv6(address: str) -> str:
    return f"[{address}]" if ":" in address else address
