"""The record in PostgreSQL: lease, fence and number in one row, changed rows, and the log.

Every group is one transaction. It begins with an update of the lease row under the group's term and number, which
fails for a deposed node; its COMMIT is a step of its own, so that only a connection that is lost there leaves the
outcome unknown. All transactions are READ COMMITTED, and write only a few rows that one node owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from forewarn.cluster import postgres_connection
from forewarn.cluster.postgres_connection import (
    CALL_LIMIT_S,
    END_STALLED_HOLDER,
    WAITS_FOR_STANDBY,
    LimitedConnection,
    array_parameters,
    failure_text,
    transaction_settings,
    upsert_all_sql,
)
from forewarn.cluster.record import (
    LACKS_STANDBY,
    LEASE_S,
    Deposed,
    GroupMark,
    LeaseRow,
    LogPruned,
    NotReplicated,
    OutcomeUnknown,
    RecordGroup,
    RecordMismatch,
    RecordSnapshot,
    RecordUnavailable,
    RowsRejected,
    SharedRecord,
    SqlValues,
)
from forewarn.cluster.row_changes import (
    REPLICATED_TABLES,
    ChangesByTable,
    decode_changes,
    delete_sql,
    encode_changes,
    group_changes,
    quote,
)
from forewarn.core.control_node import NodeRow
from forewarn.errors import ForewarnError, Refused, Unavailable
from forewarn.store.commit_mark import begin_new_epoch
from forewarn.store.schema import REVISION, REVISIONS

_ROWS_PER_FETCH = 1000
_ROWS_PER_STATEMENT = 5000
_LOG_BYTES_PER_READ = 1_000_000  # so that a call reads them within its limit, also on a slow network
_LARGE_GROUP_BYTES = 1_000_000  # of its body: from here on a group is sent in parts, see `_send_large_group`
_SLOWEST_BYTES_PER_S = 1_000_000  # a call with many bytes has this much more time: they must arrive at last
_KEPT_GROUPS = 1000  # the log always has the last ones, so that a copy of an idle record stays valid
_NODE_DAYS = 7  # a control node that has not described itself for longer is forgotten
_WRITE_LIMITS = transaction_settings(lock_s=5, idle_s=LEASE_S)
_EXPIRY = f"clock_timestamp() + interval '{LEASE_S} seconds'"
# Whether a COMMIT of this session waits for a standby, which a primary without one does not: see `LACKS_STANDBY`.
_IS_SYNCHRONOUS = """(current_setting('synchronous_standby_names') <> ''
    AND current_setting('synchronous_commit') NOT IN ('off', 'local'))"""
_LEASE_COLUMNS = (
    "term, holder, url, n, seq, clock, coalesce(extract(epoch FROM nullif(expires_at, '-infinity') "
    "- clock_timestamp()), -1)::float8, extract(epoch FROM clock_timestamp())::float8, record_id, "
    f"demands_standby AND NOT {_IS_SYNCHRONOUS}, lost"
)
_READ_LEASE = f"SELECT {_LEASE_COLUMNS} FROM lease WHERE shard = 0"
_LOCK_LEASE = f"{_READ_LEASE} FOR UPDATE"
_TAKE_LEASE = f"""
    UPDATE lease SET term = term + 1, holder = %s, url = %s, expires_at = {_EXPIRY},
                     demands_standby = demands_standby OR {_IS_SYNCHRONOUS}
    WHERE shard = 0 AND expires_at < clock_timestamp() RETURNING {_LEASE_COLUMNS}"""
_RENEW_LEASE = f"""
    UPDATE lease SET expires_at = {_EXPIRY}, demands_standby = demands_standby OR {_IS_SYNCHRONOUS}
    WHERE shard = 0 AND term = %s RETURNING {_LEASE_COLUMNS}"""
_RELEASE_LEASE = "UPDATE lease SET expires_at = clock_timestamp() WHERE shard = 0 AND term = %s"
# Fails with division by zero if no row is left: then the server skips the rest of the pipeline.
_FENCE = f"""
    WITH fenced AS (
        UPDATE lease SET n = n + 1, seq = %s, clock = greatest(clock, %s), expires_at = {_EXPIRY}
        WHERE shard = 0 AND term = %s AND n = %s AND (NOT demands_standby OR {_IS_SYNCHRONOUS}) RETURNING n)
    SELECT 1 / (SELECT count(*) FROM fenced)"""
_ADD_TO_LOG = "INSERT INTO log (n, term, revision, seq, clock, body, hash) VALUES (%s, %s, %s, %s, %s, %s, %s)"
_REPORT_LOSS = "UPDATE lease SET lost = %s WHERE shard = 0 AND record_id = %s AND lost = ''"
# Hosts obey no term that is lower than one they know, and the record may have forgotten the last ones.
_RENEW_RECORD = f"""
    UPDATE lease SET n = n + 1, clock = greatest(clock, %s), term = greatest(term, %s), lost = '',
                     record_id = gen_random_uuid()::text
    WHERE shard = 0 AND term = %s AND n = %s RETURNING {_LEASE_COLUMNS}"""
# Without a body: a copy of an earlier group cannot continue with it, and is built again.
_ADD_RENEWAL_TO_LOG = """
    INSERT INTO log (n, term, revision, seq, clock, body, hash)
    VALUES (%s, %s, %s, %s, %s, NULL, gen_random_uuid()::text)"""
# The first group in any case; further ones as long as all of them together are not longer than the last parameter.
_READ_LOG = """
    SELECT n, term, revision, seq, clock, body, hash FROM (
        SELECT *, row_number() OVER (ORDER BY n) AS place, sum(octet_length(body)) OVER (ORDER BY n) AS bytes
        FROM (SELECT * FROM log WHERE n > %s ORDER BY n LIMIT %s) AS following
    ) AS measured WHERE place = 1 OR bytes <= %s ORDER BY n"""
_READ_LENGTH = "SELECT octet_length(body) FROM log WHERE n = %s"
_READ_MARK = "SELECT term, hash FROM log WHERE n = %s"
_PRUNE_LOG = f"""
    DELETE FROM log WHERE at < clock_timestamp() - make_interval(secs => %s)
    AND n <= (SELECT n FROM lease WHERE shard = 0) - {_KEPT_GROUPS}"""
# A node that waits for the standby must be able to say so.
_WITHOUT_STANDBY = "SET LOCAL synchronous_commit = local"
_PUT_NODE = """
    INSERT INTO nodes (name, url, role, version, number, status, seen_at)
    VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT (name) DO UPDATE SET url = excluded.url,
    role = excluded.role, version = excluded.version, number = excluded.number, status = excluded.status,
    seen_at = excluded.seen_at"""
_FORGET_NODES = f"DELETE FROM nodes WHERE seen_at < clock_timestamp() - interval '{_NODE_DAYS} days'"
_NODES = """
    SELECT name, url, role, version, number, status, extract(epoch FROM clock_timestamp() - seen_at)::float8
    FROM nodes ORDER BY name COLLATE "C" """
_READ_REVISION = "SELECT version_num FROM alembic_version"

Result = TypeVar("Result")
RowList = list[tuple[Any, ...]]


def open_record(url: str) -> PostgresRecord:
    """Connect to the record in PostgreSQL at this URL and check its schema; blocks. The caller closes it."""
    record = PostgresRecord(url)
    try:
        record.check_revision()
    except BaseException:
        record.close()
        raise
    return record


class PostgresRecord(SharedRecord):
    """A connection to the record: the tables in PostgreSQL that all control nodes share.

    It is for one thread at a time. It connects with the first call, and again after a lost connection. Once connected,
    a call, and each part of `commit` and of a snapshot, blocks for up to 10 s, including the time in which an answer
    arrives.
    """

    def __init__(self, url: str) -> None:
        postgres_connection.parse_url(url)
        self._url = url
        self._name = postgres_connection.describe_url(url)
        self._db: LimitedConnection | None = None
        self._is_closed = False
        self._wait_was_cancelled = False
        self._is_committing = False  # a COMMIT was sent, and not answered yet

    def connect(self) -> PostgresRecord:
        return PostgresRecord(self._url)

    @property
    def is_pooled(self) -> bool:
        """Return whether a connection pooler is between this process and the server; blocks."""
        return self._connected().is_pooled

    def check_revision(self) -> str:
        """Return the revision of the schema; raise Refused if it is missing or not this forewarn's."""
        try:
            found = "/".join(str(number) for (number,) in self._call(lambda db: db.execute(_READ_REVISION).fetchall()))
        except Unavailable as error:
            if isinstance(error.__cause__, errors.UndefinedTable):
                found = ""
            else:
                raise
        if not found:
            raise Refused(f"{self._name} has no tables of forewarn: run `forewarn store migrate` with its URL")
        if found not in REVISIONS:
            raise Refused(
                f"{self._name} has schema revision {found}, unknown to this forewarn, which knows {REVISION} and "
                "earlier: use the forewarn that wrote it, or a later one"
            )
        if found != REVISION:
            raise Refused(
                f"{self._name} has schema revision {found}, and this forewarn needs {REVISION}: run `forewarn store "
                "migrate` with its URL"
            )
        return found

    def read_lease(self) -> LeaseRow:
        return self._call(lambda db: _lease_row(db.execute(_READ_LEASE).fetchall()))

    def take_lease(self, holder: str, url: str) -> LeaseRow | None:
        self._call(lambda db: db.execute(END_STALLED_HOLDER))
        rows = self._write(_TAKE_LEASE, (holder, url))
        return _lease_row(rows) if rows else None

    def renew_lease(self, term: int) -> LeaseRow | None:
        rows = self._write(_RENEW_LEASE, (term,))
        return _lease_row(rows) if rows else None

    def release_lease(self, term: int) -> None:
        self._write_count(_RELEASE_LEASE, (term,))

    def commit(self, group: RecordGroup) -> None:
        db = self._connected()
        self._is_committing = self._wait_was_cancelled = False
        body = group.body or encode_changes(group.changes)
        try:
            if len(body) > _LARGE_GROUP_BYTES:
                self._send_large_group(db, group, body)
                self._is_committing = True
                self._begin_call(db)
                db.execute("COMMIT", prepare=False)
            else:
                with db.pipeline() as pipeline:
                    with db.sending_together():
                        _send_group(db, group, body)
                    self._begin_call(db)  # the answer has all of its time, however long it took to encode the rows
                    pipeline.sync()  # the first round trip: only now the COMMIT is sent
                    self._is_committing = True
                    self._begin_call(db)
                    db.execute("COMMIT", prepare=False)
        except psycopg.Error as error:
            raise self._commit_error(group, db, error) from error
        if self._wait_was_cancelled:
            raise self._not_replicated(group)

    def was_committed(self, term: int, number: int) -> bool:
        def ask(db: LimitedConnection) -> tuple[LeaseRow, RowList]:
            with db.transaction():
                db.execute(_WRITE_LIMITS)
                lease = _lease_row(db.execute(_LOCK_LEASE).fetchall())
                return lease, db.execute(_READ_MARK, (number,)).fetchall()

        lease, found = self._call(ask)
        if number > lease.number:
            return False
        if not found:
            raise LogPruned(f"{self._name} no longer knows who wrote group {number}")
        return bool(found[0][0] == term)

    def log_after(self, number: int, limit: int) -> list[RecordGroup]:
        def read(db: LimitedConnection) -> tuple[LeaseRow, RowList]:
            lease = _lease_row(db.execute(_READ_LEASE).fetchall())  # first: a group that follows meanwhile is no gap
            if number == lease.number:
                return lease, []
            lengths = db.execute(_READ_LENGTH, (number + 1,)).fetchall()
            self._begin_call(db, lengths[0][0] or 0 if lengths else 0)
            return lease, db.execute(_READ_LOG, (number, limit, _LOG_BYTES_PER_READ), binary=True).fetchall()

        lease, rows = self._call(read)
        if number == lease.number:
            return []
        if number > lease.number or not rows or rows[0][0] != number + 1 or any(row[5] is None for row in rows):
            raise LogPruned(f"the log of {self._name} does not continue after group {number}")
        return [
            RecordGroup(
                number=n, term=term, revision=revision, seq=seq, clock=clock, changes=decode_changes(body), hash=mark
            )
            for n, term, revision, seq, clock, body, mark in rows
        ]

    def group_mark(self, number: int) -> GroupMark | None:
        if number == 0:
            return GroupMark(0, "")
        rows = self._call(lambda db: db.execute(_READ_MARK, (number,)).fetchall())
        return GroupMark(*rows[0]) if rows else None

    def report_loss(self, record_id: str, lost: str) -> None:
        self._write_count(_REPORT_LOSS, (lost, record_id))

    def renew_epochs(self, lease: LeaseRow, now: float, reason: str, *, is_loss: bool = False) -> tuple[LeaseRow, int]:
        def renew(db: LimitedConnection) -> tuple[LeaseRow, int]:
            rows = db.execute(_RENEW_RECORD.encode(), (now, int(now), lease.term, lease.number)).fetchall()
            if not rows:
                raise Deposed(f"a control node has begun to use {self._name}: its epochs were not renewed")
            renewed = _lease_row(rows)
            renewal = begin_new_epoch(
                lambda sql, values: db.execute(sql.replace("?", "%s").encode(), values),
                now=now,
                reason=reason,
                is_loss=is_loss,
            )
            entry = (renewed.number, lease.term, REVISION, renewed.seq, renewed.clock)
            db.execute(_ADD_RENEWAL_TO_LOG, entry)
            # Last, because the update of many scopes takes long: the caller still holds the lease after the COMMIT.
            held = _lease_row(db.execute(_RENEW_LEASE.encode(), (renewed.term,)).fetchall())
            return held, renewal.epoch

        return self._in_transaction(renew)

    def prune_log(self, keep_s: float) -> int:
        return self._write_count(_PRUNE_LOG, (float(keep_s),))

    @contextmanager
    def snapshot(self) -> Iterator[RecordSnapshot]:
        db = self._connected()
        with self._errors():
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            lease = _lease_row(db.execute(_READ_LEASE).fetchall())
            ((revision,),) = db.execute(_READ_REVISION).fetchall()
            marks = db.execute(_READ_MARK, (lease.number,)).fetchall()
        try:
            yield RecordSnapshot(
                record_id=lease.record_id,
                term=int(marks[0][0]) if marks else 0,
                number=lease.number,
                hash=marks[0][1] if marks else "",
                seq=lease.seq,
                revision=revision,
                tables=self._read_tables(db),
            )
        finally:
            if not db.closed:  # otherwise the error that closed it is on its way
                self._begin_call(db)
                with self._errors():
                    db.execute("ROLLBACK", prepare=False)

    def waits_for_standby(self) -> bool:
        return bool(self._call(lambda db: db.execute(WAITS_FOR_STANDBY).fetchall())[0][0])

    def put_node(self, node: NodeRow) -> None:
        row = (node.name, node.url, node.role, node.version, node.number, node.status)

        def put(db: LimitedConnection) -> None:
            db.execute(_WITHOUT_STANDBY)
            db.execute(_PUT_NODE.encode(), row)
            db.execute(_FORGET_NODES.encode())

        self._in_transaction(put)

    def nodes(self) -> list[NodeRow]:
        return [
            NodeRow(name=name, url=url, role=role, version=version, number=number, status=status, last_seen_ago_s=seen)
            for name, url, role, version, number, status, seen in self._call(lambda db: db.execute(_NODES).fetchall())
        ]

    def abort(self) -> None:
        if (db := self._db) is not None:
            db.is_aborted = True

    def close(self) -> None:
        self._is_closed = True
        self._disconnect()

    def _send_large_group(self, db: LimitedConnection, group: RecordGroup, body: bytes) -> None:
        """Send everything but the COMMIT of a group that takes seconds, such as a change of a whole fleet.

        The fence locks the lease, so it comes last: otherwise nobody could renew the lease meanwhile, this node would
        be suspended, and another one would take over. The fence holds wherever it stands, because all of the
        transaction is undone if it finds another holder. Each part is a call with a limit of its own.
        """
        db.execute("BEGIN")
        db.execute(_WRITE_LIMITS)
        db.execute("LOCK TABLE lease IN ROW EXCLUSIVE MODE")  # of the table, not the row: for END_STALLED_HOLDER
        grouped = group_changes(group.changes)
        for table, keys in grouped.deletes.items():
            for part in _parts(keys):
                self._begin_call(db)
                db.cursor().executemany(delete_sql(table, "%s"), part)
        for sql, parameters in _upserts(grouped):
            self._begin_call(db, len(body))
            db.execute(sql, parameters)
        self._begin_call(db, len(body))
        db.execute(_ADD_TO_LOG, _log_values(group, body))
        self._begin_call(db)
        db.execute(_FENCE, _fence_values(group))

    def _commit_error(self, group: RecordGroup, db: LimitedConnection, error: psycopg.Error) -> ForewarnError:
        """Return what a failed commit raises; leaves no transaction open."""
        if self._is_committing:
            self._disconnect()
            if self._wait_was_cancelled:
                return self._not_replicated(group)
            return OutcomeUnknown(
                f"the answer of {self._name} to the COMMIT of group {group.number} was lost ({self._reason(error)})"
            )
        with self._errors():
            if not isinstance(error, psycopg.DataError | psycopg.IntegrityError):
                raise error
            db.execute("ROLLBACK", prepare=False)
        if isinstance(error, errors.DivisionByZero):
            return self._fence_error(group)
        if isinstance(error, psycopg.DataError):
            return RowsRejected(f"{self._name} cannot store a value of this change ({failure_text(error)})")
        if self.read_lease().term != group.term:  # a large group meets the rows of the next holder before the fence
            return self._fence_error(group)
        return RecordMismatch(f"{self._name} differs from the copy of this node: {failure_text(error)}")

    def _not_replicated(self, group: RecordGroup) -> NotReplicated:
        return NotReplicated(
            f"{self._name} has stored group {group.number}, but somebody cancelled the wait for its standby, which may "
            "not have it"
        )

    def _fence_error(self, group: RecordGroup) -> ForewarnError:
        lease = self.read_lease()
        if lease.lacks_standby:
            return RecordUnavailable(f"nothing was saved: {LACKS_STANDBY}")
        if lease.term != group.term:
            return Deposed(f"control node {lease.holder!r} has taken the lease (term {lease.term})")
        return RecordMismatch(f"{self._name} is at group {lease.number}, so group {group.number} cannot follow")

    def _read_tables(self, db: LimitedConnection) -> Iterator[tuple[str, Sequence[SqlValues]]]:
        for table in REPLICATED_TABLES.values():
            columns = ", ".join(map(quote, table.columns))
            self._begin_call(db)  # the caller may have taken its time since the last one
            with self._errors(), db.cursor(name="snapshot") as cursor:
                cursor.execute(f"SELECT {columns} FROM {quote(table.name)}".encode(), binary=True)
                while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                    yield table.name, rows
                    self._begin_call(db)

    def _write(self, sql: str, parameters: SqlValues) -> RowList:
        return self._in_transaction(lambda db: db.execute(sql.encode(), parameters).fetchall())

    def _write_count(self, sql: str, parameters: SqlValues) -> int:
        return self._in_transaction(lambda db: db.execute(sql.encode(), parameters).rowcount)

    def _in_transaction(self, use: Callable[[LimitedConnection], Result]) -> Result:
        def write(db: LimitedConnection) -> Result:
            with db.transaction():
                db.execute(_WRITE_LIMITS)
                return use(db)

        self._wait_was_cancelled = False
        result = self._call(write)
        if self._wait_was_cancelled:
            raise RecordUnavailable(f"somebody cancelled a COMMIT of {self._name} that waited for its standby")
        return result

    def _call(self, use: Callable[[LimitedConnection], Result]) -> Result:
        db = self._connected()
        with self._errors():
            return use(db)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of PostgreSQL into RecordUnavailable; the next call connects again."""
        try:
            yield
        except psycopg.Error as error:
            self._disconnect()
            raise RecordUnavailable(f"{self._name} cannot be used now ({self._reason(error)})") from error
        except BaseException:
            if self._db is not None and self._db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._disconnect()
            raise

    def _reason(self, error: psycopg.Error) -> str:
        """Return why a call has failed; for one without an answer, whether the standby is missing."""
        return failure_text(error) if self._is_closed else postgres_connection.failure_reason(self._url, error)

    def _connected(self) -> LimitedConnection:
        if self._is_closed:
            raise RecordUnavailable(f"the connection to {self._name} is closed")
        if self._db is None or self._db.closed or self._db.is_aborted:
            self._disconnect()
            self._db = postgres_connection.connect(self._url, on_notice=self._on_notice)
        self._begin_call(self._db)
        return self._db

    def _begin_call(self, db: LimitedConnection, length: int = 0) -> None:
        """Give the next call its time; `length` is how many bytes it sends or receives, if they are many."""
        db.deadline = time.monotonic() + CALL_LIMIT_S + length / _SLOWEST_BYTES_PER_S

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _on_notice(self, notice: errors.Diagnostic) -> None:
        # "canceling wait for synchronous replication" and "canceling the wait … and terminating connection": the
        # servers of all languages name the function of their source.
        if notice.source_function == "SyncRepWaitForLSN":
            self._wait_was_cancelled = True


def _send_group(db: LimitedConnection, group: RecordGroup, body: bytes) -> None:
    """Queue everything but the COMMIT in the pipeline of the connection."""
    db.execute("BEGIN")
    db.execute(_WRITE_LIMITS)
    db.execute(_FENCE, _fence_values(group))
    cursor, grouped = db.cursor(), group_changes(group.changes)
    for table, keys in grouped.deletes.items():
        cursor.executemany(delete_sql(table, "%s"), keys)
    for sql, parameters in _upserts(grouped):
        cursor.execute(sql, parameters)
    db.execute(_ADD_TO_LOG, _log_values(group, body))


def _upserts(grouped: ChangesByTable) -> Iterator[tuple[bytes, tuple[object, ...]]]:
    for (table, width), rows in grouped.upserts.items():
        for part in _parts(rows):
            yield upsert_all_sql(table, width), array_parameters(table, part)


def _parts(rows: Sequence[SqlValues]) -> Iterator[Sequence[SqlValues]]:
    return (rows[at : at + _ROWS_PER_STATEMENT] for at in range(0, len(rows), _ROWS_PER_STATEMENT))


def _fence_values(group: RecordGroup) -> SqlValues:
    return (group.seq, group.clock, group.term, group.number - 1)


def _log_values(group: RecordGroup, body: bytes) -> SqlValues:
    return (group.number, group.term, group.revision, group.seq, group.clock, body, group.hash)


def _lease_row(rows: RowList) -> LeaseRow:
    ((term, holder, url, number, seq, clock, remaining_s, server_time, record_id, lacks_standby, lost),) = rows
    return LeaseRow(
        term=term,
        holder=holder,
        url=url,
        number=number,
        seq=seq,
        clock=clock,
        remaining_s=remaining_s,
        server_time=server_time,
        record_id=record_id,
        lacks_standby=lacks_standby,
        lost=lost,
    )
