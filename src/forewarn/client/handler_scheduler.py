"""What a handler has to do next. No I/O: jobs out, what came of them in; whoever runs it does the jobs.

Functions of one event are called one at a time, in the order of its changes; those of different events side by side,
because the 30 seconds of a Preempt do not wait until a long drain is over.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forewarn.client.change import Change, Gone, Scheduled
from forewarn.client.event import Event, key_of, lists
from forewarn.errors import Rejected

LOG = logging.getLogger("forewarn.client")
BUSY_S = 1.0  # how long a poll may take while functions are under way, which may want something next


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which changes a function wants; no kinds are all kinds."""

    wants: Callable[[Change], bool]
    function: Callable[[Any], Any]
    kinds: frozenset[str] = frozenset()
    approve: bool = False

    def covers(self, change: Change) -> bool:
        return self.wants(change) and (not self.kinds or change.event.kind.casefold() in self.kinds)


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """One function for one change."""

    change: Change
    rule: Rule
    failures: int = 0
    due_at: float = -math.inf
    is_running: bool = False
    has_returned: bool = False  # what is left is the approval
    is_last: bool = False  # the event is gone: no more tries


@dataclass(frozen=True, slots=True, kw_only=True)
class Learn:
    """Ask for this VM's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    task: Task

    @property
    def event(self) -> Event:
        return self.task.change.event


Job = Learn | Call | Approve


@dataclass(slots=True, kw_only=True)
class Round:
    rules: Sequence[Rule]
    retry_s: Sequence[float]
    clock: Callable[[], float]
    name: str | None = None
    neighbours: bool = False
    is_ending: bool = False  # nothing new is begun, but what was promised is approved
    _inbox: list[Change] = field(default_factory=list)
    _lines: dict[str, list[Task]] = field(default_factory=dict)  # by event
    _learning: bool = False
    _learn_at: float = -math.inf
    _learn_failures: int = 0

    def put(self, change: Change) -> None:
        self._inbox.append(change)
        self._sort()

    def within_s(self) -> float:
        """How long nobody is needed here."""
        if self._learning or any(task.is_running for task in self._tasks()):
            return BUSY_S
        due_at = min((task.due_at for task in self._tasks()), default=math.inf)
        return max(0.0, min(due_at, self._learn_at if self._inbox else math.inf) - self.clock())

    def jobs(self) -> Iterator[Job]:
        """What is due now; each is to be followed by `came` or `failed`."""
        now = self.clock()
        if self._inbox and not self._learning and not self.is_ending and self._learn_at <= now:
            self._learning = True
            yield Learn()
        for line in list(self._lines.values()):
            ready = (task for task in line if task.due_at <= now and (task.has_returned or not self.is_ending))
            due = next(ready, None)
            if due is not None and not any(task.is_running for task in line):
                due.is_running = True
                yield Approve(task=due) if due.has_returned else Call(task=due)

    def came(self, job: Job, what: Any) -> None:
        if isinstance(job, Learn):
            self._learning, self.name = False, what
            self._sort()
            return
        task = job.task
        task.is_running, task.failures = False, 0
        if isinstance(job, Call) and task.rule.approve and isinstance(task.change, Scheduled) and not task.is_last:
            task.has_returned = True
        else:
            self._end(task)

    def failed(self, job: Job, error: Exception) -> None:
        """Raises what cannot be helped: an endpoint that does not tell this VM's name."""
        if isinstance(job, Learn):
            self._learning = False
            if isinstance(error, Rejected):
                raise error
            self._learn_failures += 1
            self._learn_at = self._again_at(self._learn_failures)
            LOG.warning("%s", error)
            return
        job.task.is_running = False
        self._log(job, error)
        is_refused = isinstance(job, Approve) and isinstance(error, Rejected)
        if job.task.is_last or is_refused:
            self._end(job.task)
            return
        job.task.failures += 1
        job.task.due_at = self._again_at(job.task.failures)

    def _again_at(self, failures: int) -> float:
        return self.clock() + self.retry_s[min(failures, len(self.retry_s)) - 1]

    def _sort(self) -> None:
        """Hand changes to their functions, once it is known whom they concern."""
        if self.name is None and not self.neighbours:
            return
        inbox, self._inbox = self._inbox, []
        for change in inbox:
            self._take(change)

    def _take(self, change: Change) -> None:
        is_ours = self.neighbours or lists(change.event, self.name or "")
        rules = [rule for rule in self.rules if is_ours and rule.covers(change)]
        key = key_of(change.event)
        if isinstance(change, Gone):
            self._give_up(self._lines.get(key, []))
        if rules:
            self._lines.setdefault(key, []).extend(Task(change=change, rule=rule) for rule in rules)
        else:
            change.done()

    def _give_up(self, line: list[Task]) -> None:
        """What was tried for an event that is gone is not tried again."""
        for task in list(line):
            task.is_last = True
            if not task.is_running:
                self._end(task)

    def _end(self, task: Task) -> None:
        key = key_of(task.change.event)
        self._lines[key].remove(task)
        if not any(other.change is task.change for other in self._lines[key]):
            task.change.done()
        if not self._lines[key]:
            del self._lines[key]

    def _tasks(self) -> Iterator[Task]:
        return (task for line in self._lines.values() for task in line)

    def _log(self, job: Call | Approve, error: Exception) -> None:
        event, function = job.task.change.event, getattr(job.task.rule.function, "__name__", "a function")
        what = "the approval after " if isinstance(job, Approve) else ""
        LOG.error("%s%s failed for %s %s: %s", what, function, event.kind, event.id, error, exc_info=error)
