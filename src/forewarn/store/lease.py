"""The lease of the active control node: renewed from a thread, suspended while it may have expired.

The server's clock alone decides whether another node may take the lease. This node counts on its own monotonic clock,
from before it sent its last successful renewal: after LEASE_S it is suspended, and must neither act nor write, until a
renewal shows that nobody has taken the lease meanwhile. A renewal waits for the server's standby like every commit, so
a node beside an isolated old primary is suspended, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from threading import Event, Lock, Thread

from forewarn.errors import ForewarnError
from forewarn.store.record import LACKS_STANDBY, LEASE_S, Deposed, LeaseRow, RecordUnavailable, SharedRecord

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

    Only the node with the lease may write to the record (PostgreSQL). Make one after `SharedRecord.take_lease` returned
    `lease`; call `start` once, and `release` or `stop` at the end. The caller keeps `record`: the threads have
    connections of their own. `sent_at` is the monotonic time before `take_lease` was called. The lease is renewed each
    second; without a renewal for LEASE_S (3 s) it is suspended, and at once if the server no longer demands the
    synchronous standby that it once did. `on_change` is called with each new state, on one of the threads or the
    caller's, and must not block. `has_progress` says whether the event loop has run lately: while it has not, the lease
    is not renewed. `known` returns the number of the last group that this node has written: a server without it has
    lost commits, and the lease with them. `on_lost` gets, on a thread and perhaps repeatedly, what is reported as lost.
    Each minute the first thread also prunes the record's log, which keeps an hour. All methods but `start` may be
    called from any thread.
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
