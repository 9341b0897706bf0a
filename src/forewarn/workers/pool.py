"""The owner's side of many processes: starts workers, tells them everything, writes down what they ask, replaces them.

In the place of a `MetadataServer`, and of the `Board` it answers from. What there is to know is kept here as the bytes
that workers are told, under one key each: a worker that begins is told all of it, and every change after that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from forewarn.assembly.member import Member
from forewarn.assembly.pipe import Key
from forewarn.assembly.stand import Stands
from forewarn.clock import Clock, LabClock, Setting
from forewarn.core.fault import Fault, Sphere
from forewarn.errors import ForewarnError, Rejected, Unavailable
from forewarn.metadata import Backend, Callers, Listener, Observations, ScopeView, feed
from forewarn.metadata.allowance import SharedAllowance
from forewarn.metadata.counted import Counted, together
from forewarn.metadata.fault import FaultTable
from forewarn.metadata.past import Past
from forewarn.protocol.identity import Token, WrongResource

log = logging.getLogger(__name__)
_BEAT_S = 0.25
_HUNG_S = 10.0  # a worker that has answered nothing for so long is replaced
_BIRTH_S = 30.0  # the same until its first answer: on a busy machine a process takes long to begin
_SOUND_S = 10.0  # one that lived so long did not fail to start
_LONGEST_WAIT_S = 30.0
_PATIENCE_S = 1.0  # for workers to do what they were told; those that are stuck are not waited for
_LAGS_KEPT = 1000


class Crew:
    def __init__(
        self,
        size: int,
        *,
        begin: feed.Begin,
        backend: Backend,
        callers: Callers,
        clock: Clock,
        windows: Sequence[socket.socket] = (),
        hung_s: float = _HUNG_S,
        birth_s: float = _BIRTH_S,
    ) -> None:
        """`windows`: where each worker shows its metrics, if any are to be shown."""
        self.size = size
        self.observations = Observations()
        self.faults = FaultTable(Past(), now=backend.now)  # gathers what they touch in workers
        self.lags: deque[float] = deque(maxlen=_LAGS_KEPT)  # seconds from saying something to its being done
        self._backend = backend
        self._state: dict[Key, bytes] = {"begin": feed.pack(begin)}
        self._allowance = SharedAllowance.new()
        self._members: list[Member | None] = [None] * size
        self._leavers: set[Member] = set()
        self._successors: dict[int, Member] = {}  # that are not ready yet, by slot
        self._reloading = asyncio.Lock()
        self._windows = windows
        self._hung_s, self._birth_s = hung_s, birth_s
        self._past = Counted()  # by workers that are gone
        self._stands = Stands(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._burials: set[asyncio.Task[None]] = set()
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited = set(range(size))  # slots in which nobody was ever ready
        self._is_stopping = self._state_is_whole = False
        if isinstance(clock, LabClock):
            clock.follow(self._set_clock)
        callers.follow_places(self._seat)

    async def begin(self) -> None:
        """Start the workers, which know nothing yet and serve nobody."""
        self._spawn(self._beat())
        for slot in range(self.size):
            self._spawn(self._keep(slot))
        await asyncio.sleep(0)  # their processes are there

    async def complete(self) -> None:
        """All there is to know was told, and is known on return. Unavailable: one of the workers did not start."""
        self._state_is_whole = True
        for member in self._alive:
            member.tell("complete", feed.pack(feed.Complete()))
        try:
            await self._begun
        except BaseException:
            await self._end()
            raise

    def publish(self, scope: ScopeView) -> None:
        """Show this from now on, everywhere."""
        raw = feed.pack(feed.show(scope))
        key = ("scope", scope.scope_id)
        if self._state.get(key) != raw:
            self._tell(key, raw)

    def arm(self, faults: Sequence[Fault]) -> None:
        armed = tuple(fault for fault in faults if fault.sphere is Sphere.TRANSPORT)
        places = self._allowance.lay_out(armed)
        self._tell("faults", feed.pack(feed.Faults(armed, dict(places))))

    async def start(self, listeners: Sequence[Listener]) -> None:
        """Serve these too; may be called again while workers run."""
        for listener in listeners:
            self._stands.add(listener)
        self._share_out()

    async def stop(self, listener: Listener) -> None:
        """Accept nobody there any more; whoever is connected stays."""
        self._stands.remove(listener)
        self._share_out()

    async def caught_up(self) -> None:
        """All that was published until now is shown by every worker that is well."""
        await self._all(member.echo() for member in self._serving)

    async def report(self) -> None:
        """What VMs asked until now, of whichever worker, is in `observations` and `faults`."""
        await self._all(member.report() for member in self._serving)

    async def reload(self, timeout_s: float) -> None:
        """Another process in the place of every worker, one after the other: nobody is refused meanwhile.

        Each goes on accepting until its successor does, answers whoever is held or in work, and ends.
        """
        async with self._reloading:
            for slot in range(self.size):
                if not self._is_stopping:
                    await self._replace(slot, timeout_s)

    async def drain(self, timeout_s: float) -> None:
        """Workers answer whoever is held or in work, tell what they have seen, and end."""
        self._is_stopping = True
        for listener in self._stands.listeners:
            await self.stop(listener)
        for member in self._alive:
            member.tell("drain", feed.pack(feed.Drain(timeout_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _PATIENCE_S):
                await asyncio.gather(*(member.gone.wait() for member in self._alive))
        await self._end()

    def shown(self) -> list[dict[str, Any]]:
        """The workers, for people."""
        return [
            {
                "pid": member.pid if member else None,
                "ready": bool(member and member.is_serving),
                "behind_ms": round(member.behind_s * 1000, 1) if member else None,
            }
            for member in self._members
        ]

    def counted(self) -> Counted:
        """By all workers there were, as far as they told."""
        return together(self._past, *(member.counted for member in self._alive))

    def behind(self) -> list[tuple[float, float]]:
        """Of each slot's worker: how long what was said last took to be done there, and for how long it owes an

        answer. Of an empty slot: for ever.
        """
        return [(m.behind_s, m.silent_s()) if m else (math.inf, math.inf) for m in self._members]

    @property
    def _alive(self) -> list[Member]:
        there = (member for member in self._members if member is not None)
        return [*there, *self._successors.values(), *self._leavers]

    @property
    def _serving(self) -> list[Member]:
        return [member for member in self._members if member is not None and member.is_serving]

    async def _all(self, awaited: Iterable[asyncio.Future[None]]) -> None:
        futures = list(awaited)
        if futures:
            await asyncio.wait(futures, timeout=_PATIENCE_S)

    def _tell(self, key: Key, raw: bytes) -> None:
        self._state[key] = raw
        for member in self._alive:
            member.tell(key, raw)

    def _set_clock(self, setting: Setting) -> None:
        self._tell("clock", feed.pack(feed.Clock(setting)))

    def _seat(self, place: str, vm: str | None) -> None:
        key = ("place", place)
        self._tell(key, feed.pack(feed.Seat(place, vm)))
        if vm is None:
            del self._state[key]

    def _share_out(self) -> None:
        self._stands.share_out(self._serving)

    async def _keep(self, slot: int) -> None:
        """Somebody is in this slot, always; after failures in a row, after a while."""
        failures = 0
        while not self._is_stopping:
            began_at = asyncio.get_running_loop().time()
            member = self._members[slot] or self._hire(slot)
            if member is not None:
                await member.over.wait()
            if self._is_stopping:
                return
            if member is not None and member.is_leaving:
                continue
            is_sound = asyncio.get_running_loop().time() - began_at > _SOUND_S
            failures = 1 if is_sound else failures + 1
            wait_s = 0.0 if failures == 1 else min(_LONGEST_WAIT_S, 2.0 ** (failures - 3))
            self._mourn(slot, member, wait_s)
            await asyncio.sleep(wait_s)

    async def _replace(self, slot: int, timeout_s: float) -> None:
        old = self._members[slot]
        if old is None or not old.is_serving:
            return  # another is on its way already
        successor = self._launch(slot)
        if successor is None:
            return
        self._successors[slot] = successor
        await successor.is_clear.wait()
        del self._successors[slot]
        if self._members[slot] is not old or not successor.is_serving:
            log.warning("worker %d (process %d) is not replaced", slot, old.pid)
            self._leavers.add(successor)
            successor.kill()
            return
        self._members[slot] = successor
        self._leavers.add(old)
        self._share_out()
        await self._all([successor.echo()])
        old.tell("drain", feed.pack(feed.Drain(timeout_s)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s + _PATIENCE_S):
                await old.gone.wait()

    def _hire(self, slot: int) -> Member | None:
        member = self._members[slot] = self._launch(slot)
        return member

    def _launch(self, slot: int) -> Member | None:
        """A process that is told all there is to know, and serves nobody yet."""
        try:
            member = Member(slot, shared=self._allowance.file, hear=self._hear, lost=self._lose)
        except OSError as error:
            log.warning("worker %d cannot be started: %s", slot, error)
            return None
        for key, raw in self._state.items():
            member.tell(key, raw)
        if self._windows:
            member.tell("expose", feed.pack(feed.Expose()), self._windows[slot])
        if self._state_is_whole:
            member.tell("complete", feed.pack(feed.Complete()))
        return member

    def _mourn(self, slot: int, member: Member | None, wait_s: float) -> None:
        what = f"worker {slot}" + (f" (process {member.pid})" if member else "")
        when = f"in {wait_s:g} s" if wait_s else "now"
        log.warning("%s ended though nobody told it to: another is started %s", what, when)
        if slot in self._awaited and not self._begun.done():
            self._begun.set_exception(Unavailable(f"{what} ended before it was ready: the log says why"))

    def _hear(self, member: Member, message: Any) -> None:
        match message:
            case feed.Enable() | feed.Approve() | feed.AskToken():
                self._spawn(self._answer(member, message))
            case feed.Seen():
                self._gather(member, message)
            case feed.Ready():
                member.is_ready = True
                member.is_clear.set()
                self._awaited.discard(member.slot)
                if not self._awaited and not self._begun.done():
                    self._begun.set_result(None)
                self._share_out()
            case feed.Silence():
                member.say(feed.Resume())  # after all that waits to be sent
            case feed.Leaving():
                self._let_go(member)

    def _let_go(self, member: Member) -> None:
        member.is_leaving = True
        if not self._is_stopping:
            self._leavers.add(member)
            if self._members[member.slot] is member:
                self._members[member.slot] = None
                self._share_out()
        member.over.set()

    def _lose(self, member: Member) -> None:
        self._leavers.discard(member)
        self._past, member.counted = together(self._past, member.counted.over()), Counted()
        if self._members[member.slot] is member:
            self._members[member.slot] = None
            self._share_out()
        member.kill()
        burial = asyncio.get_running_loop().create_task(member.bury())
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    def _gather(self, member: Member, seen: feed.Seen) -> None:
        self.observations.gather(seen.polls, seen.sightings)
        member.counted = seen.counted or member.counted
        self.faults.put_back(seen.touches)

    async def _answer(self, member: Member, ask: feed.Ask) -> None:
        """Durable before it is answered; and whoever asked is told what follows from it first."""
        reply: feed.Reply
        try:
            reply = feed.reply(ask.id, await self._do(ask))
        except ForewarnError as error:
            reply = feed.failure(ask.id, error)
        except Exception:
            log.exception("what a worker asked for met a mistake of ours")
            reply = feed.failure(ask.id, Rejected("a mistake of the service"))
        member.say(reply)

    async def _do(self, ask: feed.Ask) -> str | Token | WrongResource | None:
        match ask:
            case feed.Enable(vm=vm):
                await self._backend.enable(vm)
                return None
            case feed.Approve(vm=vm, event_ids=event_ids):
                return await self._backend.approve(vm, event_ids)
            case feed.AskToken(identity=identity, resource=resource):
                return await self._backend.token(identity, resource)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            for member in self._alive:
                if self._hangs(member):
                    log.warning("worker %d (process %d) hangs: ending it", member.slot, member.pid)
                    member.kill()
                    continue
                echoed = member.beat()
                if member.is_ready:
                    echoed.add_done_callback(partial(self._note_lag, member))

    def _hangs(self, member: Member) -> bool:
        """Counted in beats: while we were stopped ourselves there were none, and nobody missed any."""
        return member.missed * _BEAT_S >= (self._hung_s if member.has_answered else self._birth_s)

    def _note_lag(self, member: Member, echoed: asyncio.Future[None]) -> None:
        self.lags.append(member.behind_s)

    async def _end(self) -> None:
        self._is_stopping = True
        alive = self._alive
        for member in alive:
            member.kill()
        await asyncio.gather(*(member.gone.wait() for member in alive))
        await asyncio.gather(*self._burials)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._allowance.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
