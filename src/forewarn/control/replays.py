"""Replays in progress: each step is committed with the scope it is shown to, and shown from then on.

A replay is a request; its script is kept beside it. An event of the scope's own ends a replay: what really happens
comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from forewarn.clock import LabClock
from forewarn.control.desk import Desk
from forewarn.core.agenda import PLATFORM
from forewarn.core.change import Commit
from forewarn.core.fleet import Vm
from forewarn.core.history import Entry, What
from forewarn.core.policy import Around
from forewarn.core.replay import (
    KNOWN_S,
    Ended,
    Replay,
    Shown,
    advanced,
    due_at,
    ids_so_far,
    interruption,
    next_step,
    shown,
    telling,
)
from forewarn.core.request import Ask, Request
from forewarn.core.scope import Scope
from forewarn.core.script import Recording, Script, Step, script_of
from forewarn.errors import Conflict, NotFound, Refused, Rejected
from forewarn.protocol.document import Notice, Status
from forewarn.store.seam import Committed

_RECENT = 10_000  # requests among which those that were replays are looked for
_MOST_LOOPS = 1000
_SPEEDS = (0.01, 10_000.0)


@dataclass(slots=True)
class _Playing:
    request: Request
    replay: Replay
    script: Script
    ids: set[str] = field(default_factory=set)  # that VMs were shown so far

    def due_at(self) -> float | None:
        return due_at(self.replay, self.script)

    def shown(self, scope: Scope) -> Shown | None:
        return shown(self.replay, self.script, self.request.id, scope)


class Replays:
    def __init__(self, *, desk: Desk, new_id: Callable[[], str]) -> None:
        self._desk = desk
        self._store = desk.store
        self._new_id = new_id
        self._known: dict[str, _Playing] = {}  # by request; those that are over for as long as their ids count
        since = desk.clock.now() - KNOWN_S
        for request in self._recent():
            if request.replay is not None and (request.replay.ended_at or since) >= since:
                self._learn(request, request.replay)

    def hear(self, committed: Committed) -> None:
        for heard in committed.commit.requests:
            if heard.replay is not None and (request := self._store.request(heard.id)) is not None:
                assert request.replay is not None
                self._learn(request, request.replay)

    async def start(
        self,
        vm: Vm,
        recording: Recording,
        *,
        who: str,
        speed: float = 1.0,
        loops: int = 1,
        names: Mapping[str, str] | None = None,
    ) -> Request:
        """Tell the story to the VM's scope; its first step is shown in the next turn."""
        self._must_be_lab()
        _must_be_within(speed, loops)
        script = script_of(recording, name=vm.name, names=names or {})
        request = self._request(vm, script, who=who, speed=speed, loops=loops)
        self._must_be_quiet(self._desk.scope(vm.scope_id), vm)

        def decision(scope: Scope, around: Around) -> Scope:
            self._must_be_quiet(scope, vm)
            return scope.saying(_requested(request))

        await self._store.save(_saved_as(request.id), msgspec.json.encode(script))
        await self._desk.decide(vm.scope_id, decision, also=Commit(requests=(request,)))
        return self.find(request.id)

    async def stop(self, replay_id: str, *, who: str) -> Request:
        """End a replay: the scope shows its own document again."""
        request = self.find(replay_id)
        assert request.replay is not None
        if request.replay.ended is not None:
            raise Refused(f"replay {request.id} is over ({request.replay.ended}): there is nothing to stop")
        await self._end(self._known[request.id], Ended.STOPPED, f"stopped by {who}", who=who)
        return self.find(request.id)

    def find(self, replay_id: str) -> Request:
        """The replay by its id, or by a beginning of it that no other has."""
        wanted = replay_id.strip().lower()
        found = [request for request in self.all() if wanted and request.id.startswith(wanted)]
        if not found:
            raise NotFound(f"replay {replay_id!r} does not exist: `forewarn replays` lists them")
        if len(found) > 1:
            raise Refused(f"replay {replay_id!r} is ambiguous, {len(found)} begin so: give more of the id")
        return found[0]

    def all(self) -> list[Request]:
        """Oldest first."""
        return [request for request in self._recent() if request.replay is not None]

    async def turn(self) -> bool:
        did = False
        for playing in self._open():
            try:
                did |= await self._turn_one(playing)
            except Conflict:
                did = True  # somebody ended it meanwhile: look again
        return did

    def next_at(self) -> float | None:
        """When a step is due next."""
        return min((at for playing in self._open() if (at := playing.due_at()) is not None), default=None)

    def shown(self, scope: Scope) -> Shown | None:
        """What takes the place of the scope's own document now, if a replay does."""
        playing = self._on(scope.id)
        return playing.shown(scope) if playing else None

    def step(self, request: Request) -> Step | None:
        """The step that is on show, for people."""
        playing = self._known.get(request.id)
        if playing is None or not playing.replay.done or playing.replay.ended:
            return None
        return playing.script.steps[playing.replay.done - 1]

    def knows(self, scope_id: str, event_id: str) -> bool:
        """Whether this was ever shown to the scope by a replay (spec §5.2)."""
        return any(event_id in playing.ids for playing in self._of(scope_id))

    def approvals(self, scope: Scope, event_ids: tuple[str, ...], *, by: str, now: float) -> Iterator[Entry]:
        """What the history says of approvals of replayed events; the first of each counts."""
        playing = self._on(scope.id)
        seen = playing.shown(scope) if playing else None
        for notice in seen.document.notices if seen else ():
            if notice.id in event_ids and notice.status is Status.SCHEDULED and not self._is_approved(notice):
                assert playing is not None
                yield _approved(playing.request, notice, by, now)

    def _is_approved(self, notice: Notice) -> bool:
        return any(entry.what is What.APPROVED for entry in self._store.history(event_id=notice.id))

    async def _turn_one(self, playing: _Playing) -> bool:
        replay, now = playing.replay, self._desk.clock.now()
        if why := interruption(replay, self._store.scope(replay.scope_id)):
            await self._end(playing, Ended.INTERRUPTED, why)
            return True
        due = playing.due_at()
        if due is None or due > now:
            return False
        moved = replace(playing.request, replay=advanced(replay, playing.script, now))
        await self._desk.decide(replay.scope_id, _showing(playing), also=Commit(requests=(moved,)))
        return True

    async def _end(self, playing: _Playing, ended: Ended, reason: str, who: str = PLATFORM) -> None:
        replay, request = playing.replay, playing.request
        now = self._desk.clock.now()
        over = replace(request, replay=replace(replay, ended=ended, ended_at=now, reason=reason))
        text = f"replay {request.id} ended: {reason}"
        entry = Entry(at=now, what=What.STOPPED, who=who, text=text, request_id=request.id, vm=replay.name)

        def decision(scope: Scope, around: Around) -> Scope:
            seen = playing.shown(scope)
            return scope.stepped(len(seen.document.notices) if seen else 0).saying(entry)

        await self._desk.decide(replay.scope_id, decision, also=Commit(requests=(over,)))

    def _learn(self, request: Request, replay: Replay) -> None:
        known = self._known.get(request.id)
        if known is None:
            script = self._script(request.id)
            ids = set(ids_so_far(replay, script, request.id))
            self._known[request.id] = _Playing(request, replay, script, ids)
            return
        known.request, known.replay = request, replay
        known.ids.update(ids_so_far(replay, known.script, request.id, only_now=True))

    def _script(self, replay_id: str) -> Script:
        raw = self._store.saved(_saved_as(replay_id))
        assert raw is not None
        return msgspec.json.decode(raw, type=Script)

    def _recent(self) -> list[Request]:
        known = (*self._store.requests(open_only=True), *self._store.requests(limit=_RECENT))
        return sorted({request.id: request for request in known}.values(), key=lambda request: request.at)

    def _open(self) -> list[_Playing]:
        return [playing for playing in self._known.values() if playing.replay.ended is None]

    def _of(self, scope_id: str) -> list[_Playing]:
        return [playing for playing in self._known.values() if playing.replay.scope_id == scope_id]

    def _on(self, scope_id: str) -> _Playing | None:
        return next((playing for playing in self._of(scope_id) if playing.replay.ended is None), None)

    def _request(self, vm: Vm, script: Script, *, who: str, speed: float, loops: int) -> Request:
        now = self._desk.clock.now()
        replay = Replay(
            vm=vm.key,
            name=vm.name,
            scope_id=vm.scope_id,
            begun_at=now,
            steps=len(script.steps),
            length_s=script.length_s,
            speed=speed,
            loops=loops,
        )
        return Request(id=self._new_id().lower(), ask=Ask.REPLAY, who=who, at=now, targets=(vm.name,), replay=replay)

    def _must_be_lab(self) -> None:
        if not isinstance(self._desk.clock, LabClock):
            raise Rejected(
                "this service is no lab, and its VMs are told only what is true: replay in a lab (`forewarn up`)"
            )

    def _must_be_quiet(self, scope: Scope, vm: Vm) -> None:
        if (playing := self._on(scope.id)) is not None:
            raise Refused(
                f"the scope of VM {vm.name!r} is being shown replay {playing.request.id} already: "
                f"wait until it is over, or end it with `forewarn replays --stop {playing.request.id}`"
            )
        if live := scope.live():
            raise Refused(
                f"the scope of VM {vm.name!r} has event {live[0].id} ({live[0].cause}) under way: "
                "replay when it is over, or withdraw it first"
            )


def _showing(playing: _Playing) -> Callable[[Scope, Around], Scope]:
    request, replay = playing.request, playing.replay
    step = next_step(replay, playing.script)

    def decision(scope: Scope, around: Around) -> Scope:
        if interruption(replay, scope):
            return scope
        is_last = replay.done + 1 == replay.steps
        told = scope.stepped(step.grows)
        if not is_last:
            return told.saying(
                _entry(request, replay, What.REPLAYED, f"{replay.name} is shown {telling(step)}", around)
            )
        again = replay.loop + 1 < replay.loops
        text = f"replay {request.id} {f'ended telling {replay.loop + 1} of {replay.loops}' if again else 'finished'}"
        return told.saying(_entry(request, replay, What.REPLAYED if again else What.COMPLETED, text, around))

    return decision


def _entry(request: Request, replay: Replay, what: What, text: str, around: Around) -> Entry:
    return Entry(at=around.now, what=what, who=PLATFORM, text=text, request_id=request.id, vm=replay.name)


def _requested(request: Request) -> Entry:
    text = f"{request.who} asked for replay of a recording to {request.targets[0]}"
    return Entry(
        at=request.at, what=What.REQUESTED, who=request.who, text=text, request_id=request.id, vm=request.targets[0]
    )


def _approved(request: Request, notice: Notice, by: str, now: float) -> Entry:
    text = f"{by} approved {notice.kind} of {', '.join(notice.resources)}, which is replayed: the story keeps its pace"
    return Entry(at=now, what=What.APPROVED, who=by, text=text, event_id=notice.id, request_id=request.id)


def _saved_as(replay_id: str) -> str:
    return f"replay/{replay_id}"


def _must_be_within(speed: float, loops: int) -> None:
    slowest, fastest = _SPEEDS
    if not slowest <= speed <= fastest:
        raise Rejected(f"speed {speed:g} is out of range: give a number from {slowest:g} to {fastest:g}")
    if not 1 <= loops <= _MOST_LOOPS:
        raise Rejected(f"a story can be told 1 to {_MOST_LOOPS} times, not {loops}")
