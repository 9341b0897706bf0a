"""Storms: schedules of faults that follow from a seed, played in lab time; the schedule is stored, and goes on after
a restart.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec.structs import replace

from forewarn.control.desk import Desk
from forewarn.control.faultbook import FaultBook
from forewarn.control.faults import Faults, Target, Wish
from forewarn.core.change import Commit
from forewarn.core.fault import Gust, Storm
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.storm import Exposed, gusts_of
from forewarn.errors import NotFound, Refused, Rejected

_LONGEST_S = 24 * 3600.0


class Storms:
    def __init__(self, *, desk: Desk, book: FaultBook, faults: Faults) -> None:
        self._desk = desk
        self._store = desk.store
        self._book = book
        self._faults = faults

    async def start(self, seed: int, vms: Sequence[Vm], *, for_s: float, who: str) -> Storm:
        if not 0 < for_s <= _LONGEST_S:
            raise Rejected(f"a storm of {for_s:g} s cannot be: give more than 0 s, up to {_LONGEST_S:g} s")
        if not vms:
            raise Refused("a storm needs a VM to hit, and the fleet has none: add some with `forewarn fleet apply`")
        gusts = gusts_of(seed, self._exposed(vms), for_s)
        async with self._book.writing:
            book = self._book.book
            number = book.last_number + 1
            storm = Storm(id=f"s{number}", seed=seed, who=who, set_at=self._now(), for_s=for_s, gusts=gusts)
            await self._book.adopt(replace(book, last_number=number, storms=(*book.storms, storm)))
        await self._say(who, f"storm {storm.id} with seed {seed} set by {who}: {len(gusts)} faults within {for_s:g} s")
        return storm

    async def clear(self, ids: Container[str], *, who: str) -> tuple[Storm, ...]:
        """End these; the faults that they have set stay until they run out."""
        async with self._book.writing:
            book = self._book.book
            ended = tuple(storm for storm in book.storms if storm.id in ids)
            if ended:
                await self._book.adopt(replace(book, storms=tuple(s for s in book.storms if s not in ended)))
        for storm in ended:
            await self._say(who, f"storm {storm.id} cleared by {who}")
        return ended

    async def turn(self) -> bool:
        """A step of the reconciler's turn: set the faults whose moment has come."""
        did = False
        while (storm := self._due()) is not None:
            await self._blow(storm, storm.gusts[storm.gone])
            did = True
        return did

    def next_at(self) -> float | None:
        moments = (storm.next_at for storm in self._book.book.storms)
        return min((at for at in moments if at is not None), default=None)

    def _due(self) -> Storm | None:
        now = self._now()
        return next((s for s in self._book.book.storms if s.next_at is not None and s.next_at <= now), None)

    async def _blow(self, storm: Storm, gust: Gust) -> None:
        """Set the fault, then note that it is set: a crash in between repeats it."""
        vm = self._store.vm(gust.vm)
        name = vm.name if vm else gust.vm
        try:
            if vm is None or vm.removed_at is not None:
                raise NotFound(f"VM {name!r} does not exist any more")
            await self._faults.set(_wish(gust, vm), who=f"storm {storm.id}")
        except Rejected as error:
            await self._say(storm.who, f"storm {storm.id} left out {gust.kind} for {name}: {error}")
        await self._go_on(storm)

    async def _go_on(self, storm: Storm) -> None:
        further = replace(storm, gone=storm.gone + 1)
        async with self._book.writing:
            book = self._book.book
            storms = tuple(further if s.id == storm.id else s for s in book.storms)
            await self._book.adopt(replace(book, storms=tuple(s for s in storms if s.next_at is not None)))
        if further.next_at is None:
            await self._say(storm.who, f"storm {storm.id} is over: the last of its faults is set")

    def _exposed(self, vms: Sequence[Vm]) -> list[Exposed]:
        sizes = {scope_id: len(self._store.vms(scope_id=scope_id)) for scope_id in {vm.scope_id for vm in vms}}
        return [Exposed(vm=vm.key, has_neighbour=sizes[vm.scope_id] > 1) for vm in vms]

    async def _say(self, who: str, text: str) -> None:
        await self._store.commit(Commit(entries=(Entry(at=self._now(), what=What.FAULT, who=who, text=text),)))

    def _now(self) -> float:
        return self._desk.clock.now()


def _wish(gust: Gust, vm: Vm) -> Wish:
    target = Target(name=vm.name, vm=vm)
    return Wish(kind=gust.kind, target=target, count=gust.count, for_s=gust.for_s, parameters=gust.parameters)
