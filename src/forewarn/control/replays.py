"""Use cases for replays: start, stop and find them, and show the next step when it is due.

Each step is committed with the scope that is shown it. A replay is stored as a request, with its script saved beside
it. A real event of the scope ends the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from forewarn.base.clock import LabClock
from forewarn.control.scope_transactions import ScopeTransactions, retry_on_conflict
from forewarn.core.commit import Commit, SavedValue
from forewarn.core.decision import DecisionContext
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind, HistoryEntry
from forewarn.core.reconcile import PLATFORM_ACTOR
from forewarn.core.replay import (
    KNOWN_EVENT_IDS_S,
    Replay,
    ReplayedAnswer,
    ReplayEnding,
    ReplayScript,
    ReplayStep,
    UploadedRecording,
    advance_replay,
    build_replay_script,
    current_answer,
    describe_step,
    interruption_reason,
    next_step,
    next_step_at,
    shown_event_ids,
)
from forewarn.core.request import MaintenanceRequest, RequestedOperation, RequestKey, with_request_key
from forewarn.core.scope import Scope
from forewarn.errors import Conflict, NotFound, Refused, Rejected, Remedy
from forewarn.protocol.document import EventNotice, NoticeStatus
from forewarn.store.interface import REPLAY_SCRIPT_PREFIX, AppliedCommit

_MAX_RECENT_REQUESTS = 10_000  # newest requests, among which replays are searched
_MAX_LOOPS = 1000
_SPEED_RANGE = (0.01, 10_000.0)


@dataclass(slots=True)
class _TrackedReplay:
    request: MaintenanceRequest
    replay: Replay
    script: ReplayScript
    ids: set[str] = field(default_factory=set)  # event ids shown so far

    def next_step_at(self) -> float | None:
        return next_step_at(self.replay, self.script)

    def current_answer(self, scope: Scope) -> ReplayedAnswer | None:
        return current_answer(self.replay, self.script, self.request.id, scope)


class ReplayService:
    """Starts, stops and finds replays, and shows their due steps."""

    def __init__(self, *, transactions: ScopeTransactions, new_id: Callable[[], str]) -> None:
        self._transactions = transactions
        self._store = transactions.store
        self._new_id = new_id
        self._tracked: dict[str, _TrackedReplay] = {}  # by request id; ended ones while their ids are known
        for request in self._recent_requests():
            if request.replay is not None and self._knows_event_ids(request.replay):
                self._track(request, request.replay)

    def on_commit(self, applied: AppliedCommit) -> None:
        """Remember the newest state of the replays that a commit started, advanced or ended, in memory."""
        for changed in applied.commit.requests:
            if changed.replay is not None and (request := self._store.request(changed.id)) is not None:
                assert request.replay is not None
                if request.id not in self._tracked:
                    self._tracked = {id_: t for id_, t in self._tracked.items() if self._knows_event_ids(t.replay)}
                self._track(request, request.replay)

    async def start(
        self,
        vm: Vm,
        recording: UploadedRecording,
        *,
        who: str,
        speed: float = 1.0,
        loops: int = 1,
        names: Mapping[str, str] | None = None,
        key: RequestKey | None = None,
    ) -> MaintenanceRequest:
        """Start to replay a recording to the scope of a VM, durably, and return the request that holds it.

        `names` maps recorded VM names to the names to show; without an entry, the recorded VM is shown as `vm`, and
        others as recorded.
        """
        self._require_lab()
        _require_in_range(speed, loops)
        script = build_replay_script(recording, name=vm.name, names=names or {})
        request = with_request_key(self._new_request(vm, script, who=who, speed=speed, loops=loops), key)
        self._require_idle_scope(self._transactions.load(vm.scope_id), vm)

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            self._require_idle_scope(scope, vm)
            return scope.with_entries(_requested_entry(request))

        saved = SavedValue(_script_key(request.id), msgspec.json.encode(script))
        await self._transactions.run(vm.scope_id, decision, extra_commit=Commit(requests=(request,), saved=(saved,)))
        return self.find(request.id)

    async def stop(self, replay_id: str, *, who: str) -> MaintenanceRequest:
        """End the replay with this id, or start of one, durably; the scope shows its own document again."""

        async def attempt() -> MaintenanceRequest:
            request = self.find(replay_id)
            assert request.replay is not None
            if request.replay.outcome is not None:
                raise Refused(f"replay {request.id} is over ({request.replay.outcome}): there is nothing to stop")
            await self._end(self._tracked[request.id], ReplayEnding.STOPPED, f"stopped by {who}", who=who)
            return self.find(request.id)

        return await retry_on_conflict(attempt, f"replay {replay_id!r}")  # it may show its next step meanwhile

    def find(self, replay_id: str) -> MaintenanceRequest:
        """Return the request of the replay with this id, or of the only one whose id starts with it."""
        wanted = replay_id.strip().lower()
        found = [request for request in self.list_replays() if wanted and request.id.startswith(wanted)]
        if not found:
            raise NotFound(f"replay {replay_id!r} does not exist", Remedy.LIST_REPLAYS)
        if len(found) > 1:
            raise Refused(f"replay {replay_id!r} is ambiguous, {len(found)} ids start with it: give more of the id")
        return found[0]

    def list_replays(self) -> list[MaintenanceRequest]:
        """Return the requests of all running replays, and of ended ones that are recent; oldest first."""
        return [request for request in self._recent_requests() if request.replay is not None]

    async def reconcile(self) -> bool:
        """Show the due steps of replays, and end interrupted replays; return whether there were any."""
        did = False
        for tracked in self._running():
            try:
                did |= await self._reconcile_one(tracked)
            except Conflict:
                did = True  # the replay changed meanwhile: look again
        return did

    def next_due_at(self) -> float | None:
        """Return when the next step of any replay is due, perhaps past; None if none is running."""
        return min((at for tracked in self._running() if (at := tracked.next_step_at()) is not None), default=None)

    def current_answer(self, scope: Scope) -> ReplayedAnswer | None:
        """Return the answer that a replay shows in place of the scope's own document; None: the own document."""
        tracked = self._running_in_scope(scope.id)
        return tracked.current_answer(scope) if tracked else None

    def current_step(self, request: MaintenanceRequest) -> ReplayStep | None:
        """Return the step of this replay that is shown now; None before a loop's first step and after the end."""
        tracked = self._tracked.get(request.id)
        if tracked is None or not tracked.replay.done or tracked.replay.outcome:
            return None
        return tracked.script.steps[tracked.replay.done - 1]

    def was_shown(self, scope_id: str, event_id: str) -> bool:
        return any(event_id in tracked.ids for tracked in self._in_scope(scope_id))

    def approval_entries(
        self, scope: Scope, event_ids: tuple[str, ...], *, by: str, now: float
    ) -> Iterator[HistoryEntry]:
        """Yield a history entry for each of these ids that is shown as Scheduled now and not yet approved."""
        tracked = self._running_in_scope(scope.id)
        shown = tracked.current_answer(scope) if tracked else None
        for notice in shown.document.notices if shown else ():
            if notice.id in event_ids and notice.status is NoticeStatus.SCHEDULED and not self._is_approved(notice):
                assert tracked is not None
                yield _approved_entry(tracked.request, notice, by, now)

    def _is_approved(self, notice: EventNotice) -> bool:
        return any(entry.kind is EntryKind.APPROVED for entry in self._store.history(event_id=notice.id))

    async def _reconcile_one(self, tracked: _TrackedReplay) -> bool:
        replay, now = tracked.replay, self._transactions.clock.now()
        if reason := interruption_reason(replay, self._store.scope(replay.scope_id)):
            await self._end(tracked, ReplayEnding.INTERRUPTED, reason)
            return True
        due = tracked.next_step_at()
        if due is None or due > now:
            return False
        moved = replace(tracked.request, replay=advance_replay(replay, tracked.script, now))
        await self._transactions.run(
            replay.scope_id, _show_step_decision(tracked), extra_commit=Commit(requests=(moved,))
        )
        return True

    async def _end(self, tracked: _TrackedReplay, ended: ReplayEnding, reason: str, who: str = PLATFORM_ACTOR) -> None:
        replay, request = tracked.replay, tracked.request
        now = self._transactions.clock.now()
        over = replace(request, replay=replace(replay, outcome=ended, ended_at=now, reason=reason))
        text = f"replay {request.id} ended: {reason}"
        entry = HistoryEntry(
            at=now, kind=EntryKind.STOPPED, actor=who, text=text, request_id=request.id, vm=replay.name
        )

        def decision(scope: Scope, context: DecisionContext) -> Scope:
            shown = tracked.current_answer(scope)
            return scope.with_incarnation_increased(len(shown.document.notices) if shown else 0).with_entries(entry)

        await self._transactions.run(replay.scope_id, decision, extra_commit=Commit(requests=(over,)))

    def _track(self, request: MaintenanceRequest, replay: Replay) -> None:
        known = self._tracked.get(request.id)
        if known is None:
            script = self._load_script(request.id)
            ids = set(shown_event_ids(replay, script, request.id))
            self._tracked[request.id] = _TrackedReplay(request, replay, script, ids)
            return
        known.request, known.replay = request, replay
        known.ids.update(shown_event_ids(replay, known.script, request.id, only_now=True))

    def _knows_event_ids(self, replay: Replay) -> bool:
        ended_at = replay.ended_at
        return ended_at is None or ended_at >= self._transactions.clock.now() - KNOWN_EVENT_IDS_S

    def _load_script(self, replay_id: str) -> ReplayScript:
        raw = self._store.load(_script_key(replay_id))
        assert raw is not None
        return msgspec.json.decode(raw, type=ReplayScript)

    def _recent_requests(self) -> list[MaintenanceRequest]:
        known = (*self._store.requests(open_only=True), *self._store.requests(limit=_MAX_RECENT_REQUESTS))
        return sorted({request.id: request for request in known}.values(), key=lambda request: request.requested_at)

    def _running(self) -> list[_TrackedReplay]:
        return [tracked for tracked in self._tracked.values() if tracked.replay.outcome is None]

    def _in_scope(self, scope_id: str) -> list[_TrackedReplay]:
        return [tracked for tracked in self._tracked.values() if tracked.replay.scope_id == scope_id]

    def _running_in_scope(self, scope_id: str) -> _TrackedReplay | None:
        return next((tracked for tracked in self._in_scope(scope_id) if tracked.replay.outcome is None), None)

    def _new_request(self, vm: Vm, script: ReplayScript, *, who: str, speed: float, loops: int) -> MaintenanceRequest:
        now = self._transactions.clock.now()
        replay = Replay(
            vm=vm.key,
            name=vm.name,
            scope_id=vm.scope_id,
            loop_started_at=now,
            steps=len(script.steps),
            length_s=script.length_s,
            speed=speed,
            loops=loops,
        )
        return MaintenanceRequest(
            id=self._new_id().lower(),
            operation=RequestedOperation.REPLAY,
            requested_by=who,
            requested_at=now,
            targets=(vm.name,),
            replay=replay,
        )

    def _require_lab(self) -> None:
        if not isinstance(self._transactions.clock, LabClock):
            raise Rejected(
                "this service is not a lab, and its VMs only get real events, so nothing can be replayed",
                Remedy.USE_LAB,
            )

    def _require_idle_scope(self, scope: Scope, vm: Vm) -> None:
        if (tracked := self._running_in_scope(scope.id)) is not None:
            raise Refused(
                f"the scope of VM {vm.name!r} is being shown replay {tracked.request.id} already",
                Remedy.STOP_REPLAY,
                replay=tracked.request.id,
            )
        if live := scope.live_events():
            raise Refused(
                f"the scope of VM {vm.name!r} has event {live[0].id} ({live[0].cause}) under way: "
                "replay when it is over, or withdraw it first"
            )


def _show_step_decision(tracked: _TrackedReplay) -> Callable[[Scope, DecisionContext], Scope]:
    request, replay = tracked.request, tracked.replay
    step = next_step(replay, tracked.script)

    def decision(scope: Scope, context: DecisionContext) -> Scope:
        if interruption_reason(replay, scope):
            return scope
        is_last = replay.done + 1 == replay.steps
        grown = scope.with_incarnation_increased(step.grows)
        if not is_last:
            return grown.with_entries(
                _replay_entry(
                    request, replay, EntryKind.REPLAYED, f"{replay.name} is shown {describe_step(step)}", context
                )
            )
        again = replay.loop + 1 < replay.loops
        text = f"replay {request.id} {f'finished loop {replay.loop + 1} of {replay.loops}' if again else 'finished'}"
        return grown.with_entries(
            _replay_entry(request, replay, EntryKind.REPLAYED if again else EntryKind.COMPLETED, text, context)
        )

    return decision


def _replay_entry(
    request: MaintenanceRequest, replay: Replay, what: EntryKind, text: str, context: DecisionContext
) -> HistoryEntry:
    return HistoryEntry(
        at=context.now, kind=what, actor=PLATFORM_ACTOR, text=text, request_id=request.id, vm=replay.name
    )


def _requested_entry(request: MaintenanceRequest) -> HistoryEntry:
    text = f"{request.requested_by} requested replay of a recording to {request.targets[0]}"
    return HistoryEntry(
        at=request.requested_at,
        kind=EntryKind.REQUESTED,
        actor=request.requested_by,
        text=text,
        request_id=request.id,
        vm=request.targets[0],
    )


def _approved_entry(request: MaintenanceRequest, notice: EventNotice, by: str, now: float) -> HistoryEntry:
    text = f"{by} approved {notice.kind} of {', '.join(notice.resources)}, a replayed event: the replay keeps its pace"
    return HistoryEntry(at=now, kind=EntryKind.APPROVED, actor=by, text=text, event_id=notice.id, request_id=request.id)


def _script_key(replay_id: str) -> str:
    return f"{REPLAY_SCRIPT_PREFIX}{replay_id}"


def _require_in_range(speed: float, loops: int) -> None:
    slowest, fastest = _SPEED_RANGE
    if not slowest <= speed <= fastest:
        raise Rejected(f"speed {speed:g} is out of range: give a number from {slowest:g} to {fastest:g}")
    if not 1 <= loops <= _MAX_LOOPS:
        raise Rejected(f"a recording can be replayed 1 to {_MAX_LOOPS} times, not {loops} times")
