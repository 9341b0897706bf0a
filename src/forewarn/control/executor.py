"""Performs the acts of started events: a bounded number at a time, one per VM, with retries.

Holds no durable state: acts without an outcome are read again from started events after a restart. Delays are in lab
time, the timeout of one attempt in real time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forewarn.clock import Clock
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.errors import Unavailable
from forewarn.hypervisor.interface import ActDone, ActNotTried, ActUnderWay, Hypervisor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRetryPolicy:
    """When an act that failed is tried again, and how often. Delays are in lab time."""

    max_attempts: int = 5  # then the act has failed; attempts that the hypervisor did not try do not count
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    timeout_s: float = 900.0  # of one attempt, in real time, so that a hanging hypervisor does not block other acts

    def delay_s(self, failures: int) -> float:
        """Return the delay after this many failures (1 or more): it doubles each time, up to the maximum."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt at an act that failed or was not tried, and after which the act is tried again."""

    act: Act
    at: float  # lab time
    reason: str
    retry_in_s: float  # lab time


class ActExecutor:
    """Performs acts on the hypervisor and keeps their outcomes until the reconciler takes them.

    `wake` is called after every attempt. At most `max_concurrent` acts run at a time, and one per VM, in the order in
    which they became due. An act that has used up its attempts gets a failed outcome.
    """

    def __init__(
        self,
        *,
        hypervisor: Hypervisor,
        clock: Clock,
        wake: Callable[[], None],
        max_concurrent: int = 64,
        retry: ActRetryPolicy = ActRetryPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        self._hypervisor = hypervisor
        self._clock = clock
        self._wake = wake
        self._max_concurrent = max_concurrent
        self._retry = retry
        self._due: list[tuple[float, int, str]] = []  # a heap: when, order, act id
        self._order = 0
        self._acts: dict[str, Act] = {}
        self._failures: dict[str, int] = {}
        self._vm_queues: dict[str, deque[str]] = {}  # VM → its running act, then those that wait
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outcomes: list[tuple[Act, ActOutcome]] = []
        self._unrecorded: set[str] = set()  # acts whose outcome is known here but not yet in the store
        self._failed_attempts: list[FailedAttempt] = []

    @property
    def running_acts(self) -> int:
        """How many attempts run now; an act that the hypervisor reports as under way does not count."""
        return len(self._tasks)

    @property
    def has_due_acts(self) -> bool:
        """Whether an act is due for its first or next attempt and waits for `start_due_acts`."""
        return bool(self._due) and self._due[0][0] <= self._clock.now()

    def add_acts(self, event: Event) -> None:
        """Queue the unfinished acts of a started event; acts already known here are not queued again.

        Called with every committed event, so it also learns which outcomes the store has now.
        """
        for act in event.acts:
            if act.outcome is not None:
                self._unrecorded.discard(act.id)
            elif event.status is EventState.STARTED and act.id not in self._acts and act.id not in self._unrecorded:
                self._acts[act.id] = act
                self._queue(act.id, self._clock.now())

    def next_due_at(self) -> float | None:
        """Return when the next attempt is due in lab time; None if there is none, or the limit is reached."""
        return self._due[0][0] if self._due and len(self._tasks) < self._max_concurrent else None

    def start_due_acts(self) -> bool:
        """Start a task for every due act whose VM is free, up to the limit; return whether any was started."""
        started = False
        now = self._clock.now()
        while self._due and self._due[0][0] <= now and len(self._tasks) < self._max_concurrent:
            act = self._acts[heapq.heappop(self._due)[2]]
            if (queue := self._vm_queues.get(act.vm)) is not None and queue[0] != act.id:
                if act.id not in queue:
                    queue.append(act.id)
                continue
            self._vm_queues.setdefault(act.vm, deque([act.id]))
            self._tasks[act.id] = asyncio.create_task(self._perform(act))
            started = True
        return started

    def take_outcomes(self) -> list[tuple[Act, ActOutcome]]:
        """Return the outcomes since the last call; the caller commits them or gives them back."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def return_outcomes(self, outcomes: list[tuple[Act, ActOutcome]]) -> None:
        """Keep outcomes that could not be committed for the next `take_outcomes`."""
        self._outcomes = outcomes + self._outcomes

    def take_failed_attempts(self) -> list[FailedAttempt]:
        """Return the failed attempts since the last call; the caller commits them or gives them back."""
        failed_attempts, self._failed_attempts = self._failed_attempts, []
        return failed_attempts

    def return_failed_attempts(self, failed_attempts: list[FailedAttempt]) -> None:
        """Keep failed attempts that could not be committed for the next `take_failed_attempts`."""
        self._failed_attempts = failed_attempts + self._failed_attempts

    async def wait_for_any(self) -> None:
        """Wait until at least one running attempt has ended; return at once if none is running."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel all running attempts and wait for them to end; cancelled attempts leave no outcome."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _queue(self, act_id: str, at: float) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, act_id))

    async def _perform(self, act: Act) -> None:
        try:
            async with asyncio.timeout(self._retry.timeout_s):
                answer = await self._hypervisor.perform(act, self._clock.now())
        except ActNotTried as error:
            answer = self._retry_later(act, str(error), self._retry.first_delay_s)
        except Unavailable as error:
            answer = self._after_failure(act, str(error))
        except TimeoutError:
            answer = self._after_failure(act, f"no answer within {self._retry.timeout_s:g} s")
        except Exception as error:
            log.exception("performing %s of %s failed", act.verb, act.name)
            answer = self._after_failure(act, f"{type(error).__name__}: {error}")
        finally:
            self._tasks.pop(act.id, None)
        if isinstance(answer, ActUnderWay):
            self._queue(act.id, answer.at)
        else:
            self._conclude(act, answer)
        self._wake()

    def _after_failure(self, act: Act, reason: str) -> ActDone | ActUnderWay:
        failures = self._failures[act.id] = self._failures.get(act.id, 0) + 1
        if failures >= self._retry.max_attempts:
            return ActDone(ok=False, note=f"{reason} (tried {failures} times)")
        return self._retry_later(act, reason, self._retry.delay_s(failures))

    def _retry_later(self, act: Act, reason: str, in_s: float) -> ActUnderWay:
        now = self._clock.now()
        self._failed_attempts.append(FailedAttempt(act=act, at=now, reason=reason, retry_in_s=in_s))
        return ActUnderWay(at=now + in_s)

    def _conclude(self, act: Act, done: ActDone) -> None:
        self._outcomes.append((act, ActOutcome(ok=done.ok, at=self._clock.now(), note=done.note)))
        self._unrecorded.add(act.id)
        self._acts.pop(act.id, None)
        self._failures.pop(act.id, None)
        queue = self._vm_queues[act.vm]
        queue.popleft()
        if queue:
            self._queue(queue[0], self._clock.now())
        else:
            del self._vm_queues[act.vm]
