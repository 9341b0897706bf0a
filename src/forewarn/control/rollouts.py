"""Rollouts in progress: publish the next update domain's events, stop at too many failures, wind down, close."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from forewarn.control.desk import Desk
from forewarn.core import lifecycle
from forewarn.core.agenda import PLATFORM, turn
from forewarn.core.change import Commit
from forewarn.core.event import Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.policy import Around
from forewarn.core.request import Planned, Progress, Request, Rollout, Tally
from forewarn.core.rollout import next_wave, progress_of, remaining, tally, why_ended
from forewarn.core.scope import Scope
from forewarn.errors import Conflict
from forewarn.store.seam import Committed

_ENDED = {Progress.STOPPED, Progress.ABORTED, Progress.COMPLETED}
_PATIENCE_S = 10.0  # how long room for more events may stay unused while acts are due


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Whom a rollout is about now, and its events so far: much to read of a large one, so read once."""

    vms: list[Vm]
    events: list[Event]


class Rollouts:
    def __init__(self, *, desk: Desk, new_id: Callable[[], str]) -> None:
        self._desk = desk
        self._store = desk.store
        self._new_id = new_id
        self._stirred: set[str] = {request.id for request in self._store.requests(open_only=True)}
        self._eased: dict[str, float] = {}  # rollouts that may have room for more events → since when

    def hear(self, committed: Committed) -> None:
        """Remember which rollouts something has happened to; only those are looked at.

        An event that is published or starts leaves a rollout nothing to do: its VMs were spoken for already.
        """
        commit = committed.commit
        self._stirred.update(request.id for request in commit.requests if request.is_open)
        for event in (event for event in commit.events if event.row.planned):
            if event.failures:
                self._stirred.add(event.request_id)  # enough of them stop it
            elif not event.is_live:
                self._eased.setdefault(event.request_id, self._now())
        self._stirred.update(entry.request_id for entry in commit.entries if entry.what is What.SKIPPED)

    async def turn(self, *, acts_are_due: bool = False) -> bool:
        """Look at all of a rollout once for many of its events that end at one moment, each after its act."""
        self._stir_eased(acts_are_due)
        did = False
        for request_id in sorted(self._stirred):
            self._stirred.discard(request_id)
            request = self._store.request(request_id)
            if request is None or request.rollout is None or not request.is_open:
                continue
            try:
                did |= await self._turn_one(request, request.rollout)
            except Conflict:
                self._stirred.add(request_id)
                did = True
            except BaseException:
                self._stirred.add(request_id)
                raise
        return did

    def _stir_eased(self, acts_are_due: bool) -> None:
        latest = self._now() - _PATIENCE_S if acts_are_due else math.inf
        for request_id in [request_id for request_id, since in self._eased.items() if since <= latest]:
            del self._eased[request_id]
            self._stirred.add(request_id)

    async def _turn_one(self, request: Request, rollout: Rollout) -> bool:
        vms = self.vms_of(rollout)
        events = self._store.events(request_id=request.id)
        planned = self._store.planned(request_id=request.id)

        left = len(remaining(rollout, vms, events, planned)) + len(planned)
        progress = progress_of(rollout, events, left)

        if progress is not rollout.progress:
            ended = replace(rollout, progress=progress, why=why_ended(rollout, events, progress))
            await self._mark(request, ended, _ended(request, ended, _failed(events), self._now()))
            return True
        if progress in _ENDED:
            return await self._wind_down(request, rollout, events, planned)
        if progress is Progress.RUNNING:
            return await self._publish(request, vms, events, planned)
        return False

    def vms_of(self, rollout: Rollout) -> list[Vm]:
        """The VMs a rollout is about as things are now."""
        if rollout.scope_id:
            return self._store.vms(scope_id=rollout.scope_id)
        return [vm for host in rollout.hosts for vm in self._store.vms(host=host)]

    async def _publish(self, request: Request, vms: list[Vm], events: list[Event], planned: list[Planned]) -> bool:
        wave = next_wave(request, vms, events, planned, self._new_id)
        if not wave.planned:
            return False
        # The version of the request guards against an abort that comes at the same moment.
        await self._store.commit(Commit(requests=(request,), planned=wave.planned, gates=wave.gates))
        return True

    async def _wind_down(self, request: Request, rollout: Rollout, events: list[Event], planned: list[Planned]) -> bool:
        if planned:
            await self._store.commit(Commit(requests=(request,), unplanned=tuple(p.event_id for p in planned)))
        for event in events:
            if event.status is Status.SCHEDULED:
                await self._desk.decide(event.scope_id, _withdrawing(event.id, rollout.progress))
        if not any(event.status is Status.STARTED for event in events):
            await self._mark(request, replace(rollout, closed=True, tally=self.tally_of(request, rollout)), None)
        return True

    def tally_of(self, request: Request, rollout: Rollout, reach: Reach | None = None) -> Tally:
        """How far it is; of one that is closed, as it was then."""
        if rollout.tally is not None:
            return rollout.tally
        reach = reach or self.reach_of(request, rollout)
        # One that is completed has reached everybody it was about; who came to its hosts or scope since is not.
        return tally([] if rollout.progress is Progress.COMPLETED else reach.vms, reach.events)

    def reach_of(self, request: Request, rollout: Rollout) -> Reach:
        return Reach(vms=self.vms_of(rollout), events=self._store.events(request_id=request.id))

    async def _mark(self, request: Request, rollout: Rollout, entry: Entry | None) -> None:
        entries = (entry,) if entry is not None else ()
        await self._store.commit(Commit(requests=(replace(request, rollout=rollout),), entries=entries))

    def _now(self) -> float:
        return self._desk.clock.now()


def _withdrawing(event_id: str, progress: Progress) -> Callable[[Scope, Around], Scope]:
    def decision(scope: Scope, around: Around) -> Scope:
        event = scope.event(event_id)
        if event is None or event.status is not Status.SCHEDULED:
            return scope
        reason = f"its rollout was {progress}"
        return turn(lifecycle.withdraw(scope, event, by=PLATFORM, reason=reason, now=around.now), around)

    return decision


def _failed(events: list[Event]) -> str:
    """`completed` or `completed with 3 failed VMs`."""
    failed = sum(len(event.failures) for event in events)
    return f" with {failed} failed {'VM' if failed == 1 else 'VMs'}" if failed else ""


def _ended(request: Request, rollout: Rollout, failed: str, now: float) -> Entry:
    if rollout.progress is Progress.STOPPED:
        text = f"rollout {request.id} stopped by itself: {rollout.why}; what has not started is withdrawn"
        return Entry(at=now, what=What.STOPPED, who=PLATFORM, text=text, request_id=request.id)
    text = f"rollout {request.id} completed{failed}" + (f": {rollout.why}" if rollout.why else "")
    return Entry(at=now, what=What.COMPLETED, who=PLATFORM, text=text, request_id=request.id)
