"""Which VM is asking: told by the network, never by what the guest says.

A connection comes in at a *place* (a strategy reads it off the accepted socket), and `Callers` knows which VM
each place belongs to. Places of VMs may change while the server runs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol


class Strategy(Protocol):
    def place(self, transport: asyncio.BaseTransport) -> str:
        """Where this connection came in; "" if the caller has hung up already."""


@dataclass(frozen=True, slots=True)
class CalledAddress:
    """The lab: every VM has a loopback address of its own, and calls that."""

    def place(self, transport: asyncio.BaseTransport) -> str:
        return _part(transport, "sockname", 0)


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """A network that can be trusted not to forge addresses. Two networks may use the same ones: name them."""

    network: str = ""

    def place(self, transport: asyncio.BaseTransport) -> str:
        address = _part(transport, "peername", 0)
        return f"{self.network}/{address}" if self.network and address else address


@dataclass(frozen=True, slots=True)
class PerPort:
    """Where there is one loopback address only: every VM has a port of its own."""

    def place(self, transport: asyncio.BaseTransport) -> str:
        return _part(transport, "sockname", 1)


def _part(transport: asyncio.BaseTransport, end: str, index: int) -> str:
    name = transport.get_extra_info(end)
    return str(name[index]) if name else ""


class Callers:
    """Place → VM key."""

    def __init__(self) -> None:
        self._vms: dict[str, str] = {}

    def assign(self, place: str, vm: str) -> None:
        self._vms[place] = vm

    def release(self, place: str) -> None:
        self._vms.pop(place, None)

    def vm_at(self, place: str) -> str | None:
        return self._vms.get(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is at the other end of one connection, fixed for its life.

    A place that is given to another VM does not give it the connections of the one before: they are strangers' then.
    """

    place: str
    vm: str | None
    is_loopback: bool
