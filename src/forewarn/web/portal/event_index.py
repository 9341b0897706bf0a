"""In-memory index of live events, failed acts and given notice, so that no view scans the history.

Built on first use from the store, then kept current by its commits; await `ensure_built` before any other method.
All times are lab time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from forewarn.base.times import LabTime
from forewarn.control.control_plane import ControlPlane
from forewarn.core.cause import Verb
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import resource_group_of_scope
from forewarn.store.interface import AppliedCommit
from forewarn.web.portal.fleet_overview import VisibleScopes
from forewarn.web.portal.notice_history import KEPT_S, NoticeHistory, notice_sample
from forewarn.web.portal.rollout_index import RolloutIndex

RECENT_S = 86_400.0  # failed acts and stopped rollouts of the last day are shown
_MAX_EVENTS_READ = 5_000  # that ended, at the start, for the notice that they got
_MAX_FAILURES = 1_000
_BATCH_SIZE = 1_000  # events read or indexed before other tasks run


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAct:
    """An act on a VM that failed, and after which no other act on that VM has succeeded."""

    vm: str  # the key of the VM
    name: str  # the name of the VM
    scope_id: str  # the id of the VM's scope
    event_id: str  # of the event that it belongs to
    verb: Verb  # what was to be done
    at: LabTime  # when it failed
    note: str  # why it failed, for people; "": not known


class _LiveEvents:
    __slots__ = ("scheduled", "started")

    def __init__(self) -> None:
        self.scheduled: list[tuple[float, str]] = []  # NotBefore and id, sorted
        self.started: dict[str, None] = {}  # ids, those that started first at the beginning

    def scheduled_ids(self, first: int = 0) -> Iterator[str]:
        return (event_id for _, event_id in islice(self.scheduled, first, None))

    def update(self, before: Event | None, event: Event) -> None:
        if before is not None and before.status is EventState.SCHEDULED:
            self.scheduled.pop(bisect_left(self.scheduled, (before.not_before, before.id)))
        if event.status is EventState.SCHEDULED:
            insort(self.scheduled, (event.not_before, event.id))
        elif event.status is EventState.STARTED:
            self.started[event.id] = None
        else:
            self.started.pop(event.id, None)


class EventIndex:
    """An index in memory: live events by time, recent failures, notice of events, and open rollouts.

    Await `ensure_built` before any other use; from then on it follows the store's commits. Methods that take `scopes`
    leave out events of other scopes; nothing else is filtered: callers check what a user may see. Iterators read the
    live index: do not await while you iterate.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._store = control.store
        self._clock = control.clock
        self._service = control.rollouts
        self._build_task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._reset()

    def _reset(self) -> None:
        self._live: dict[str, Event] = {}
        self._all = _LiveEvents()
        self._by_group: dict[str, _LiveEvents] = {}  # by id of the resource group
        self._failures: dict[str, FailedAct] = {}  # by VM key, the oldest first
        self._measured: set[str] = set()  # ids of events that were read at the start with their notice
        self._waiting_commits: list[Commit] | None = []  # those that came while the index is built; None afterwards
        self.notice = NoticeHistory()
        self.rollouts = RolloutIndex(self._store, self._service)

    async def ensure_built(self) -> None:
        """Build the index from the store on the first call; later calls wait for that, or return at once.

        After a failed build the next call builds again. A call that is cancelled does not stop the build.
        """
        task = self._build_task
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._build_task = asyncio.create_task(self._build())
        await asyncio.shield(task)

    async def _build(self) -> None:
        self._unsubscribe()
        self._reset()
        self._unsubscribe = self._store.subscribe(self._on_commit)
        now = self._clock.now()
        live = self._store.events(statuses=[EventState.SCHEDULED, EventState.STARTED])
        ended = self._store.events_ended_between(now - KEPT_S, now, limit=_MAX_EVENTS_READ)
        if len(ended) == _MAX_EVENTS_READ:  # earlier ones may be missing
            since = ended[0].over_at
            assert since is not None
            self.notice = NoticeHistory(complete_since=since)
            await self._read_outcomes(now - RECENT_S, since)
        known = sorted((*ended, *live), key=lambda event: event.started_at or event.published_at)
        for number, event in enumerate(known, 1):
            self._apply_event(event)
            if event.started_at is not None:
                self._measured.add(event.id)
            if number % _BATCH_SIZE == 0:
                await asyncio.sleep(0)
        await self.rollouts.build()
        waiting, self._waiting_commits = self._waiting_commits or [], None
        for commit in waiting:
            self._apply_commit(commit)

    async def _read_outcomes(self, since: float, until: float) -> None:
        limit = _BATCH_SIZE
        while since <= until:
            batch = self._store.events_ended_between(since, until, limit=limit, newest=False)
            for event in batch:
                self._note_outcomes(event)
            await asyncio.sleep(0)
            if len(batch) < limit:
                return
            last = batch[-1].over_at
            assert last is not None
            # Events that ended at `last` may be missing: they are read with the next batch, with all others of `last`.
            limit = _BATCH_SIZE if last > since else 2 * limit
            since = last

    def _on_commit(self, committed: AppliedCommit) -> None:
        if self._waiting_commits is not None:
            self._waiting_commits.append(committed.commit)
        else:
            self._apply_commit(committed.commit)

    def _apply_commit(self, commit: Commit) -> None:
        for event in commit.events:
            self._apply_event(event)
        for vm in commit.vms:
            if vm.removed_at is not None:
                self._failures.pop(vm.key, None)
        self.rollouts.on_commit(commit, self._clock.now())

    def _apply_event(self, event: Event) -> None:
        before = self._live.pop(event.id, None)
        if event.is_live:
            self._live[event.id] = event
        if event.is_live or before is not None:
            self._all.update(before, event)
            self._by_group.setdefault(resource_group_of_scope(event.scope_id), _LiveEvents()).update(before, event)
        self._note_outcomes(event)
        is_new_start = before is None or before.started_at is None
        if is_new_start and event.id not in self._measured and (sample := notice_sample(event)) is not None:
            self.notice.add(sample)

    def _note_outcomes(self, event: Event) -> None:
        for act in event.acts:
            if act.outcome is None:
                continue
            known = self._failures.get(act.vm)
            if known is not None and known.at > act.outcome.at:
                continue
            if act.outcome.ok:
                self._failures.pop(act.vm, None)
            elif known is None or known.event_id != event.id:
                self._failures.pop(act.vm, None)
                self._failures[act.vm] = FailedAct(
                    vm=act.vm,
                    name=act.name,
                    scope_id=event.scope_id,
                    event_id=event.id,
                    verb=act.verb,
                    at=act.outcome.at,
                    note=act.outcome.note,
                )
                if len(self._failures) > _MAX_FAILURES:
                    del self._failures[next(iter(self._failures))]

    def count_scheduled(self, scopes: VisibleScopes | None = None) -> int:
        """Return how many events are scheduled and have not started, whether documents list them or not."""
        return sum(
            len(live.scheduled) if wanted is None else sum(1 for _ in self._select(live.scheduled_ids(), wanted))
            for live, wanted in self._parts(scopes)
        )

    def count_started(self, scopes: VisibleScopes | None = None) -> int:
        """Return how many events have started and are not over."""
        return sum(
            len(live.started) if wanted is None else sum(1 for _ in self._select(live.started, wanted))
            for live, wanted in self._parts(scopes)
        )

    def scheduled(self, scopes: VisibleScopes | None = None) -> Iterator[Event]:
        """Return an iterator over the scheduled events, those with the earliest NotBefore first."""
        parts = [self._select(live.scheduled_ids(), wanted) for live, wanted in self._parts(scopes)]
        return merge(*parts, key=lambda event: (event.not_before, event.id))

    def started(self, scopes: VisibleScopes | None = None) -> Iterator[Event]:
        """Return an iterator over the events that have started and are not over, the oldest start first."""
        parts = [self._select(live.started, wanted) for live, wanted in self._parts(scopes)]
        return merge(*parts, key=lambda event: event.started_at or 0.0)

    def scheduled_after(self, at: float, scopes: VisibleScopes | None = None) -> float | None:
        """Return the earliest NotBefore after lab time `at` of a scheduled event; None if there is none."""
        found: list[float] = []
        for live, wanted in self._parts(scopes):
            position = bisect_left(live.scheduled, (at, "\U0010ffff"))
            later = self._select(live.scheduled_ids(position), wanted)
            found += [event.not_before for event in islice(later, 1)]
        return min(found, default=None)

    def _parts(self, scopes: VisibleScopes | None) -> Iterator[tuple[_LiveEvents, frozenset[str] | None]]:
        if scopes is None:
            yield self._all, None
            return
        for group, wanted in scopes.by_group.items():
            if (live := self._by_group.get(group)) is not None:
                yield live, wanted

    def _select(self, event_ids: Iterable[str], wanted: frozenset[str] | None) -> Iterator[Event]:
        events = (self._live[event_id] for event_id in event_ids)
        return events if wanted is None else (event for event in events if event.scope_id in wanted)

    def failures_since(self, since: float) -> list[FailedAct]:
        """Return the acts that failed at or after lab time `since`, the most recently learned first."""
        return [failed for failed in reversed(self._failures.values()) if failed.at >= since]
