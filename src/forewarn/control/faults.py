"""Use cases about faults: set and clear them, let them run out. What is set is durable and told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from forewarn.control.desk import Desk
from forewarn.control.faultbook import FaultBook
from forewarn.core import mishap
from forewarn.core.change import Commit
from forewarn.core.fault import FAULTS, Book, Fault, FaultKind, Sphere, Touch, checked, lasting_s
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.planning import apply
from forewarn.core.policy import Around
from forewarn.core.request import Planned
from forewarn.core.scope import Scope
from forewarn.errors import Refused

_MOST_FAULTS = 1000
_MOST_VMS_COUNTED = 100  # of one fault, singly


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom a fault is for: a VM, a scope, or with neither everything."""

    name: str = "every VM"
    vm: Vm | None = None
    scope_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    kind: FaultKind
    target: Target
    count: int | None = None
    for_s: float | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)


class Faults:
    def __init__(
        self, *, desk: Desk, book: FaultBook, new_id: Callable[[], str], real_time: Callable[[], float]
    ) -> None:
        self._desk = desk
        self._store = desk.store
        self._book = book
        self._new_id = new_id
        self._real_time = real_time

    @property
    def book(self) -> Book:
        return self._book.book

    def real_time(self) -> float:
        return self._real_time()

    def follow(self, hear: Callable[[tuple[Fault, ...]], None]) -> None:
        self._book.follow(hear)

    async def set(self, wish: Wish, *, who: str) -> Fault:
        """The fault, which is on from now; one that happens at once has happened."""
        async with self._book.writing:
            return await self._set(wish, who)

    async def clear(self, chosen: Callable[[Fault], bool], *, who: str) -> tuple[Fault, ...]:
        async with self._book.writing:
            book = self.book
            cleared = tuple(fault for fault in book.faults if chosen(fault))
            await self._drop(book, cleared, f"cleared by {who}", who)
            return cleared

    async def note(self, touches: Sequence[Touch]) -> None:
        """What was spoiled since the last time."""
        if not touches:
            return
        async with self._book.writing:
            book = self.book
            noted = tuple(_noted(f, [t for t in touches if t.fault_id == f.id]) for f in book.faults)
            if noted != book.faults:
                await self._book.adopt(replace(book, faults=noted))

    async def expire(self) -> bool:
        """Drop what has run out by now; whether there was any. A step of the reconciler's turn, too."""
        if not self._over():
            return False
        async with self._book.writing:
            over = self._over()
            await self._drop(self.book, over, "ran out", "forewarn")
            return bool(over)

    def next_at(self) -> float | None:
        """When a fault runs out in lab time."""
        ends = (fault.until for fault in self.book.faults if fault.sphere is Sphere.EVENTS)
        return min((at for at in ends if at is not None), default=None)

    async def _set(self, wish: Wish, who: str) -> Fault:
        lasts_s, parameters = lasting_s(wish.kind, wish.count, wish.for_s), checked(wish.kind, wish.parameters)
        book, vm = self.book, wish.target.vm
        if len(book.faults) >= _MOST_FAULTS:
            raise Refused(f"{_MOST_FAULTS} faults are on, and that is the most: clear some with `forewarn fault clear`")
        fault = Fault(
            id=f"f{book.last_number + 1}",
            kind=wish.kind,
            who=who,
            set_at=self._now(),
            name=wish.target.name,
            vm=vm.key if vm else "",
            vm_name=vm.name if vm else "",
            scope_id=vm.scope_id if vm else wish.target.scope_id,
            count=wish.count,
            until=None if lasts_s is None else self._time_of(FAULTS[wish.kind].sphere) + lasts_s,
            parameters=parameters,
        )
        if fault.sphere is Sphere.AT_ONCE:
            return await self._strike(fault)
        await self._book.adopt(replace(book, last_number=book.last_number + 1, faults=(*book.faults, fault)))
        await self._say(self._about(fault, f"set for {fault.name} by {who}{_extent(wish, lasts_s)}", who))
        return fault

    async def _strike(self, fault: Fault) -> Fault:
        """Now, in each scope that it is for; Refused if there is none that it can be done to."""
        await self._book.adopt(replace(self.book, last_number=self.book.last_number + 1))
        entry = self._about(fault, f"set for {fault.name} by {fault.who}", fault.who)
        if fault.scope_id:
            await self._strike_scope(fault, fault.scope_id, Commit(entries=(entry,)))
            return replace(fault, touched=_made(fault))
        done, refusal = 0, Refused(f"fault {fault.kind} needs a scope to happen to, and the fleet has none: add VMs")
        for scope_id in self._store.scope_ids():
            try:
                await self._strike_scope(fault, scope_id, Commit(entries=() if done else (entry,)))
                done += 1
            except Refused as error:
                refusal = error
        if not done:
            raise refusal
        return replace(fault, touched=_made(fault) * done)

    async def _strike_scope(self, fault: Fault, scope_id: str, also: Commit) -> None:
        ids = [self._new_id() for _ in range(_made(fault))]

        def decision(scope: Scope, around: Around) -> Scope:
            if fault.kind is FaultKind.INCARNATION_RESET:
                return mishap.reset(scope, fault, around.now)
            for item in _planned(fault, scope, ids):
                scope = apply(scope, item, around)
            return mishap.marked(scope, fault, ids)

        await self._desk.decide(scope_id, decision, also=also)

    async def _drop(self, book: Book, over: tuple[Fault, ...], how: str, who: str) -> None:
        if not over:
            return
        ids = {fault.id for fault in over}
        await self._book.adopt(replace(book, faults=tuple(f for f in book.faults if f.id not in ids)))
        await self._say(*(self._about(fault, f"of {fault.name} {how}: {_touched(fault)}", who) for fault in over))

    def _over(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.book.faults if fault.is_over(self._time_of(fault.sphere)))

    def _about(self, fault: Fault, text: str, who: str) -> Entry:
        return replace(self._entry(who, f"{fault.title} {text}"), vm=fault.vm_name, scope_id=fault.scope_id)

    def _entry(self, who: str, text: str) -> Entry:
        return Entry(at=self._now(), what=What.FAULT, who=who, text=text)

    async def _say(self, *entries: Entry) -> None:
        await self._store.commit(Commit(entries=entries))

    def _time_of(self, sphere: Sphere) -> float:
        return self._real_time() if sphere is Sphere.TRANSPORT else self._now()

    def _now(self) -> float:
        return self._desk.clock.now()


def _planned(fault: Fault, scope: Scope, ids: Sequence[str]) -> tuple[Planned, ...]:
    if fault.kind is FaultKind.NEIGHBOUR_ONLY:
        return (mishap.neighbours_freeze(fault, scope, ids[0]),)
    return mishap.freezes_for(fault, scope, ids)


def _made(fault: Fault) -> int:
    """How many events it makes in a scope; a reset is one thing, too."""
    return int(fault.value("events")) if fault.kind is FaultKind.SEVERAL_AT_ONCE else 1


def _noted(fault: Fault, touches: list[Touch]) -> Fault:
    by_vm = dict(fault.touched_by_vm)
    for touch in touches:
        if touch.vm in by_vm or len(by_vm) < _MOST_VMS_COUNTED:
            by_vm[touch.vm] = by_vm.get(touch.vm, 0) + touch.count
    if not touches:
        return fault
    total = fault.touched + sum(touch.count for touch in touches)
    return replace(fault, touched=total, touched_by_vm=by_vm, touched_at=max(touch.at for touch in touches))


def _extent(wish: Wish, lasts_s: float | None) -> str:
    things = "request" if FAULTS[wish.kind].sphere is Sphere.TRANSPORT else "event"
    count = "" if wish.count is None else f", {wish.count} {things}{'s' if wish.count > 1 else ''} at most"
    lasting = "" if lasts_s is None else f", for {lasts_s:g} s at most"
    values = "".join(f", {_spoken(name, value)}" for name, value in wish.parameters.items())
    return f"{values}{count}{lasting}"


def _spoken(name: str, value: float) -> str:
    """`retry_after_s` is `retry-after` to people, in seconds."""
    return f"{name.removesuffix('_s').replace('_', '-')} {value:g}{' s' if name.endswith('_s') else ''}"


def _touched(fault: Fault) -> str:
    things = "request" if fault.sphere is Sphere.TRANSPORT else "event"
    return f"it touched {fault.touched} {things}{'' if fault.touched == 1 else 's'}"
