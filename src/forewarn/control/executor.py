"""Acts that are owed get performed: a bounded number at a time, one per VM, again and again until the outcome is known.

It holds no truth: what is owed is read off started events, so a crash here forgets nothing. Waiting is in lab time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from forewarn.clock import Clock
from forewarn.core.event import Act, Event, Outcome, Status
from forewarn.errors import Unavailable
from forewarn.hypervisor.seam import Done, Hypervisor, Later, NotTried

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How an act is tried again when its hypervisor is unavailable."""

    tries: int = 5
    first_s: float = 1.0
    longest_s: float = 60.0
    patience_s: float = 900.0  # real time for one try: a hypervisor that hangs must not keep others waiting for ever

    def wait_s(self, failures: int) -> float:
        return min(self.longest_s, self.first_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """An act that could not be performed this time, and will be tried again."""

    act: Act
    at: float
    why: str
    again_in_s: float


class Executor:
    def __init__(
        self,
        *,
        hypervisor: Hypervisor,
        clock: Clock,
        wake: Callable[[], None],
        at_once: int = 64,
        retry: Retry = Retry(),  # noqa: B008 (frozen)
    ) -> None:
        self._hypervisor = hypervisor
        self._clock = clock
        self._wake = wake
        self._at_once = at_once
        self._retry = retry
        self._due: list[tuple[float, int, str]] = []  # a heap: when, order, act id
        self._order = 0
        self._acts: dict[str, Act] = {}
        self._failures: dict[str, int] = {}
        self._lines: dict[str, deque[str]] = {}  # VM → acts that wait for the one at work on it
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._known: list[tuple[Act, Outcome]] = []
        self._concluded: set[str] = set()  # acts whose outcome is known here, and not yet in the store
        self._setbacks: list[Setback] = []

    @property
    def at_work(self) -> int:
        return len(self._tasks)

    @property
    def has_due(self) -> bool:
        """Whether acts are due now that were not begun yet."""
        return bool(self._due) and self._due[0][0] <= self._clock.now()

    def owe(self, event: Event) -> None:
        """Take on what a started event owes; what was taken on, or waits to be recorded, is not taken twice."""
        for act in event.acts:
            if act.outcome is not None:
                self._concluded.discard(act.id)
            elif event.status is Status.STARTED and act.id not in self._acts and act.id not in self._concluded:
                self._acts[act.id] = act
                self._queue(act.id, self._clock.now())

    def next_at(self) -> float | None:
        """When the next act falls due; with no room for one, only an act that ends can make some."""
        return self._due[0][0] if self._due and len(self._tasks) < self._at_once else None

    def begin_due(self) -> bool:
        """Begin every act whose time has come and whose VM is free; whether any was begun."""
        begun = False
        now = self._clock.now()
        while self._due and self._due[0][0] <= now and len(self._tasks) < self._at_once:
            act = self._acts[heapq.heappop(self._due)[2]]
            if (line := self._lines.get(act.vm)) is not None and line[0] != act.id:
                if act.id not in line:
                    line.append(act.id)
                continue
            self._lines.setdefault(act.vm, deque([act.id]))
            self._tasks[act.id] = asyncio.create_task(self._perform(act))
            begun = True
        return begun

    def take_known(self) -> list[tuple[Act, Outcome]]:
        known, self._known = self._known, []
        return known

    def put_back(self, known: list[tuple[Act, Outcome]]) -> None:
        """The store could not take these outcomes: keep them for the next turn."""
        self._known = known + self._known

    def take_setbacks(self) -> list[Setback]:
        setbacks, self._setbacks = self._setbacks, []
        return setbacks

    def put_back_setbacks(self, setbacks: list[Setback]) -> None:
        self._setbacks = setbacks + self._setbacks

    async def wait(self) -> None:
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
            async with asyncio.timeout(self._retry.patience_s):
                answer = await self._hypervisor.perform(act, self._clock.now())
        except NotTried as error:
            answer = self._again(act, str(error), self._retry.first_s)
        except Unavailable as error:
            answer = self._after_failure(act, str(error))
        except TimeoutError:
            answer = self._after_failure(act, f"no answer within {self._retry.patience_s:g} s")
        except Exception as error:
            log.exception("performing %s of %s failed", act.verb, act.name)
            answer = self._after_failure(act, f"{type(error).__name__}: {error}")
        finally:
            self._tasks.pop(act.id, None)
        if isinstance(answer, Later):
            self._queue(act.id, answer.at)
        else:
            self._conclude(act, answer)
        self._wake()

    def _after_failure(self, act: Act, why: str) -> Done | Later:
        failures = self._failures[act.id] = self._failures.get(act.id, 0) + 1
        if failures >= self._retry.tries:
            return Done(ok=False, note=f"{why} (tried {failures} times)")
        return self._again(act, why, self._retry.wait_s(failures))

    def _again(self, act: Act, why: str, in_s: float) -> Later:
        now = self._clock.now()
        self._setbacks.append(Setback(act=act, at=now, why=why, again_in_s=in_s))
        return Later(at=now + in_s)

    def _conclude(self, act: Act, done: Done) -> None:
        self._known.append((act, Outcome(ok=done.ok, at=self._clock.now(), note=done.note)))
        self._concluded.add(act.id)
        self._acts.pop(act.id, None)
        self._failures.pop(act.id, None)
        line = self._lines[act.vm]
        line.popleft()
        if line:
            self._queue(line[0], self._clock.now())
        else:
            del self._lines[act.vm]
