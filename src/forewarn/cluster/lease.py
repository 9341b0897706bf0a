"""The lease of the active control node: renewed from a thread, suspended while it may have expired."""

# Why an active control node may act.
#
# The invariant. At any time at most one node changes the fleet, and a node that is not sure neither acts nor refuses
# anything. The first half does not depend on this module: every group of writes begins with an update of the lease row
# under the writer's term (the fence, see `postgres_record`), so a deposed node writes nothing, however late it comes.
# What a fence cannot stop is what a node *says* and *does* from memory: an order to a host, a heartbeat, a refusal. For
# that a node must know by itself, without asking anybody, that its lease may be over.
#
# Two clocks, and no comparison between them. Whether another node may take the lease is decided by the clock of the
# record's server alone. When this node must stop is decided by its own monotonic clock, which runs on while the process
# is stopped. It counts from *before* it sent its last renewal: the server began to count at some time after that, so
# this node's three seconds end first, as long as both clocks run at the same speed. Counting from the answer would add
# the time on the network, in the wrong direction.
#
# HELD, SUSPENDED, DEPOSED. Past LEASE_S without a renewal the node is suspended. It answers reads, which may be old by
# as much, and 503 to changes: a refusal would be a statement about a state that may be gone. A suspended node is not
# deposed. The next renewal that gets through finds the row still in its term, and the node goes on where it was; so an
# outage of PostgreSQL, however long, restarts nothing. If the term is another one, the process ends. Nobody takes its
# memory apart and builds it again: that would be a second way to start, rarely used and rarely tested.
#
# A renewal is a COMMIT like any other and waits for the synchronous standby. It must: a node beside an isolated old
# primary could renew there for ever, while the promoted standby has another holder. Three more reasons not to hold it,
# though nobody else has taken it:
#
# - The server is at a lower number than the last group of this node, under the same term: a standby was promoted that
#   lacks commits. The node is deposed, because what it has answered is not there any more.
# - The server demands no synchronous standby, and once did: suspended, until it demands one again, or somebody says
#   that this is meant (`forewarn store without-standby`). Otherwise one more failure would lose what was answered.
# - The event loop of this process has not run for PROGRESS_LIMIT_S: not renewed. A process that cannot answer must not
#   keep the lease from one that can.
#
# Why two threads. Renewals have a thread and a connection of their own, so that neither a busy event loop nor a large
# commit delays them. But a renewal that waits for a missing standby blocks its thread for longer than the lease lasts,
# so it can neither notice that three seconds are over nor find out why. The second thread does both. Its interval of
# 0.25 s is only when others hear of it: who is about to act asks `state`, which is computed, not remembered. A commit
# counts as a renewal, because it is one.
#
# What a crash leaves. A row that expires within three seconds; the next holder takes it under the next term and applies
# the log up to the number in the row before it serves anybody. `release` expires the row at once, for a planned change.
# A node that is stopped (not killed) in the middle of a write also holds the lock of the row, and would hold it for
# ever: the one who takes the lease ends its session.
#
# What was tried and taken back:
#
# - PostgreSQL's own limit on idle transactions, to free the row of a stopped node. It does not run within a pipeline,
#   and a write is one.
# - The fence alone, without suspension. A stopped process that went on after another one had taken over wrote nothing,
#   but answered calls that had queued up: a client was refused a restart because of an event that the new node had long
#   ended.
# - Orders that were checked against the lease once for each act. A pause between the check and the sending is enough;
#   each order is checked right before each time that it is sent.
# - Describing the node with a normal commit. A node that waits for the standby could not say so, since its description
#   waited, too.

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from threading import Event, Lock, Thread

from forewarn.cluster.record import LACKS_STANDBY, LEASE_S, Deposed, LeaseRow, RecordUnavailable, SharedRecord
from forewarn.errors import ForewarnError

RENEWAL_INTERVAL_S = 1.0
PROGRESS_LIMIT_S = 10.0  # the lease is not renewed if the event loop has not run for this long
_WATCH_INTERVAL_S = 0.25
_LOG_KEPT_S = 3600.0
_PRUNE_INTERVAL_S = 60.0


class LeaseState(StrEnum):
    """What a control node that has taken the lease may do now."""

    HELD = "held"  # decide, write and act
    SUSPENDED = "suspended"  # only read: the lease may have expired
    DEPOSED = "deposed"  # end the process: another node has the lease
    RELEASED = "released"  # nothing: it was given up


class HeldLease:
    """A lease that this control node has taken, and the two daemon threads that renew and watch it.

    Make one after `SharedRecord.take_lease` returned `lease`; call `start` once, and `release` or `stop` at the end.
    The caller keeps `record`: the threads have connections of their own. `sent_at` is the monotonic time before
    `take_lease` was called. `on_change` is called with each new state, on one of the threads or the caller's, and must
    not block. `has_progress` says whether the event loop has run lately, `known` the number of the last group that this
    node has written. `on_lost` gets, on a thread and perhaps repeatedly, what is reported as lost. All methods but
    `start` may be called from any thread.
    """

    def __init__(
        self,
        record: SharedRecord,
        lease: LeaseRow,
        *,
        sent_at: float,
        on_change: Callable[[LeaseState], None] = lambda state: None,
        has_progress: Callable[[], bool] = lambda: True,
        known: Callable[[], int] = lambda: 0,
        on_lost: Callable[[str], None] = lambda text: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = lease  # as it was taken
        self._renewing, self._watching = record.connect(), record.connect()
        self._on_change = on_change
        self._has_progress, self._known, self._on_lost = has_progress, known, on_lost
        self._monotonic = monotonic
        self._lock = Lock()
        self._sent_at = sent_at  # of the last successful renewal
        self._ended: LeaseState | None = None  # deposed or released
        self._reported = LeaseState.HELD
        self._failure = ""  # of the last renewal
        self._waits_for_standby = self._lacks_standby = False
        self._is_stopping = Event()
        self._threads = [
            Thread(target=self._renew_until_stopped, name="lease renewal", daemon=True),
            Thread(target=self._watch_until_stopped, name="lease watch", daemon=True),
        ]

    @property
    def term(self) -> int:
        """The number of the lease that this node took; the record refuses writes under an earlier one."""
        return self.lease.term

    @property
    def state(self) -> LeaseState:
        """What this node may do now: HELD, SUSPENDED, DEPOSED or RELEASED; the last two never change."""
        if self._ended is not None:
            return self._ended
        return LeaseState.HELD if self.margin_s > 0 and not self._lacks_standby else LeaseState.SUSPENDED

    @property
    def margin_s(self) -> float:
        """For how many seconds this node may still act without a renewal; 0 or less: it is suspended."""
        return self._sent_at + LEASE_S - self._monotonic()

    @property
    def explanation(self) -> str:
        """Why the lease is not held (suspended, deposed or released), in a sentence; "" if it is."""
        state = self.state
        if state is LeaseState.HELD:
            return ""
        if state is not LeaseState.SUSPENDED:
            return f"this control node does not hold the lease any more: {self._failure or state}"
        if self._lacks_standby:
            return f"nothing can be changed: {LACKS_STANDBY}"
        seconds = LEASE_S - self.margin_s
        if self._waits_for_standby:
            reason = "PostgreSQL waits for its synchronous standby: start the standby, or change "
            reason += "synchronous_standby_names"
        elif not self._has_progress():
            reason = "the service is too busy to answer"
        else:
            reason = self._failure or "PostgreSQL does not answer"
        return f"nothing can be changed, because the lease was not renewed for {seconds:.0f} s: {reason}"

    def check(self) -> None:
        """Raise RecordUnavailable while the lease is suspended, Deposed if it was lost or released."""
        state = self.state
        if state is LeaseState.SUSPENDED:
            raise RecordUnavailable(self.explanation)
        if state is not LeaseState.HELD:
            raise Deposed(self.explanation)

    def start(self) -> None:
        """Start the threads that renew and watch the lease; returns at once. Call it only once."""
        for thread in self._threads:
            thread.start()

    def renewed(self, sent_at: float) -> None:
        """Count a call that has renewed the lease, such as a commit: the lease lasts LEASE_S from `sent_at`."""
        with self._lock:
            # Answers may overtake each other: the latest sending counts.
            self._sent_at = max(self._sent_at, sent_at)
            self._failure = ""
            self._waits_for_standby = self._lacks_standby = False
        self._report()

    def deposed(self, reason: str) -> None:
        """Mark the lease as lost, because a commit has found that another node has it."""
        self._end(LeaseState.DEPOSED, reason)

    def release(self) -> None:
        """Stop the threads and give the lease up, so that another node can take it at once.

        Blocks, perhaps for seconds; do not call it from `on_change`. If the record cannot be reached, the lease expires
        by itself.
        """
        was_held = self._ended is None
        self.stop()
        if was_held:
            record = self._renewing.connect()
            try:
                record.release_lease(self.term)
            except ForewarnError:
                pass
            finally:
                record.close()

    def stop(self) -> None:
        """Stop the threads, and leave the lease in the record until it expires. Do not call it from `on_change`."""
        self._end(LeaseState.RELEASED, "it was released")
        self._is_stopping.set()
        for record, thread in zip((self._renewing, self._watching), self._threads, strict=True):
            while thread.is_alive():
                record.abort()
                thread.join(_WATCH_INTERVAL_S)
            record.close()

    def _renew_until_stopped(self) -> None:
        prune_at = self._monotonic() + _PRUNE_INTERVAL_S
        while self._ended is None and not self._is_stopping.wait(RENEWAL_INTERVAL_S):
            if not self._has_progress():
                continue
            self._renew()
            if self._monotonic() >= prune_at and self.state is LeaseState.HELD:
                prune_at = self._monotonic() + _PRUNE_INTERVAL_S
                self._prune_log()

    def _renew(self) -> None:
        sent_at, known = self._monotonic(), self._known()
        try:
            row = self._renewing.renew_lease(self.term)
        except ForewarnError as error:
            self._failure = str(error)
            return
        if row is None:
            self.deposed("another control node has taken the lease")
        elif row.number < known:  # another server of PostgreSQL answers now, with the same term
            self.deposed(f"PostgreSQL ends at group {row.number}, and has lost group {known} of this node")
        elif row.lacks_standby:
            self._lacks_standby = True
            self._report()
        else:
            self.renewed(sent_at)
            if row.lost:
                self._on_lost(row.lost)

    def _prune_log(self) -> None:
        try:
            self._renewing.prune_log(_LOG_KEPT_S)
        except ForewarnError:
            pass  # the next minute tries again

    def _watch_until_stopped(self) -> None:
        """Report the moment of suspension, and find out whether the standby is missing."""
        while not self._is_stopping.wait(_WATCH_INTERVAL_S):
            self._report()
            # Renewals come as they should: no need to ask the server why they do not.
            if self.state is LeaseState.HELD and self.margin_s > LEASE_S - 2 * RENEWAL_INTERVAL_S:
                continue
            try:
                waits = self._watching.waits_for_standby()
            except ForewarnError:
                waits = False
            with self._lock:
                self._waits_for_standby = waits
            self._report()

    def _end(self, state: LeaseState, reason: str) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = state
            self._failure = reason
        self._report()

    def _report(self) -> None:
        with self._lock:
            state = self.state
            if state is self._reported:
                return
            self._reported = state
        self._on_change(state)
