"""Stands: the listening sockets of a service with workers, and which worker accepts on which.

Each stays open here, whoever accepts on it, so a worker that dies takes no caller with it: they wait, and meanwhile
another one accepts in its place.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from forewarn.assembly.member import Member
from forewarn.assembly.twin import twins_of
from forewarn.metadata import Listener, feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    sock: socket.socket
    slot: int | None  # whose it is; None: all share it
    raw: bytes  # how a worker is told to open it


class Stands:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._numbers = count(1)
        self._stands: dict[int, Stand] = {}
        self._of: dict[Listener, list[int]] = {}

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return tuple(self._of)

    def add(self, listener: Listener) -> None:
        for sock in listener.sockets:
            twins = twins_of(sock, self._slots - 1)
            if len(twins) < self._slots - 1:
                self._put(listener, sock, None)
                continue
            for slot, each in enumerate((sock, *twins)):
                self._put(listener, each, slot)

    def remove(self, listener: Listener) -> None:
        """Nobody is to accept there; whoever still does must be told by `share_out`."""
        for number in self._of.pop(listener, ()):
            self._stands.pop(number).sock.close()

    def share_out(self, serving: Sequence[Member]) -> None:
        """Every stand is somebody's: that of a worker which is not there, another one's for the time."""
        there = {member.slot for member in serving}
        for member in serving:
            mine = {number for number, stand in self._stands.items() if _is_for(stand, member, serving, there)}
            for number in mine - member.holds:
                member.tell(("stand", number), self._stands[number].raw, self._stands[number].sock)
            for number in member.holds - mine:
                member.tell(("stand", number), feed.pack(feed.Shut(number)))
            member.holds = mine

    def _put(self, listener: Listener, sock: socket.socket, slot: int | None) -> None:
        number = next(self._numbers)
        raw = feed.pack(feed.opening(number, listener.strategy, is_loopback=listener.is_loopback))
        self._stands[number] = Stand(sock=sock, slot=slot, raw=raw)
        self._of.setdefault(listener, []).append(number)


def _is_for(stand: Stand, member: Member, serving: Sequence[Member], there: set[int]) -> bool:
    if stand.slot is None or stand.slot == member.slot:
        return True
    return stand.slot not in there and serving[stand.slot % len(serving)] is member
