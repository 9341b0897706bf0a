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
    """How an act is tried again when its hypervisor is unavailable."""

    max_attempts: int = 5
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    timeout_s: float = 900.0  # real time for one try: a hypervisor that hangs must not keep others waiting for ever

    def delay_s(self, failures: int) -> float:
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An act that could not be performed this time, and will be tried again."""

    act: Act
    at: float
    reason: str
    retry_in_s: float


class ActExecutor:
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
        self._vm_queues: dict[str, deque[str]] = {}  # VM → acts that wait for the one at work on it
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outcomes: list[tuple[Act, ActOutcome]] = []
        self._unrecorded: set[str] = set()  # acts whose outcome is known here, and not yet in the store
        self._failed_attempts: list[FailedAttempt] = []

    @property
    def running_acts(self) -> int:
        return len(self._tasks)

    @property
    def has_due_acts(self) -> bool:
        """Whether acts are due now that were not begun yet."""
        return bool(self._due) and self._due[0][0] <= self._clock.now()

    def add_acts(self, event: Event) -> None:
        """Take on what a started event owes; what was taken on, or waits to be recorded, is not taken twice."""
        for act in event.acts:
            if act.outcome is not None:
                self._unrecorded.discard(act.id)
            elif event.status is EventState.STARTED and act.id not in self._acts and act.id not in self._unrecorded:
                self._acts[act.id] = act
                self._queue(act.id, self._clock.now())

    def next_due_at(self) -> float | None:
        """When the next act falls due; with no room for one, only an act that ends can make some."""
        return self._due[0][0] if self._due and len(self._tasks) < self._max_concurrent else None

    def start_due_acts(self) -> bool:
        """Begin every act whose time has come and whose VM is free; whether any was begun."""
        begun = False
        now = self._clock.now()
        while self._due and self._due[0][0] <= now and len(self._tasks) < self._max_concurrent:
            act = self._acts[heapq.heappop(self._due)[2]]
            if (line := self._vm_queues.get(act.vm)) is not None and line[0] != act.id:
                if act.id not in line:
                    line.append(act.id)
                continue
            self._vm_queues.setdefault(act.vm, deque([act.id]))
            self._tasks[act.id] = asyncio.create_task(self._perform(act))
            begun = True
        return begun

    def take_outcomes(self) -> list[tuple[Act, ActOutcome]]:
        known, self._outcomes = self._outcomes, []
        return known

    def return_outcomes(self, known: list[tuple[Act, ActOutcome]]) -> None:
        """The store could not take these outcomes: keep them for the next turn."""
        self._outcomes = known + self._outcomes

    def take_failed_attempts(self) -> list[FailedAttempt]:
        failed_attempts, self._failed_attempts = self._failed_attempts, []
        return failed_attempts

    def return_failed_attempts(self, failed_attempts: list[FailedAttempt]) -> None:
        self._failed_attempts = failed_attempts + self._failed_attempts

    async def wait_for_any(self) -> None:
        """Until at least one act at work is done with for now."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
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

    def _after_failure(self, act: Act, why: str) -> ActDone | ActUnderWay:
        failures = self._failures[act.id] = self._failures.get(act.id, 0) + 1
        if failures >= self._retry.max_attempts:
            return ActDone(ok=False, note=f"{why} (tried {failures} times)")
        return self._retry_later(act, why, self._retry.delay_s(failures))

    def _retry_later(self, act: Act, why: str, in_s: float) -> ActUnderWay:
        now = self._clock.now()
        self._failed_attempts.append(FailedAttempt(act=act, at=now, reason=why, retry_in_s=in_s))
        return ActUnderWay(at=now + in_s)

    def _conclude(self, act: Act, done: ActDone) -> None:
        self._outcomes.append((act, ActOutcome(ok=done.ok, at=self._clock.now(), note=done.note)))
        self._unrecorded.add(act.id)
        self._acts.pop(act.id, None)
        self._failures.pop(act.id, None)
        line = self._vm_queues[act.vm]
        line.popleft()
        if line:
            self._queue(line[0], self._clock.now())
        else:
            del self._vm_queues[act.vm]
