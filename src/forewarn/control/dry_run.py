"""Rehearsals: a request is carried out on a copy of what it concerns, in virtual time, by the very same decisions.

Nothing of it is committed here. The copy is read in stretches and played in a thread, one rehearsal at a time, so
that VMs are answered meanwhile; what is too much to play is told as far as it goes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from forewarn.clock import LabClock, Setting
from forewarn.control.control import Control, Outside
from forewarn.core.change import Commit
from forewarn.core.event import Act, Event, Status
from forewarn.core.fleet import Vm
from forewarn.core.history import What
from forewarn.core.policy import Policy
from forewarn.core.preview import Preview, preview_of, preview_of_wave
from forewarn.core.request import Request, Rollout
from forewarn.core.rollout import next_wave
from forewarn.core.scope import Scope
from forewarn.errors import Refused
from forewarn.hypervisor.ledger import Ledger
from forewarn.hypervisor.simulated import Simulated
from forewarn.store.memory import MemoryStore
from forewarn.store.seam import Polled, Store

MOST_PLAYED = 2_000  # VMs that a request is about, to be followed to its end
MOST_COPIED = 20_000  # VMs that share scopes with those
_MOST_STEPS = 20_000
_LONGEST_S = 10.0  # of real time
_LOOKED_THROUGH = 1_000  # events of a scope, for the last act on each of its VMs
_AT_A_STRETCH = 100  # scopes read before others get their turn
_LIVE = (Status.SCHEDULED, Status.STARTED)

Deed = Callable[[Control], Awaitable[Request]]  # what is asked for, of whichever control it is given


class TooMany(Refused):
    """More is concerned than can be copied; it can be asked for all the same."""


async def rehearse(control: Control, deed: Deed, vms: Sequence[Vm]) -> Preview:
    """What would come of a deed that is about these VMs; raises as the deed itself would."""
    async with control.rehearsing:
        excerpt = await _excerpt(control, {vm.scope_id for vm in vms})
        return await asyncio.to_thread(_play_alone, excerpt, deed, len(vms))


async def rehearse_rollout(
    control: Control, rollout: Rollout, *, who: str, notice_s: float, short_notice: bool
) -> Preview:
    request = control.requests.planned_rollout(rollout, who=who, notice_s=notice_s, short_notice=short_notice)
    assert request.rollout is not None
    vms = control.rollouts.vms_of(request.rollout)
    if len(vms) > MOST_PLAYED:
        wave = next_wave(request, vms, (), (), _new_ids())
        return preview_of_wave(wave.planned, now=control.clock.now(), vms=len(vms))

    async def start(copy: Control) -> Request:
        return await copy.requests.start_rollout(rollout, who=who, notice_s=notice_s, short_notice=short_notice)

    return await rehearse(control, start, vms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excerpt:
    """What is stored of some scopes, and the circumstances."""

    commit: Commit
    at_work: list[tuple[Act, float]]  # acts that a hypervisor is performing, and since when
    polls: list[Polled]
    faults: bytes | None
    now: float
    real_now: float
    policy: Policy
    resumed_at: float | None

    async def laid_out(self) -> MemoryStore:
        store = MemoryStore()
        if self.faults is not None:
            await store.save("faults", self.faults)
        await store.commit(self.commit)
        await store.observe(self.polls, [])
        return store


async def _excerpt(control: Control, concerned: set[str]) -> _Excerpt:
    store = control.store
    is_whole = store.counts().vms <= MOST_PLAYED
    scopes = await _scopes(store, set(store.scope_ids()) if is_whole else concerned)
    rollouts = [request for request in store.requests(open_only=True) if request.rollout is not None]
    events = {event.id: event for scope in scopes.values() for event in scope.events}
    for request in rollouts:  # which VMs one is done with is read off its events
        events |= {e.id: e for e in store.events(request_id=request.id) if e.scope_id in scopes}
    planned = tuple(item for item in store.planned() if item.scope_id in scopes)
    gates = {gate_id: store.gate(gate_id) for gate_id in _gates_of((*events.values(), *planned))}
    vms = store.vms() if is_whole else [vm for scope in scopes.values() for vm in scope.vms]
    return _Excerpt(
        commit=Commit(
            scopes=tuple(replace(scope, version=0) for scope in scopes.values()),
            vms=tuple(vms),
            events=tuple(sorted(events.values(), key=_began)),
            hosts=tuple(store.hosts()),
            gates=tuple(replace(gate, version=0) for gate in gates.values() if gate is not None),
            requests=tuple(replace(request, version=0) for request in rollouts),
            planned=planned,
        ),
        at_work=_at_work(store, [event for scope in scopes.values() for event in scope.live(Status.STARTED)]),
        polls=[polled for scope_id in scopes for polled in store.polls(scope_id=scope_id)],
        faults=store.saved("faults"),
        now=control.clock.now(),
        real_now=control.faults.real_time(),
        policy=control.desk.policy,
        resumed_at=control.desk.resumed_at,
    )


async def _scopes(store: Store, wanted: set[str]) -> dict[str, Scope]:
    """These, and all that wait for the same gates as they do."""
    found: dict[str, Scope] = {}
    gates: set[str] = set()
    vms = 0
    while wanted:
        scope_id = min(wanted)
        wanted.discard(scope_id)
        if (scope := store.scope(scope_id)) is None:
            continue
        found[scope_id] = scope
        vms += len(scope.vms)
        if vms > MOST_COPIED:
            raise TooMany(f"what this concerns has more than {MOST_COPIED} VMs, too many to rehearse: ask for fewer")
        for gate_id in _gates_of(scope.events) - gates:
            gates.add(gate_id)
            wanted |= {event.scope_id for event in store.events(gate_id=gate_id, statuses=_LIVE)} - found.keys()
        if len(found) % _AT_A_STRETCH == 0:
            await asyncio.sleep(0)
    return found


def _began(event: Event) -> tuple[float, int]:
    """Acts on one VM are performed in the order in which their events started."""
    return (math.inf if event.started_at is None else event.started_at, event.seq)


def _at_work(store: Store, started: list[Event]) -> list[tuple[Act, float]]:
    """Of each VM the first act that is owed: it began with its event, or when the one before it was done."""
    first: dict[str, tuple[Act, Event]] = {}
    for event in sorted(started, key=_began):
        for act in event.owed:
            first.setdefault(act.vm, (act, event))
    free = {event.scope_id: _free_since(store, event.scope_id) for _, event in first.values()}
    return [
        (act, max(event.started_at or 0.0, free[event.scope_id].get(vm, 0.0))) for vm, (act, event) in first.items()
    ]


def _free_since(store: Store, scope_id: str) -> dict[str, float]:
    """When the last act on each VM was done."""
    done: dict[str, float] = {}
    for event in store.events(scope_id=scope_id, limit=_LOOKED_THROUGH):
        for act in event.acts:
            if act.outcome is not None:
                done[act.vm] = max(act.outcome.at, done.get(act.vm, 0.0))
    return done


def _gates_of(things: Iterable[object]) -> set[str]:
    return {gate_id for thing in things if (gate_id := getattr(thing, "gate_id", ""))}


def _play_alone(excerpt: _Excerpt, deed: Deed, vms: int) -> Preview:
    return asyncio.run(_play(excerpt, deed, vms))


async def _play(excerpt: _Excerpt, deed: Deed, vms: int) -> Preview:
    store = await excerpt.laid_out()
    hypervisor = Simulated(Ledger.open(None))
    for act, since in excerpt.at_work:
        await hypervisor.perform(act, since)
    control = Control(
        store=store,
        clock=LabClock(Setting(lab_at=excerpt.now, real_at=0.0, speed=0.0), real=lambda: 0.0),
        hypervisor=hypervisor,
        outside=Outside(new_id=_new_ids(), polls=store.polls, real_time=lambda: excerpt.real_now),
        policy=excerpt.policy,
    )
    control.desk.resumed_at = excerpt.resumed_at
    try:
        request = await deed(control)
        await control.reconciler.settle()
        if vms <= MOST_PLAYED:
            await _to_the_end(control, request)
        return _seen(store, request, vms, excerpt.now)
    finally:
        await control.close()
        await hypervisor.close()


async def _to_the_end(control: Control, request: Request) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _LONGEST_S
    for _ in range(_MOST_STEPS):
        if _is_over(control.store, request) or loop.time() > until or not await control.labtime.step():
            return


def _is_over(store: Store, request: Request) -> bool:
    known = store.request(request.id)
    if known is not None and known.rollout is not None:
        return known.rollout.closed
    live = store.events(request_id=request.id, statuses=_LIVE)
    return not live and not store.planned(request_id=request.id)


def _seen(store: Store, request: Request, vms: int, now: float) -> Preview:
    skipped = [entry.text for entry in store.history(request_id=request.id) if entry.what is What.SKIPPED]
    events = store.events(request_id=request.id)
    return preview_of(events, now=now, vms=vms, is_over=_is_over(store, request), skipped=skipped)


def _new_ids() -> Callable[[], str]:
    """Ids that are nobody's, and come after those of earlier things, as later ones do in tests."""
    numbers = count(1)
    return lambda: f"FFFFFFFF-FFFF-4FFF-BFFF-{next(numbers):012X}"
