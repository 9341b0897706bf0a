"""The `SharedRecord` protocol: the tables in a database server that several control nodes share.

One control node is active: it holds the lease, and only it writes. Each group of its writes is one transaction of the
record, fenced by the term of the lease and numbered without gaps. The log holds the changed rows of each group, from
which every control node keeps its own copy (a SQLite store). The record conformance suite is the specification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from forewarn.base.times import LabTime
from forewarn.core.control_node import NodeRow
from forewarn.errors import ForewarnError, Rejected, Unavailable

LEASE_S = 3.0  # a lease that was not renewed for this long has expired, by the clock of the record's server

LACKS_STANDBY = (
    "PostgreSQL demands no synchronous standby any more, with which this cluster was set up: set "
    "synchronous_standby_names on the present primary, or run `forewarn store without-standby`"
)

SqlValues = tuple[Any, ...]  # each is str, bytes, int, float or None


class RecordUnavailable(Unavailable):
    """The record cannot be reached or used now.

    `SharedRecord.commit` then had no effect; other writes, such as `take_lease`, may have taken effect.
    """


class OutcomeUnknown(Unavailable):
    """The answer to a COMMIT, which may have taken effect, was lost: `was_committed` finds out what happened."""


class MustStop(Unavailable):
    """This process may no longer act for the fleet and must end, because it may differ from the record."""


class Deposed(MustStop):
    """Another control node has taken the lease, or this one has released it; nothing was written."""


class RecordMismatch(MustStop):
    """The record is not as the active node expects: it has lost or gained a group, or other rows."""


class NotReplicated(MustStop):
    """A COMMIT took effect on the primary server, but perhaps not on the standby."""


class LogPruned(ForewarnError):
    """The record's log does not have the requested group, or does not continue after it: build the copy again."""


class RowsRejected(Rejected):
    """The record cannot store a value of a group, such as a text with NUL. The others are tried without it."""


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """The lease as it was read: which control node may write to the record, and how far the record is."""

    term: int  # grows with each holder; 0: nobody has held it yet
    holder: str  # who took it last, even if it has expired: a control node or "forewarn store copy"; "": nobody yet
    url: str  # where that node can be reached; "" if it was a command
    number: int  # the number of the last group of writes in the record; 0: none yet
    seq: int  # the number of the last history entry ever written, also a pruned one
    clock: LabTime  # of the last group; the clock of a later holder is never behind it
    remaining_s: float  # seconds until it expires, by the server's clock; 0 or less: it has expired
    server_time: float  # the server's own clock, in POSIX seconds
    record_id: str  # another one each time the record is made, moved or renewed; a copy of another one is useless
    lacks_standby: bool = False  # the server demands no synchronous standby, and once did: nothing may be written
    lost: str = ""  # which commits the record has lost, in a clause; "": none since the epochs were renewed


class RowChange(msgspec.Struct, frozen=True, array_like=True):
    """One row of a replicated table as it is after a group of writes, or its deletion."""

    table: str  # the name of the table
    key: SqlValues  # the values of its primary key
    row: SqlValues | None  # all columns in the order of the schema; None: the row is deleted


class RecordGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Writes that are committed together: one transaction of the record, one row of its log.

    Deletions are applied before everything else: a row that was deleted and added again is in `changes` twice.
    """

    term: int  # the term of the lease under which it was written
    number: int  # one more than that of the group before
    seq: int  # the number of the last history entry after it
    clock: LabTime  # when it was committed
    changes: tuple[RowChange, ...]  # of replicated tables, deletions first
    revision: str = ""  # the revision of the schema that the rows have
    hash: str = ""  # over all groups up to this one, see `chain_hash`; "" if a release without it wrote the group
    body: bytes = b""  # `changes` as the log stores them; b"": not encoded yet


class GroupMark(NamedTuple):
    """Which group it is that has a number: two records with the same mark have the same groups up to there."""

    term: int
    hash: str


def chain_hash(before: str, term: int, number: int, body: bytes) -> str:
    """Return the hash of a group, given that of the group before and the encoded changes."""
    chained = hashlib.sha256(f"{before}:{term}:{number}:".encode())
    chained.update(body)
    return chained.hexdigest()[:32]


class RecordSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of the record as of one group, to build a copy from; `SharedRecord.snapshot` returns it."""

    record_id: str  # another one each time the record is made, moved or renewed
    term: int  # the term of the group `number`; 0 if the log does not have that
    number: int  # the number of the last group that the rows have
    hash: str  # the hash of that group
    seq: int  # the number of the last history entry ever written
    revision: str  # the revision of the schema that the rows have
    tables: Iterator[tuple[str, Sequence[SqlValues]]]  # table and rows, perhaps in pieces; empty ones may be left out


class SharedRecord(Protocol):
    """One connection to the record: the tables in a database server that several control nodes share.

    One node is active: it holds the lease, and only it writes. An instance is for one thread at a time; `connect`
    returns further ones. Every call blocks, and may wait for as long as the server's standby is missing;
    `waits_for_standby` of another connection says so. Calls raise RecordUnavailable if the server cannot be reached,
    and may be repeated.
    """

    def connect(self) -> SharedRecord:
        """Return another connection to the same record; it connects with its first call."""

    def read_lease(self) -> LeaseRow:
        """Return the lease, held or expired, with the number of the last group. Raises RecordUnavailable."""

    def take_lease(self, holder: str, url: str) -> LeaseRow | None:
        """Take the lease under a new term and return it; None if it has not expired, even if `holder` has it.

        The server's clock decides. The holder renews it at least every LEASE_S seconds, with `renew_lease` or `commit`.
        After RecordUnavailable the lease may have been taken.
        """

    def renew_lease(self, term: int) -> LeaseRow | None:
        """Extend the lease by LEASE_S seconds from now and return it; None if another node has taken it since.

        An expired lease that nobody has taken is renewed, too. `term` is the one that `take_lease` returned.
        """

    def release_lease(self, term: int) -> None:
        """Let the lease expire at once, so that another node can take it; does nothing under a later term."""

    def commit(self, group: RecordGroup) -> None:
        """Write a group, all of it or nothing, and renew the lease; durable on return.

        An expired lease that no node has taken is renewed as well. Deposed under a later term, RecordMismatch if
        `group.number` does not follow or a row contradicts another. NotReplicated means that it was written, but
        perhaps not to the standby; after OutcomeUnknown the caller must ask `was_committed` before it writes anything
        else.
        """

    def was_committed(self, term: int, number: int) -> bool:
        """Return whether the group with this number was committed under this term; False if another one was.

        Waits for a transaction of a lost connection that is still under way.
        """

    def log_after(self, number: int, limit: int) -> list[RecordGroup]:
        """Return up to `limit` groups of writes from the log after this number, in order; [] if it is last.

        There is at least one group if the record has more, but perhaps fewer than `limit`, so that large groups arrive
        within the time limit of a call.
        """

    def group_mark(self, number: int) -> GroupMark | None:
        """Return which group has this number; (0, "") for number 0, None if the log does not have it."""

    def report_loss(self, record_id: str, lost: str) -> None:
        """Note that the record has lost commits, durably, until `renew_epochs`; an earlier note stays.

        Does nothing if the record has another id now: its epochs were renewed since.
        """

    def renew_epochs(self, lease: LeaseRow, now: float, reason: str, *, is_loss: bool = False) -> tuple[LeaseRow, int]:
        """Begin a new epoch (`begin_new_epoch`) under the lease that the caller holds; return the lease then and it.

        `lease` must have the number of the last group. The record gets another id, so that every copy is built again;
        the term becomes at least `now` (real time), so that hosts obey it that know terms which are lost. Raises
        Deposed if the lease or its number is another one.
        """

    def prune_log(self, keep_s: float) -> int:
        """Delete groups from the log that are older than this and not among the last 1000; return how many."""

    def snapshot(self) -> AbstractContextManager[RecordSnapshot]:
        """Return a context manager that gives all rows as of one group; the record can be written meanwhile."""

    def waits_for_standby(self) -> bool:
        """Return whether a COMMIT of any node now waits for the server's synchronous standby."""

    def put_node(self, node: NodeRow) -> None:
        """Store how a control node describes itself, in place of its earlier description; not in the log."""

    def nodes(self) -> list[NodeRow]:
        """Return the control nodes that have described themselves, sorted by name."""

    def abort(self) -> None:
        """End the call that another thread waits for, by breaking the connection; for any thread."""

    def close(self) -> None:
        """Close the connection. Closing twice is harmless; calls afterwards raise RecordUnavailable."""


# How control nodes say that their record has lost commits that were acknowledged: a standby of PostgreSQL was promoted
# without the last commits, or a backup was restored. `service/control_node` says what follows from it.
_BEGINNING = "PostgreSQL has lost commits: "


def describe_loss(by: str, *, known: int, found: int) -> str:
    """Return the clause about a loss: `by` knew group `known` of a record whose last group is `found`."""
    place = f"the record ended at group {found}" if found < known else "the record has a different one"
    return f"{_BEGINNING}{by} had group {known}, but {place}"


def lost_commits_problem(lost: str) -> str:
    """Return what a control node shows as its problem after a loss."""
    return (
        f"{lost}; VMs may have seen events that it lacks, so every scope gets a new epoch: find out why "
        "synchronous_standby_names did not prevent it"
    )


def tells_of_lost_commits(text: str) -> bool:
    """Return whether a control node's `NodeRow.status` reports lost commits, which do not keep it from taking over."""
    return text.startswith(_BEGINNING)
