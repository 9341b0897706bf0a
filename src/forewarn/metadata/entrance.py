"""Entrances: the places on a host where VMs come in, each with its own way to tell which VM it is.

An entrance is what is wanted; a `Listener` is what was opened. What an entrance stands on (a device, a namespace, an
address) may not be there yet, or may be made anew under the same name: sockets stay with the old one, so look again.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.identity import BoundDevice, Fixed, Mark, SourceAddress, Strategy
from forewarn.metadata.listener import Listener, NotHere, listen
from forewarn.metadata.namespace import Identity, identity_of, path_of, within

_FWMARK_ACCEPT = Path("/proc/sys/net/ipv4/tcp_fwmark_accept")
_NAME_BYTES = 16  # IFNAMSIZ
_LOOPBACK = "lo"
METADATA_ADDRESS, METADATA_PORT = "169.254.169.254", 80  # spec §2.1


class By(StrEnum):
    """What tells which VM calls."""

    DEVICE = "device"
    NAMESPACE = "namespace"
    MARK = "mark"
    SOURCE = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    by: By
    address: str = METADATA_ADDRESS
    port: int = METADATA_PORT
    device: str = ""
    namespace: str = ""  # "": ours
    network: str = ""  # whose source addresses are meant; "": those of the fleet
    residents: tuple[tuple[str, str], ...] = ()  # place → the name of the VM that is there
    waits: bool = True  # for what it stands on; else that must be there at the start

    @property
    def name(self) -> str:
        """For people, and the same in every process that reads the same settings."""
        told = {
            By.DEVICE: f" by device {self.device}",
            By.NAMESPACE: f" by namespace {self.namespace}",
            By.MARK: f" by mark on {self.device}",
            By.SOURCE: f" by source on {self.device}" if self.device else "",
        }
        inside = f" in {self.namespace}" if self.namespace and self.by is not By.NAMESPACE else ""
        return f"{_spelled(self.address)}:{self.port}{told[self.by]}{inside}"

    @property
    def strategy(self) -> Strategy:
        match self.by:
            case By.DEVICE:
                return BoundDevice(self.namespace)
            case By.MARK:
                return Mark(self.device, self.namespace)
            case By.NAMESPACE:
                return Fixed(self.namespace)
            case By.SOURCE:
                return SourceAddress(self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An entrance that is open, on what was there at the time."""

    listener: Listener
    device: str
    namespace: str
    identity: Identity

    @property
    def is_current(self) -> bool:
        """Whether its device and its namespace are still those of this name."""
        if self.namespace and identity_of(self.namespace) != self.identity:
            return False
        return not self.device or all(device_of(sock) == self.device for sock in self.listener.sockets)


def open_entrance(entrance: Entrance, *, shared: bool = False) -> Opened:
    """Listen there. Unavailable: what it stands on is not there yet. Rejected: it will not be possible."""
    identity = identity_of(entrance.namespace) if entrance.namespace else None
    try:
        sock = within(entrance.namespace, partial(_listen, entrance, shared=shared))
    except OSError as error:
        raise _why_not(entrance, error) from error
    return Opened(
        listener=listener_of(entrance, sock),
        device=entrance.device,
        namespace=entrance.namespace,
        identity=identity,
    )


def listener_of(entrance: Entrance, sock: socket.socket) -> Listener:
    """A socket that listens at the entrance, whoever opened it."""
    is_loopback = ip_address(entrance.address).is_loopback or (entrance.device == _LOOPBACK and not entrance.namespace)
    return Listener(sockets=(sock,), strategy=entrance.strategy, is_loopback=is_loopback)


def device_of(sock: socket.socket) -> str:
    """The present name of the device a socket is bound to; "" if that is gone, or it is bound to none."""
    try:
        name = sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _NAME_BYTES)
    except OSError:
        return ""
    return name.rstrip(b"\0").decode(errors="replace")


def _listen(entrance: Entrance, *, shared: bool) -> socket.socket:
    if entrance.by is By.MARK:
        _check_marks_are_accepted()
    try:
        return listen(entrance.address, entrance.port, device=entrance.device, setting="port", shared=shared)
    except NotHere as error:
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


def _check_marks_are_accepted() -> None:
    """/proc/sys/net is that of the thread's own network namespace."""
    if _FWMARK_ACCEPT.read_text().strip() != "1":
        raise Rejected("marks do not reach connections: say `sysctl -w net.ipv4.tcp_fwmark_accept=1` there first")


def _why_not(entrance: Entrance, error: OSError) -> Rejected | Unavailable:
    path = str(path_of(entrance.namespace))
    if not entrance.namespace or error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Unavailable(f"the system has no socket for it now ({error.strerror})")
    if isinstance(error, FileNotFoundError):
        return Unavailable(f"there is no network namespace {path!r}")
    if isinstance(error, PermissionError):
        return Rejected(f"this user may not enter namespace {path!r}: let `forewarn sockets` do it as root")
    if error.errno == errno.EINVAL:  # `ip netns add` makes the file first
        return Unavailable(f"{path!r} is no network namespace")
    return Rejected(f"namespace {path!r} cannot be entered: {error.strerror}")


def _spelled(address: str) -> str:
    return f"[{address}]" if ":" in address else address
