"""What a control node does while it is not active: it follows the record and watches the lease.

All calls of the record and all work on the copy run on one thread, because they block.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from forewarn.base.clock import real_now
from forewarn.base.times import RealTime
from forewarn.cluster.following import CopyFollower
from forewarn.cluster.record import LEASE_S, LeaseRow, MustStop, RecordUnavailable, SharedRecord, lost_commits_problem
from forewarn.cluster.replicated_store import LeaseGuard, ReplicatedStore
from forewarn.errors import ForewarnError, Refused
from forewarn.store import sqlite_file
from forewarn.store.commit_mark import RENEWAL_NAME, EpochRenewal, read_renewal

_COPY_RETRY_S = 1.0  # of real time, after the copy could not be written: to build it again is much work
_READ_SAVED = "SELECT value FROM saved WHERE name = ?"
FINGERPRINT_NAME = "cluster secrets"  # of the value in the store
T = TypeVar("T")
log = logging.getLogger(__name__)


def require_same_secrets(known: bytes, fingerprint: str) -> None:
    """Raise Refused if this node's fingerprint of the cluster's secrets differs from the stored one."""
    if known != fingerprint.encode():
        raise Refused(
            "this control node has other secrets than its cluster, so tokens and certificates of one would not be "
            "accepted by the other: copy the directory of the setting 'secrets' from another control node"
        )


class TakenLease(NamedTuple):
    """A lease that this control node has just taken, and what is known of the time before."""

    lease: LeaseRow  # as it was taken
    before: LeaseRow  # as it was read last before that
    sent_at: float  # monotonic time right before the request for it
    alive_at: float | None  # monotonic time at which another node was last certainly active; None: not known


class Standby:
    """A control node's part while it is not active: keeps a copy of the record, and watches the lease.

    The record is the PostgreSQL database that control nodes share; `path` is the SQLite file of the copy. `name` is
    this node's name, `fingerprint` the fingerprint of its secrets ("": they are not checked). `lease` is the lease as
    it was read last, None before the first time and after `forget_lease`; `problem` is a sentence if the last `look` or
    `take` failed, else ""; `clock_difference_s` is how far this machine's clock is ahead of the server's (negative:
    behind). `number` is the number of the last group of writes in the copy, as of the last `look`. `reaches_record` is
    whether the last look found the record, even if the copy could not be written then; `free_bytes` is the free space
    on the copy's disk as it was read last, None if it is not known. `real_time` and `monotonic` return seconds.
    """

    def __init__(
        self,
        path: Path,
        record: SharedRecord,
        *,
        name: str = "",
        fingerprint: str = "",
        real_time: Callable[[], RealTime] = real_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease: LeaseRow | None = None
        self.problem = ""
        self.clock_difference_s = 0.0
        self.number = 0  # of the last group in the copy
        self.reaches_record = False
        self.free_bytes: int | None = None
        self._renewal: EpochRenewal | None = None  # with which the present epoch began
        self._path, self._record, self._name = path, record, name
        self._fingerprint = fingerprint
        self._real_time, self._monotonic = real_time, monotonic
        self._follower: CopyFollower | None = None
        self._copy_problem = ""  # why the copy could not be written when that was tried last
        self._copy_retry_at = 0.0  # monotonic time
        self._alive_at: float | None = None  # monotonic time at which another node was certainly active
        self._expires_at = 0.0  # monotonic time at which its lease would expire
        self._thread = ThreadPoolExecutor(1, "record")

    async def look(self) -> bool:
        """Bring the copy of the record up to date and read the lease; return whether both succeeded.

        If only the copy fails, as on a full disk, the lease is read all the same, so that calls can be forwarded.
        """
        before = self._real_time()
        try:
            lease = await self._call(self._follow_or_read_lease)
        except Refused:
            raise
        except ForewarnError as error:
            self.problem, self.reaches_record = str(error), False
            return False
        self.problem, self.reaches_record = self._copy_problem, True
        self._note_lease(lease, before)
        return not self.problem

    async def read_free_space(self) -> None:
        """Read how much space the disk of the copy has now, into `free_bytes`."""
        self.free_bytes = await asyncio.to_thread(_free_bytes, self._path)

    def _note_lease(self, lease: LeaseRow, before: RealTime) -> None:
        self.lease = lease
        self.clock_difference_s = _distance(RealTime(lease.server_time), before, self._real_time())
        now = self._monotonic()
        if lease.remaining_s > 0:
            self._alive_at, self._expires_at = now - (LEASE_S - lease.remaining_s), now + lease.remaining_s
        elif self._alive_at is not None and now < self._expires_at:  # it was released before it could expire
            self._alive_at = max(self._alive_at, now + lease.remaining_s)

    async def take(self, name: str, url: str) -> TakenLease | None:
        """Try to take the lease for this node; None if another one was faster, or the record is out of reach.

        In the latter case `problem` says why, and the lease may have been taken all the same; then it expires.
        """
        before = self.lease
        assert before is not None, "look first"
        sent_at = self._monotonic()
        try:
            taken = await self._call(self._record.take_lease, name, url)
        except ForewarnError as error:
            self.problem = str(error)
            return None
        return None if taken is None else TakenLease(taken, before, sent_at, self._alive_at)

    async def open_store(
        self,
        taken: TakenLease,
        *,
        guard: LeaseGuard,
        clock: Callable[[], float],
        on_stop: Callable[[MustStop], None],
    ) -> ReplicatedStore:
        """Stop following the record, and open this copy as the store of the active node; close it before `look`."""

        def open_copy() -> ReplicatedStore:
            self._close_follower()
            name = f"control node {self._name}"
            return ReplicatedStore.open_copy(
                self._path, self._record, taken.lease, guard=guard, clock=clock, on_stop=on_stop, name=name
            )

        store = await self._call(open_copy)
        self._renewal = read_renewal(store.load(RENEWAL_NAME))
        return store

    @property
    def lost(self) -> str:
        """What is known of commits that the record has lost, in a sentence; "" a day after the new epoch began."""
        if self.lease is not None and self.lease.lost:
            return lost_commits_problem(self.lease.lost)
        renewal = self._renewal
        if renewal is None or not renewal.is_recent_loss(float(self._real_time())):
            return ""
        return lost_commits_problem(renewal.reason)

    async def renew_epochs(self, taken: TakenLease, lost: str) -> TakenLease:
        """Give every scope of the record a new epoch under this lease; return the lease as it is then."""
        sent_at = self._monotonic()
        renew = partial(self._record.renew_epochs, taken.lease, float(self._real_time()), lost, is_loss=True)
        lease, epoch = await self._call(renew)
        self.lease = lease
        log.critical("every scope has the new epoch %d, because %s", epoch, lost)
        return taken._replace(lease=lease, sent_at=sent_at)

    def forget_lease(self) -> None:
        """Forget the lease that was read, and when another node was active, because this one was until now."""
        self.lease, self._alive_at = None, None

    async def close(self) -> None:
        """Abort the call of the record that is under way, if any, and close the copy; the record stays open."""
        self._record.abort()
        await self._call(self._close_follower)
        self._thread.shutdown()

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _follow_or_read_lease(self) -> LeaseRow:
        if not self._copy_problem or self._monotonic() >= self._copy_retry_at:
            try:
                lease = self._follow()
            except (Refused, RecordUnavailable):
                raise
            except ForewarnError as error:
                self._copy_problem, self._copy_retry_at = str(error), self._monotonic() + _COPY_RETRY_S
            else:
                self._copy_problem = ""
                return lease
        return self._record.read_lease()

    def _follow(self) -> LeaseRow:
        self.free_bytes = _free_bytes(self._path)
        if self._follower is None:
            self._follower = CopyFollower(self._path, self._record, f"control node {self._name}")
        lease = self._follower.follow()
        self._renewal = read_renewal(self._follower.load(RENEWAL_NAME))
        self.number = self._follower.position.number
        if self._fingerprint:
            self._check_secrets()
        return lease

    def _check_secrets(self) -> None:
        with closing(sqlite_file.connect(self._path, mode="ro")) as db:
            row = db.execute(_READ_SAVED, (FINGERPRINT_NAME,)).fetchone()
        if row is not None:
            require_same_secrets(row[0], self._fingerprint)
            self._fingerprint = ""  # once is enough: the cluster keeps its secrets

    def _close_follower(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


def _free_bytes(path: Path) -> int | None:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _distance(server_time: RealTime, begin: RealTime, end: RealTime) -> float:
    """Return how far our clock is ahead of the server's, which was read between `begin` and `end`."""
    if server_time < begin:
        return begin - server_time
    return min(0.0, end - server_time)
