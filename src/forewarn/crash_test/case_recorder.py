"""Collects the observations of one case while it runs, and lets its script wait for some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from forewarn.base.clock import LabClock
from forewarn.core.event import Event, EventState
from forewarn.crash_test.timeline import (
    THINNED_TEXT,
    Approved,
    ConnectionOpened,
    Disturbance,
    EventEnded,
    EventPublished,
    EventStarted,
    Observation,
    OtherRequest,
    Polled,
    Poller,
    ProbeAnswered,
    Timeline,
    build_timeline,
)
from forewarn.store.interface import AppliedCommit

MAX_REQUESTS = 5000  # that a case keeps all of: a handler may poll without a pause
THINNED_INTERVAL_S = 0.2  # between two requests of the same kind that are kept after that
_REQUESTS = (Approved, ConnectionOpened, OtherRequest, Polled)
_Request = Approved | ConnectionOpened | OtherRequest | Polled
Matches = Callable[[Observation], bool]


@dataclass(eq=False, slots=True)
class _Waiter:
    matches: Matches
    left: int  # how many more observations must match
    done: asyncio.Event = field(default_factory=asyncio.Event)


class CaseRecorder:
    """Collects the observations of one case while it runs, and lets its script wait for some of them."""

    def __init__(self, clock: LabClock) -> None:
        self._clock = clock
        self._started_at = clock.now()
        self._observations: list[Observation] = []
        self._requests = 0
        self._last_kept: dict[tuple[type[_Request], str, Poller], float] = {}  # when requests were last kept
        self._waiters: list[_Waiter] = []
        self._is_closed = False
        self.problem = ""  # why the observations must not be judged, as a sentence; "": they may be

    def now(self) -> float:
        """Return the time by the service's clock, in seconds since the start of the case."""
        return self._clock.now() - self._started_at

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The observations kept so far, in the order in which they came."""
        return tuple(self._observations)

    def since_start(self, lab_time: float) -> float:
        return lab_time - self._started_at

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds of the service's clock; returns at once if `seconds` is 0 or less."""
        await self._clock.sleep_until(self._clock.now() + seconds)

    def record(self, observation: Observation) -> None:
        """Keep an observation and wake its waiters; does nothing after `finish`."""
        if self._is_closed:
            return
        if isinstance(observation, _REQUESTS):
            self._keep_request(observation)
        else:
            self._observations.append(observation)
        for waiter in self._waiters:
            if waiter.left > 0 and waiter.matches(observation):
                waiter.left -= 1
                if waiter.left == 0:
                    waiter.done.set()

    def restart(self) -> None:
        """Begin again: the case starts now, and what was observed is dropped."""
        self._started_at = self._clock.now()
        answers = {(item.vm, item.probe): item for item in self._observations if isinstance(item, ProbeAnswered)}
        self._observations = [msgspec.structs.replace(item, at=0.0) for item in answers.values()]
        self._requests = 0
        self._last_kept.clear()

    def report_problem(self, problem: str) -> None:
        """Set the attribute `problem`: why the case must not be judged, such as a machine that failed."""
        if not self._is_closed:
            self.problem = self.problem or problem

    async def wait_for(self, matches: Matches, *, within_s: float, times: int = 1) -> bool:
        """Wait until `times` observations match, and return whether that happened within `within_s`."""
        seen = sum(map(matches, self._observations))
        if seen >= times:
            return True
        waiter = _Waiter(matches, times - seen)
        self._waiters.append(waiter)
        timer = asyncio.create_task(self.sleep(within_s))
        done = asyncio.create_task(waiter.done.wait())
        try:
            await asyncio.wait({timer, done}, return_when=asyncio.FIRST_COMPLETED)
            return waiter.done.is_set()
        finally:
            self._waiters.remove(waiter)
            timer.cancel()
            done.cancel()
            await asyncio.gather(timer, done, return_exceptions=True)

    def finish(self) -> Timeline:
        """Take no more observations and problems, and return the timeline, sorted by time, which ends now."""
        self._is_closed = True
        return build_timeline(self._observations, self.now())

    def _keep_request(self, request: _Request) -> None:
        self._requests += 1
        kind = (type(request), request.vm, request.by)
        if self._requests > MAX_REQUESTS and request.at < self._last_kept.get(kind, 0.0) + THINNED_INTERVAL_S:
            return
        if self._requests == MAX_REQUESTS:
            text = f"after {MAX_REQUESTS} requests and connections, {THINNED_TEXT}"
            self._observations.append(Disturbance(at=request.at, vm=request.vm, text=text))
        self._last_kept[kind] = request.at
        self._observations.append(request)


# Records publication, start and end of events of a case, from the commits of the store.


def commit_recorder(recorder: CaseRecorder) -> Callable[[AppliedCommit], None]:
    """Return a subscriber for `Store.subscribe` that records each publication, start and end of an event."""
    recorded: set[tuple[str, EventState]] = set()

    def is_new(event: Event, state: EventState) -> bool:
        if (event.id, state) in recorded:
            return False
        recorded.add((event.id, state))
        return True

    def on_commit(applied: AppliedCommit) -> None:
        for event in applied.commit.events:
            if not event.listed:
                continue
            if is_new(event, EventState.SCHEDULED):
                recorder.record(_publication(event, recorder))
            if event.started_at is not None and is_new(event, EventState.STARTED):
                recorder.record(EventStarted(at=recorder.since_start(event.started_at), event=event.id))
            if event.over_at is not None and is_new(event, EventState.OVER):
                at = recorder.since_start(event.over_at)
                recorder.record(EventEnded(at=at, event=event.id, is_withdrawn=event.is_withdrawn))

    return on_commit


def _publication(event: Event, recorder: CaseRecorder) -> EventPublished:
    return EventPublished(
        at=recorder.since_start(event.published_at),
        event=event.id,
        kind=str(event.rules.kind),
        vms=event.vms,
        not_before=None if event.started_at is not None else recorder.since_start(event.not_before),
    )
