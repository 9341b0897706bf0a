"""What all connections of one server share: who is here, what is being worked on, and whether we are closing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from forewarn.metadata.answer import Reception, Rest, Work
from forewarn.metadata.board import Board
from forewarn.metadata.identity import Caller
from forewarn.metadata.limits import Limits
from forewarn.metadata.memory import Memory
from forewarn.metadata.reply import Writer
from forewarn.metadata.sort import Sort
from forewarn.metadata.timetable import Timetable

_DRAINS_PER_TURN = 200
_HOLD_GRAIN_S = 0.05
_IDLE_GRAINS = 100  # to the time that a connection may be idle
RESET = 0  # in the place of a status: the connection was reset instead


class Guest(Protocol):
    """A connection, as the hall sees it."""

    def drain(self) -> None:
        """Answer what is held or in work, take no further request, and go."""

    def hang_up(self) -> None:
        """Go at once."""

    def end_hold(self) -> None:
        """The request that is held has waited long enough."""

    def look_idle(self) -> None:
        """Go, if there was no request for too long."""

    @property
    def buffered_bytes(self) -> int: ...


@dataclass(slots=True)
class Tally:
    """Counts for metrics: plain numbers, because a labelled counter costs more than a poll."""

    accepted: int = 0
    refused: int = 0  # connections beyond the limit of one VM
    held: int = 0  # requests waiting just now
    requests: int = 0
    answered: Counter[tuple[Sort, int]] = field(default_factory=Counter)  # by what was asked for, and status

    def count(self, sort: Sort, status: int, times: int) -> None:
        """Requests that were answered from memory."""
        self.requests += times
        self.answered[sort, status] += times

    @property
    def answers(self) -> Counter[int]:
        """By status alone."""
        found: Counter[int] = Counter()
        for (_, status), times in self.answered.items():
            if status != RESET:
                found[status] += times
        return found


class Hall:
    def __init__(
        self, *, reception: Reception, memory: Memory, board: Board, writer: Writer, limits: Limits, tally: Tally
    ) -> None:
        self.reception, self.memory, self.board, self.writer = reception, memory, board, writer
        self.limits, self.tally = limits, tally
        self.loop = asyncio.get_running_loop()
        self.repeat, self.time = memory.repeat, self.loop.time
        self.holds = Timetable[Guest](self.loop, grain_s=_HOLD_GRAIN_S, call=lambda guest: guest.end_hold())
        self.idlers = Timetable[Guest](
            self.loop, grain_s=limits.idle_s / _IDLE_GRAINS, call=lambda guest: guest.look_idle()
        )
        self.is_draining = False
        self._share = limits.share
        self._guests: dict[Guest, str | None] = {}
        self._per_vm: Counter[str | None] = Counter()
        self._works: set[asyncio.Task[Rest]] = set()
        self._emptied = asyncio.Event()

    @property
    def size(self) -> int:
        return len(self._guests)

    @property
    def buffered_bytes(self) -> int:
        return sum(guest.buffered_bytes for guest in self._guests)

    def has_room(self, vm: str | None) -> bool:
        """Whether one more connection of the VM may be served; strangers share one allowance, as if they were one."""
        is_crowded = self._per_vm.get(vm, 0) >= self._share or len(self._guests) >= self.limits.connections
        if is_crowded or self.is_draining:
            self.tally.refused += 1
            return False
        self.tally.accepted += 1
        return True

    def admit(self, guest: Guest, caller: Caller) -> None:
        self._guests[guest] = caller.vm
        self._per_vm[caller.vm] += 1

    def leave(self, guest: Guest) -> None:
        if guest not in self._guests:
            return
        vm = self._guests.pop(guest)
        self._per_vm[vm] -= 1
        if not self._per_vm[vm]:
            del self._per_vm[vm]
        if not self._guests:
            self._emptied.set()

    def work(self, work: Work, then: Callable[[asyncio.Task[Rest]], None]) -> None:
        """Carry it through even if the caller hangs up: what it asked for was asked for."""
        task = self.loop.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        task.add_done_callback(then)

    async def drain(self, timeout_s: float) -> None:
        """Everybody is answered and leaves; who has not within the time is hung up on: everybody, if there is none."""
        self.is_draining = True
        self.memory.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if timeout_s > 0:
                    await self._drain()
        for guest in tuple(self._guests):
            guest.hang_up()
        for task in tuple(self._works):
            task.cancel()
        await self._until_empty()

    async def _drain(self) -> None:
        for index, guest in enumerate(tuple(self._guests), start=1):
            guest.drain()
            if index % _DRAINS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._until_empty()
        if self._works:
            await asyncio.wait(self._works)

    async def _until_empty(self) -> None:
        while self._guests:
            self._emptied.clear()
            await self._emptied.wait()
