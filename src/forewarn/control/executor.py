"""Performs the acts of started events: a bounded number at a time, one per VM, with retries."""

# From "the event has started" to "it was done", at most once and never forgotten.
#
# The invariant. Every act of a started event is performed until it has an outcome, and takes effect at most once. The
# store says which acts have no outcome yet; the hypervisor's ledger, which outlives this process, says which ones have
# taken effect (an operator's command without a check may run again). In between stands this executor, which may forget
# everything at any time. It remembers what it has asked, nothing more.
#
# Why commit first, then act. An act is in the commit that starts its event, before anything happens to a VM. If the
# process dies right after, the next one reads started events and performs their acts. If it dies in the middle of an
# act, the act is performed again under the same id, and the ledger answers what was done or goes on. If it dies after
# the act, before the outcome is stored, the same. So there is one rule for all cases: perform what has no outcome.
#
# Nothing here sleeps. `perform` answers *done* or *later, ask again at*; a failure is *later* as well. All waiting is a
# due time in a heap, and the reconciler sleeps until the first one. A lab clock can therefore jump from one due time to
# the next. Due times are lab time; the limit of one attempt is real time, because a hypervisor hangs in the real one.
#
# One act at a time for each VM, in the order in which their events started (`_vm_queues`). The next one begins when the
# outcome of the one before is *stored*, not when it is known: that outcome may have moved the VM to another host, and
# the act that follows is changed in the same commit. `add_acts` gets every committed event and learns it there. An
# outcome that is known and not yet stored is in `_unrecorded`, so that a commit of the same event that was decided
# before does not bring the act back.
#
# Limits, and what they are about. A host that hangs must not stop the others. An attempt counts on each of its hosts
# and overall. After ten seconds without an answer it no longer counts overall: it costs only memory then, and 64
# hanging attempts would stop the fleet. On its host it counts until it ends, so that a host that hangs collects no more
# than its share. An act that finds its host full waits outside of the heap; it has no due time, and the end of an
# attempt there wakes it.
#
# Failed hosts. An act that needs a host that has failed is held, not failed: its outcome is a decision about the scope,
# which the reconciler makes (`core.host_failure`), and which comes back through `add_acts` as an outcome that somebody
# else recorded. Then the attempt is cancelled. The host is asked about twice, when the act is taken from the heap and
# when its task begins: a commit may come between the two.
#
# What counts as an attempt. `ActNotTried` does not count: a full disk of this machine says nothing about the act.
# Unavailable, a timeout and any other error do. After the last attempt the outcome is a failure: an event that never
# ends would keep the other update domains of its scope waiting for ever.
#
# A node that may not act (`may_act`, the lease) begins no attempt. Attempts that run already go on: the hosts know the
# term of their orders and refuse those of a deposed node, and a repetition by the next node is answered from the
# ledger.
#
# What a crash leaves: heap, queues, counts of failures, notes of progress and outcomes that were not taken are gone.
# Failures are counted anew; nothing else depends on them. Acts of one VM are queued again in the order in which their
# events started.
#
# What was tried and taken back:
#
# - A global stop: after a host had failed, no act of the fleet started until the acts there had ended. An error in one
#   scope then stopped everything. Now exactly the acts that need a failed host are held, by the rule that also ends
#   them.
# - Asking about the failed host only when the act was taken from the heap. A host could fail before the task took its
#   first step, and the order went out after the failure had been recorded.
# - Beginning the next act of a VM as soon as the one before was done. It was performed with the host that the VM had
#   left.

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from forewarn.base.clock import Clock
from forewarn.base.duration import exact_duration_text
from forewarn.base.times import LabSeconds, LabTime
from forewarn.core.cause import Verb
from forewarn.core.event import Act, ActOutcome, Event, EventState
from forewarn.errors import Unavailable
from forewarn.machines.interface import ActDone, ActNotTried, ActUnderWay, Hypervisor

log = logging.getLogger(__name__)


# Limits the attempts at acts that run at the same time, overall and per host and verb.
#
# So a host that hangs does not delay acts on other hosts. An act counts on the host that its VM is on and on the
# host it moves to, because a call may hang on either.

QueuedAct = tuple[LabTime, int, str]  # when the act is due, its order, its id
_SlotKey = tuple[Verb, str, str]  # verb, host, ""; or of a move: verb, source, destination


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLimits:
    """How many attempts at acts may run at the same time, and when an attempt counts as unanswered."""

    overall: int = 64  # without unanswered attempts: these cost nothing but memory
    per_host: int = 16  # of one verb, unanswered ones included
    per_move: int = 8  # of one verb between the same two hosts, so that a hanging destination leaves the source some
    unanswered_after_s: float = 10.0  # real time


class HostLimiter:
    """Counts the attempts in progress on each host, and keeps the acts that wait for a slot there.

    For each act call `acquire_or_wait` and, if that returned True, `release` and `next_waiting` at the end of the
    attempt.
    """

    def __init__(self, limits: ActLimits) -> None:
        self._limits = limits
        self._running: Counter[_SlotKey] = Counter()
        self._waiting: dict[_SlotKey, deque[QueuedAct]] = {}
        self._awaited: dict[str, _SlotKey] = {}  # id of a waiting act → what it waits for

    @property
    def blocking_hosts(self) -> dict[str, str]:
        """The host that each waiting act waits for, by the id of the act; "" for VMs without a host."""
        return {act_id: key[2] or key[1] for act_id, key in self._awaited.items()}

    def acquire_or_wait(self, act: Act, queued: QueuedAct) -> bool:
        """Take all slots that the act needs and return True; if one is not free, let it wait and return False.

        An act that waits must not be passed a second time before `next_waiting` has yielded it.
        """
        keys = _slot_keys(act)
        blocked = next((key for key in keys if not self._is_free(key)), None)
        if blocked is None:
            self._running.update(keys)
            return True
        self._waiting.setdefault(blocked, deque()).append(queued)
        self._awaited[act.id] = blocked
        return False

    def release(self, act: Act) -> None:
        """Free the slots that `acquire_or_wait` took for an act; that they were taken is not checked."""
        for key in _slot_keys(act):
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def next_waiting(self, act: Act) -> Iterator[QueuedAct]:
        """Remove and yield the act that waited longest for each kind of slot of `act` that has a free one.

        Call it after each `release`, and again with each act that it yielded if that act was not started: otherwise a
        slot could stay free while acts wait for it. Use up the iterator.
        """
        for key in _slot_keys(act):
            if key in self._waiting and self._is_free(key):
                queued = self._waiting[key][0]
                self.remove(queued[2])
                yield queued

    def remove(self, act_id: str) -> None:
        """Remove an act from those that wait for a slot; does nothing if it does not wait."""
        key = self._awaited.pop(act_id, None)
        if key is None:
            return
        waiting = self._waiting[key]
        waiting.remove(next(queued for queued in waiting if queued[2] == act_id))
        if not waiting:
            del self._waiting[key]

    def _is_free(self, key: _SlotKey) -> bool:
        limit = self._limits.per_move if key[2] else self._limits.per_host
        return self._running[key] < limit


def _slot_keys(act: Act) -> list[_SlotKey]:
    hosts = [host for host in dict.fromkeys((act.from_host, act.to_host)) if host] or [""]
    pair = [(act.verb, hosts[0], hosts[1])] if len(hosts) == 2 else []
    return [*pair, *((act.verb, host, "") for host in hosts)]


# What the hypervisor last reported about acts that are under way: a note, and an unreachable host.
#
# Kept in memory only: after a restart of the service, the next attempt at each act reports it again.

ProgressListener = Callable[[Act], None]  # called with an act whose report changed


class ActProgress:
    """What the hypervisor last reported about each act that is under way: a note, and a host it waits for."""

    def __init__(self) -> None:
        self._reports: dict[str, ActUnderWay] = {}  # by act id
        self._listeners: list[ProgressListener] = []

    def record(self, act: Act, report: ActUnderWay) -> None:
        """Keep what the hypervisor reported about this act, in place of what it reported before."""
        before = self._reports.pop(act.id, None)
        if report.note or report.waits_for_host:
            self._reports[act.id] = report
        if _content(before) != _content(report):
            self._notify(act)

    def forget(self, act: Act) -> None:
        """Drop the report about an act that has ended; does nothing without one. Calls no listener."""
        self._reports.pop(act.id, None)

    def note(self, act_id: str) -> str:
        """Return how the act is going, for people; "" if no hypervisor has said it or the act has ended."""
        report = self._reports.get(act_id)
        return report.note if report is not None else ""

    def notes(self) -> dict[str, str]:
        return {act_id: report.note for act_id, report in self._reports.items() if report.note}

    def awaited_hosts(self) -> dict[str, str]:
        """Return, by act id, the name of the host that each act waits for until it answers the hypervisor."""
        return {act_id: report.waits_for_host for act_id, report in self._reports.items() if report.waits_for_host}

    def unreachable_hosts(self) -> frozenset[str]:
        """Return the names of the hosts that do not answer the hypervisor, as far as acts wait for them."""
        return frozenset(self.awaited_hosts().values()) if self._reports else frozenset()

    def subscribe(self, listener: ProgressListener) -> Callable[[], None]:
        """Call `listener` with the act after each change of its report; return a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _notify(self, act: Act) -> None:
        for listener in tuple(self._listeners):
            listener(act)


def _content(report: ActUnderWay | None) -> tuple[str, str]:
    return (report.note, report.waits_for_host) if report is not None else ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRetryPolicy:
    """When and how often a failed act is tried again; attempts that were not made do not count."""

    max_attempts: int = 5  # of one act; then it has failed; attempts that the hypervisor did not try do not count
    first_delay_s: float = 1.0  # after the first failure, and after each attempt that was not tried
    max_delay_s: float = 60.0  # the longest delay
    timeout_s: float = 900.0  # of one attempt, in real time; then it has failed

    def delay_s(self, failures: int) -> float:
        """Return how long to wait before the next attempt, after this many failures (1 or more)."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt at an act that failed or was not tried, and after which the act is tried again."""

    act: Act
    at: LabTime
    reason: str  # for people
    retry_in_s: LabSeconds  # from `at`


@dataclass(slots=True, kw_only=True)
class _RunningAttempt:
    task: asyncio.Task[ActDone | ActUnderWay]
    timer: asyncio.TimerHandle  # marks it as unanswered
    began_at: float  # on the event loop's clock
    is_unanswered: bool = False  # True after ten seconds of real time without an answer


class ActExecutor:
    """Performs acts on the hypervisor and keeps their outcomes until the reconciler takes them.

    It starts nothing by itself: `add_acts` queues acts, and `start_due_acts`, which the reconciler calls, begins the
    attempts that are due. `wake` is called after every attempt, and when one counts as unanswered. When the answer of
    `may_act` changes, its owner wakes the reconciler. `progress` has what the hypervisor last reported about acts that
    are under way.
    """

    def __init__(
        self,
        *,
        hypervisor: Hypervisor,
        clock: Clock,
        wake: Callable[[], None],
        needs_failed_host: Callable[[Act], bool] = lambda act: False,
        may_act: Callable[[], bool] = lambda: True,
        limits: ActLimits = ActLimits(),
        retry: ActRetryPolicy = ActRetryPolicy(),
    ) -> None:
        self._hypervisor = hypervisor
        self.progress = ActProgress()
        self._clock = clock
        self._wake = wake
        self._needs_failed_host = needs_failed_host
        self._may_act = may_act
        self._limits = limits
        self._retry = retry
        self._due: list[QueuedAct] = []  # a heap
        self._order = 0
        self._acts: dict[str, Act] = {}
        self._failures: dict[str, int] = {}
        self._vm_queues: dict[str, deque[str]] = {}  # VM → its running act, then those that wait
        self._held: dict[str, QueuedAct] = {}  # by id, the acts that were due while they needed a failed host
        self._host_limiter = HostLimiter(limits)
        self._attempts: dict[str, _RunningAttempt] = {}  # by act id
        self._unanswered_count = 0  # of the attempts, those that count as unanswered
        self._attempts_changed = asyncio.Event()  # set and replaced when an attempt ends or counts as unanswered
        self._outcomes: list[tuple[Act, ActOutcome]] = []
        self._unrecorded: set[str] = set()  # acts whose outcome is known here but not yet in the store
        self._failed_attempts: list[FailedAttempt] = []

    @property
    def running_acts(self) -> int:
        """How many attempts run now, unanswered ones included."""
        return len(self._attempts)

    @property
    def answering_acts(self) -> int:
        """How many attempts run now, without those that the hypervisor has not answered for ten seconds."""
        return len(self._attempts) - self._unanswered_count

    def unanswered_s(self) -> dict[str, float]:
        """Return, by act id, the age in real seconds of each attempt that counts as unanswered."""
        return {
            act_id: attempt.task.get_loop().time() - attempt.began_at
            for act_id, attempt in self._attempts.items()
            if attempt.is_unanswered
        }

    def blocking_hosts(self) -> dict[str, str]:
        """Return, by act id, the host that each due act waits for because too many attempts run there."""
        return self._host_limiter.blocking_hosts

    @property
    def has_due_acts(self) -> bool:
        """Whether an act is due now and waits for `start_due_acts`, even if no more may start now."""
        return bool(self._due) and self._due[0][0] <= self._clock.now()

    def add_acts(self, event: Event) -> None:
        """Queue the unfinished acts of a started event as due now, unless they are known here already."""
        # Called with every committed event, in any state, so it also learns which outcomes the store has now.
        for act in event.acts:
            if act.outcome is not None:
                self._unrecorded.discard(act.id)
                # Before the act is forgotten: the next act of the VM may begin now that the outcome is stored.
                self._leave_vm_queue(act)
                self._give_up(act)
            elif act.id in self._acts:
                self._acts[act.id] = act  # its VM may have come to another host
            # An outcome that is on its way to the store must not start the act again.
            elif event.status is EventState.STARTED and act.id not in self._unrecorded:
                self._acts[act.id] = act
                self._queue(act.id, self._clock.now())

    def unfinished_act_ids(self) -> list[str]:
        """Return the ids of the acts without an outcome, in the order in which they were added."""
        return list(self._acts)

    def next_due_at(self) -> float | None:
        """Return the lab time, perhaps past, at which the next attempt is due; None if none is or may begin."""
        # Acts that wait for their host have no due time: the end of an attempt there wakes the reconciler, and so does
        # the commit that repairs it.
        return self._due[0][0] if self._due and self._may_start_more else None

    def start_due_acts(self) -> bool:
        """Start a task for each due act that may run now; return True if at least one was started."""
        started = False
        # A host that was repaired frees them; its commit has woken the reconciler.
        for act_id in [act_id for act_id in self._held if not self._needs_failed_host(self._acts[act_id])]:
            heapq.heappush(self._due, self._held.pop(act_id))
        now = self._clock.now()
        # Oldest first. What finds its host full steps aside, so it does not stop those behind it.
        while self._due and self._due[0][0] <= now and self._may_start_more:
            queued = heapq.heappop(self._due)
            act = self._acts.get(queued[2])
            if act is None:
                continue  # it was cancelled
            if self._acquire_or_wait(act, queued):
                self._start_attempt(act)
                started = True
            else:
                self._queue_waiting_acts(act)
        return started

    @property
    def _may_start_more(self) -> bool:
        return self.answering_acts < self._limits.overall and self._may_act()

    def _acquire_or_wait(self, act: Act, queued: QueuedAct) -> bool:
        if self._needs_failed_host(act):
            self._held[act.id] = queued
            return False
        # Its turn first: an act that waits for its VM must not take a slot of the host.
        return self._take_turn(act) and self._host_limiter.acquire_or_wait(act, queued)

    def _take_turn(self, act: Act) -> bool:
        queue = self._vm_queues.setdefault(act.vm, deque([act.id]))
        if act.id not in queue:
            queue.append(act.id)
        return queue[0] == act.id

    def _start_attempt(self, act: Act) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._perform(act))
        timer = loop.call_later(self._limits.unanswered_after_s, self._mark_unanswered, act.id)
        self._attempts[act.id] = _RunningAttempt(task=task, timer=timer, began_at=loop.time())
        task.add_done_callback(partial(self._end_attempt, act))

    def _mark_unanswered(self, act_id: str) -> None:
        """Stop counting the attempt overall: its hypervisor hangs, or is very slow."""
        self._attempts[act_id].is_unanswered = True
        self._unanswered_count += 1
        self._notify_waiters()
        self._wake()

    def _end_attempt(self, act: Act, task: asyncio.Task[ActDone | ActUnderWay]) -> None:
        attempt = self._attempts.pop(act.id)
        attempt.timer.cancel()
        self._unanswered_count -= attempt.is_unanswered
        # Even if the act was given up: the slot was taken by the attempt, not by the act.
        self._host_limiter.release(act)
        self._queue_waiting_acts(act)
        # An act that was given up has its outcome from elsewhere: this answer no longer counts.
        if not task.cancelled() and act.id in self._acts:
            answer = self._answer_of_attempt(act, task)
            if isinstance(answer, ActUnderWay):
                self.progress.record(act, answer)
                self._queue(act.id, answer.at)
            else:
                self._conclude(act, answer)
        self._notify_waiters()
        self._wake()

    def _give_up(self, act: Act) -> None:
        if self._acts.pop(act.id, None) is None:
            return
        self.progress.forget(act)
        self._failures.pop(act.id, None)
        self._held.pop(act.id, None)
        self._host_limiter.remove(act.id)
        if (attempt := self._attempts.get(act.id)) is not None:
            attempt.task.cancel()
        self._queue_waiting_acts(act)  # it may be the one that was to take a slot that is free now

    def _leave_vm_queue(self, act: Act) -> None:
        queue = self._vm_queues.get(act.vm, deque())
        if act.id not in queue:
            return
        had_turn = queue[0] == act.id
        queue.remove(act.id)
        if not queue:
            del self._vm_queues[act.vm]
        elif had_turn:
            self._queue(queue[0], self._clock.now())

    def _queue_waiting_acts(self, act: Act) -> None:
        for queued in self._host_limiter.next_waiting(act):
            heapq.heappush(self._due, queued)

    def _notify_waiters(self) -> None:
        self._attempts_changed.set()
        self._attempts_changed = asyncio.Event()

    def take_outcomes(self) -> list[tuple[Act, ActOutcome]]:
        """Remove and return the acts that ended since the last call with their outcomes, oldest first.

        The caller commits them, or gives them back with `return_outcomes`. After a restart, an act whose outcome was
        not committed is performed again.
        """
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def return_outcomes(self, outcomes: list[tuple[Act, ActOutcome]]) -> None:
        """Put outcomes that could not be committed back, before newer ones, for the next `take_outcomes`."""
        # In front, so that the outcomes of one VM are stored in the order in which they came.
        self._outcomes = outcomes + self._outcomes

    def take_failed_attempts(self) -> list[FailedAttempt]:
        """Remove and return the failed attempts that are tried again, since the last call, oldest first."""
        failed_attempts, self._failed_attempts = self._failed_attempts, []
        return failed_attempts

    def return_failed_attempts(self, failed_attempts: list[FailedAttempt]) -> None:
        """Put back failed attempts that could not be committed, before newer ones."""
        self._failed_attempts = failed_attempts + self._failed_attempts

    async def wait_for_any(self) -> None:
        """Wait until any running attempt has ended or counts as unanswered."""
        if self.answering_acts:
            await self._attempts_changed.wait()

    async def close(self) -> None:
        """Cancel all running attempts and wait for them; they leave no outcome. The hypervisor stays open."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.timer.cancel()
            attempt.task.cancel()
        await asyncio.gather(*(attempt.task for attempt in attempts), return_exceptions=True)

    def _queue(self, act_id: str, at: float) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, act_id))

    async def _perform(self, act: Act) -> ActDone | ActUnderWay:
        # A host may have failed by a commit between the creation of this task and its first step: wait as if not due.
        if self._needs_failed_host(act):
            return ActUnderWay(at=self._clock.now())
        async with asyncio.timeout(self._retry.timeout_s):
            return await self._hypervisor.perform(act, self._clock.now())

    def _answer_of_attempt(self, act: Act, task: asyncio.Task[ActDone | ActUnderWay]) -> ActDone | ActUnderWay:
        match task.exception():
            case None:
                return task.result()
            # Always after the first delay, without counting: nothing was asked of the host.
            case ActNotTried() as error:
                return self._retry_later(act, str(error), self._retry.first_delay_s)
            case Unavailable() as error:
                return self._after_failure(act, str(error))
            case TimeoutError():
                return self._after_failure(act, f"no answer within {exact_duration_text(self._retry.timeout_s)}")
            case error:
                log.error("performing %s of %s failed", act.verb, act.name, exc_info=error)
                return self._after_failure(act, f"{type(error).__name__}: {error}")

    def _after_failure(self, act: Act, reason: str) -> ActDone | ActUnderWay:
        failures = self._failures[act.id] = self._failures.get(act.id, 0) + 1
        # An outcome at last: an event that never ends blocks its scope.
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
        self.progress.forget(act)
        self._failures.pop(act.id, None)
