"""What an administrator does with a record: migrate it, copy a site there and back, renew its epochs.

Each is one transaction. All but `migrate_record` take the lease, so that no control node is active meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import errors
from sqlalchemy import Float, LargeBinary, String
from sqlalchemy.exc import DBAPIError

from forewarn.base.files import sync_to_disk
from forewarn.cluster import postgres_connection
from forewarn.cluster.following import CopyPosition, build_copy, forget_position, read_position
from forewarn.cluster.lease import HeldLease
from forewarn.cluster.postgres_connection import LimitedConnection, failure_text
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.record import LeaseRow, RecordUnavailable, SqlValues
from forewarn.cluster.row_changes import (
    REPLICATED_TABLES,
    TableDigest,
    copy_digests,
    digest_tables,
    quote,
    read_rows,
    snapshot_digests,
)
from forewarn.errors import Refused, Unavailable
from forewarn.store import sqlite_file
from forewarn.store.commit_mark import mark_path
from forewarn.store.purpose import StorePurpose, read_purpose
from forewarn.store.schema import REVISION, REVISIONS, metadata
from forewarn.store.sqlite_file import MOVED_NAME

# The state of a record in PostgreSQL for people: what is there, and what is wrong with it.

_COMPARISONS = 5  # attempts to find the copy and the record at the same group
_SERVER = """
    SELECT current_setting('server_version'), current_setting('fsync')::bool,
           current_setting('synchronous_standby_names'),
           (SELECT count(*) FROM log), (SELECT coalesce(min(n), 0) FROM log), (SELECT n FROM lease WHERE shard = 0),
           (SELECT convert_from(value, 'UTF8') FROM saved WHERE name = %s)"""
_STANDBYS = """
    SELECT coalesce(application_name, '?'), coalesce(state, 'unknown'), coalesce(sync_state, 'unknown')
    FROM pg_stat_replication ORDER BY 1"""


class StandbyServer(msgspec.Struct, frozen=True, kw_only=True):
    """A standby of the PostgreSQL server, as far as the database user of the URL may see it."""

    name: str  # "?" if the user may not see it
    state: str  # such as "streaming"; "unknown" if the user may not see it
    sync_state: str  # "sync" or "quorum": a COMMIT waits for it; "unknown" if the user may not see it


class RecordReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a record in PostgreSQL for people, as `examine_record` found it at one time."""

    server: str  # hosts and database, without the password
    version: str  # the version of PostgreSQL
    pooled: bool  # a connection pooler is in between
    revision: str  # the revision of the schema
    holder: str  # the control node or command that holds the lease; "": none does now
    term: int  # the term of the lease; it grows with each holder
    number: int  # the number of the last group of writes in the record
    log_groups: int  # how many groups the log has
    standbys: tuple[StandbyServer, ...]  # PostgreSQL servers that follow this one
    problems: tuple[str, ...]  # sentences; empty: all is well
    warnings: tuple[str, ...]  # sentences about what is allowed, and may lose data


def examine_record(url: str, copy: Path | None = None) -> RecordReport:
    """Examine the record at a URL, and compare it with the copy in the file `copy`, if given. Blocks."""
    name = postgres_connection.describe_url(url)
    with closing(open_record(url)) as record:
        lease, revision, pooled = record.read_lease(), record.check_revision(), record.is_pooled
        with closing(postgres_connection.connect(url)) as db:
            try:
                server = db.execute(_SERVER, (MOVED_NAME,)).fetchall()[0]
                standbys = db.execute(_STANDBYS).fetchall()
            except psycopg.Error as error:
                reason = postgres_connection.failure_text(error)
                raise RecordUnavailable(f"{name} cannot be examined ({reason})") from error
        version, has_fsync, demanded, groups, first, number, moved = server
        problems = _find_problems(record, demanded, standbys, moved)
        if number and (groups == 0 or first + groups - 1 != number):
            problems.append(
                f"the log of {name} has gaps, so that standbys cannot follow: they build their copies again"
            )
        if copy is not None:
            problems += _compare_copy(record, copy)
        return RecordReport(
            server=name,
            version=version,
            pooled=pooled,
            revision=revision,
            holder=lease.holder if lease.remaining_s > 0 else "",
            term=lease.term,
            number=lease.number,
            log_groups=groups,
            standbys=tuple(StandbyServer(name=name, state=state, sync_state=sync) for name, state, sync in standbys),
            problems=tuple(problems),
            warnings=tuple(_find_warnings(has_fsync, demanded)),
        )


def _find_problems(
    record: PostgresRecord, demanded: str, standbys: list[tuple[Any, ...]], moved: str | None
) -> list[str]:
    problems = []
    if moved is not None:
        problems.append(f"the site was moved from this record to {moved}: it is not used any more")
    is_followed = any(sync in ("sync", "quorum", "unknown") for _, _, sync in standbys)
    if (demanded and not is_followed) or record.waits_for_standby():
        problems.append(
            f"PostgreSQL waits for its synchronous standby {demanded!r}, so that nothing can be committed: start the "
            "standby, or change synchronous_standby_names"
        )
    return problems


def _find_warnings(has_fsync: bool, demanded: str) -> list[str]:
    warnings = []
    if not demanded:
        warnings.append(
            "PostgreSQL has no synchronous standby: what was answered is lost with the primary server's disk; set "
            "synchronous_standby_names"
        )
    if not has_fsync:
        warnings.append("PostgreSQL has fsync = off: a loss of power destroys the record; set it to on")
    return warnings


def _compare_copy(record: PostgresRecord, copy: Path) -> list[str]:
    with sqlite_file.file_errors_as_unavailable(copy, "read"):
        for _ in range(_COMPARISONS):
            before = _position_of(copy)
            digests = copy_digests(copy)
            with record.snapshot() as snapshot:
                number, record_id, expected = snapshot.number, snapshot.record_id, snapshot_digests(snapshot)
            if before.record_id != record_id:
                return [f"the copy {str(copy)!r} is of another record, or from before its epochs were renewed"]
            if before == _position_of(copy) and before.number == number:
                differing = sorted(table for table in expected if expected[table] != digests[table])
                if differing:
                    return [f"the copy {str(copy)!r} differs from the record in {', '.join(differing)}: delete it"]
                return []
    return [f"the copy {str(copy)!r} is at group {before.number} and the record at {number}: they cannot be compared"]


def _position_of(copy: Path) -> CopyPosition:
    with closing(sqlite_file.connect(copy, mode="ro")) as db:
        try:
            position = read_position(db)
        except sqlite3.OperationalError:
            position = None
    if position is None:
        raise Refused(f"the file {str(copy)!r} is not a copy of a record: give the store of a control node")
    return position


_ROWS_PER_FETCH = 5000
_LOCK_LIMIT = "SET LOCAL lock_timeout = '5s'"
_REVISION_TABLE = "SELECT to_regclass('alembic_version')::text"
_READ_REVISION = "SELECT version_num FROM alembic_version"
# The group before the COMMIT: nobody may have taken the lease meanwhile. Its log entry has no body: a copy of an
# earlier group cannot continue with it, and is built again.
_FENCE = """
    UPDATE lease SET n = n + 1, seq = greatest(seq, %s), clock = greatest(clock, %s),
                     record_id = gen_random_uuid()::text
    WHERE shard = 0 AND term = %s AND n = %s RETURNING n"""
_ADD_TO_LOG = """
    INSERT INTO log (n, term, revision, seq, clock, body, hash)
    VALUES (%s, %s, %s, %s, %s, NULL, gen_random_uuid()::text)"""
_FORGET_STANDBY = "UPDATE lease SET demands_standby = false WHERE shard = 0"
_DEMANDED_STANDBY = """
    SELECT current_setting('synchronous_standby_names'), count(*), count(sync_state),
           count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication"""
# Nearly every write changes rows of these. With room left on its page, a changed row needs no new entries in the
# indexes, which cost the server and its standby more than the row.
_CHANGED_TABLES = ("scopes", "vms", "hosts", "events", "gates", "requests")
_WITHOUT_FILLFACTOR = """
    SELECT relname FROM pg_class WHERE oid = to_regclass(relname) AND relname = ANY(%s)
    AND 'fillfactor=70' <> ALL (coalesce(reloptions, '{}'))"""
_PUT_SAVED = "INSERT INTO saved (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


def migrate_record(url: str) -> str | None:
    """Create the tables of a record in PostgreSQL, or migrate them; return the schema revision before."""
    from forewarn.store import migrations  # here, because Alembic is slow to load and seldom needed

    db = postgres_connection.connect(url)
    name = postgres_connection.describe_url(url)
    try:
        _require_standby(name, db)
        found = _read_revision(db)
        if found is not None and found not in REVISIONS:
            raise Refused(
                f"{name} has schema revision {found}, unknown to this forewarn, which knows {REVISION} and earlier; it "
                "was left as it is: use the forewarn that wrote it, or a later one"
            )
        if found != REVISION:
            db.autocommit = False
            migrations.migrate_record_to_newest(db)
            db.autocommit = True
        for (table,) in db.execute(_WITHOUT_FILLFACTOR, (list(_CHANGED_TABLES),)).fetchall():
            db.execute(f"ALTER TABLE {quote(table)} SET (fillfactor = 70)".encode(), prepare=False)
    except (DBAPIError, psycopg.Error) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = failure_text(cause) if isinstance(cause, psycopg.Error) else str(cause)
        raise RecordUnavailable(
            f"{name} did not confirm its migration ({reason}): run `forewarn store migrate` again"
        ) from error
    finally:
        db.close()
    open_record(url).close()  # checks the result
    return found


def copy_store_to_record(source: Path, url: str, *, now: float) -> dict[str, TableDigest]:
    """Move everything in the SQLite store `source` to an empty record; return the digests there, by table.

    Epochs, incarnations, tags and history stay the same; only polls are left behind. The store is migrated, and marked
    as moved, so that it is not opened again. If the record has the same rows already, as after a crash, only the mark
    is written. After Unavailable, try again: the next attempt finds out what the record has.
    """
    if not source.exists():
        raise Refused(f"there is no store {str(source)!r}: give the data directory of a service that was in use")
    sqlite_file.prepare_store_file(source)
    if read_purpose(source) is StorePurpose.LAB:
        raise Refused(
            f"the store {str(source)!r} is of a lab, whose clock can be moved: a lab runs on one machine only"
        )
    with sqlite_file.file_errors_as_unavailable(source, "read"):
        wanted = copy_digests(source)
        with _exclusive(url, "store copy") as (record, lease):
            # Equal digests: an earlier call did it, and only its mark was lost.
            if _snapshot_digests(record) != wanted:
                _require_empty(record, lease)
                seq = _last_seq(source)
                _rewrite(url, lease, seq, now, lambda db: _load(url, db, source, wanted))
    # After the record has everything: a crash before leaves a source that can be copied again.
    _mark_moved(source, postgres_connection.describe_url(url))
    return wanted


def copy_record_to_store(url: str, target: Path) -> dict[str, TableDigest]:
    """Move everything in a record to the new SQLite store `target`; return the store's digests, by table.

    The record keeps its rows and is marked as moved, so that no control node starts on it. If the server has not
    confirmed the mark, the rows stay in the file `target` + ".moving", and the next attempt finds out and goes on.
    """
    if not sqlite_file.is_new_file(target):
        raise Refused(f"there is a store {str(target)!r} already, and it is not overwritten: give another path")
    moving, mark = target.with_name(target.name + ".moving"), str(target.absolute()).encode()
    with sqlite_file.file_errors_as_unavailable(target, "written"):
        with _exclusive(url, "store copy") as (record, lease):
            # An earlier call was not told that its COMMIT took effect: the rows are in `moving` already.
            if not moving.exists() or not _is_marked(url, mark):
                _build_and_mark(url, record, lease, moving, mark)
        forget_position(moving)
        mark_path(target).unlink(missing_ok=True)  # of a store that was there before
        moving.rename(target)
        sync_to_disk(target.parent)
    return copy_digests(target)


def _build_and_mark(url: str, record: PostgresRecord, lease: LeaseRow, moving: Path, mark: bytes) -> None:
    is_deletable = True
    try:
        build_copy(moving, record)
        if copy_digests(moving) != _snapshot_digests(record):
            raise Unavailable("the copy differs from the record and was deleted: try again")
        try:
            _rewrite(url, lease, lease.seq, lease.clock, lambda db: db.execute(_PUT_SAVED, (MOVED_NAME, mark)))
        except RecordUnavailable:
            is_deletable = False  # the COMMIT may have taken effect
            raise
    except BaseException:
        if is_deletable:
            moving.unlink(missing_ok=True)
        raise


def _is_marked(url: str, mark: bytes) -> bool:
    name = postgres_connection.describe_url(url)
    try:
        with closing(postgres_connection.connect(url)) as db:
            return (mark,) in db.execute("SELECT value FROM saved WHERE name = %s", (MOVED_NAME,)).fetchall()
    except psycopg.Error as error:
        raise RecordUnavailable(f"{name} does not answer ({failure_text(error)}): try again") from error


def renew_epochs(url: str, *, now: float) -> int:
    """Give every scope of a record a new epoch, after a backup was restored there; return that epoch.

    See `begin_new_epoch`. The term of the lease also becomes at least `now` (real time), so that hosts that know later
    terms obey the restored cluster. Every copy is built again. After RecordUnavailable the epochs may have been
    renewed; another call is harmless. Holds the lease meanwhile. Blocks; durable on return.
    """
    with _exclusive(url, "store renew") as (record, lease):
        renewed, epoch = record.renew_epochs(lease, now, "`forewarn store renew` was run")
        record.release_lease(renewed.term)
    return epoch


def allow_no_standby(url: str) -> None:
    """Let control nodes write without a synchronous standby, until PostgreSQL demands one again."""
    open_record(url).close()  # checks the schema
    name = postgres_connection.describe_url(url)
    with closing(postgres_connection.connect(url)) as db:
        try:
            ((names, *_),) = db.execute(_DEMANDED_STANDBY).fetchall()
            if names:
                raise Refused(
                    f"{name} demands the synchronous standby {names!r}, so control nodes would require it again: set "
                    "synchronous_standby_names = '' first"
                )
            db.execute(_FORGET_STANDBY)
        except psycopg.Error as error:
            raise RecordUnavailable(f"{name} did not confirm the change ({failure_text(error)}): try again") from error


def _require_standby(name: str, db: LimitedConnection) -> None:
    """Refuse if the server demands a synchronous standby and none is connected: every COMMIT would wait."""
    rows = db.execute(_DEMANDED_STANDBY).fetchall()
    ((names, connected, visible, synchronous),) = rows
    if names and (connected == 0 or (visible == connected and synchronous == 0)):
        raise Refused(
            f"{name} demands the synchronous standby {names!r}, which is not connected, so that nothing can be "
            "committed: start the standby, or change synchronous_standby_names"
        )


@contextmanager
def _exclusive(url: str, purpose: str) -> Iterator[tuple[PostgresRecord, LeaseRow]]:
    """Open a record and hold its lease; Refused if a control node is active."""
    name = postgres_connection.describe_url(url)
    with closing(open_record(url)) as record:
        with closing(postgres_connection.connect(url)) as db:
            _require_standby(name, db)
        sent_at = time.monotonic()
        lease = record.take_lease(f"forewarn {purpose}", "")
        if lease is None:
            holder = record.read_lease().holder
            raise Refused(f"{name} is in use by {holder!r}: stop all control nodes first, and try again after 5 s")
        held = HeldLease(record, lease, sent_at=sent_at)
        # A copy may take longer than the lease lasts: a control node would take over in the middle.
        held.start()
        try:
            yield record, lease
        finally:
            held.release()


def _rewrite(url: str, lease: LeaseRow, seq: int, clock: float, write: Callable[[LimitedConnection], object]) -> None:
    name = postgres_connection.describe_url(url)
    was_cancelled: list[errors.Diagnostic] = []
    with closing(postgres_connection.connect(url, on_notice=was_cancelled.append)) as db:
        try:
            with db.transaction():
                write(db)
                # The row of the lease comes last: held during a long load, it would keep our own renewals waiting.
                db.execute(_LOCK_LIMIT)
                fenced = db.execute(_FENCE, (seq, clock, lease.term, lease.number)).fetchall()
                if not fenced:
                    raise Refused(f"a control node has begun to use {name}: nothing was changed there")
                number = fenced[0][0]
                db.execute(_ADD_TO_LOG, (number, lease.term, REVISION, max(seq, lease.seq), clock))
        except psycopg.DataError as error:
            raise Refused(
                f"{name} cannot store a value, and nothing was changed there ({failure_text(error)})"
            ) from error
        except psycopg.Error as error:
            raise RecordUnavailable(
                f"{name} has not confirmed the change ({failure_text(error)}): try again, which finds out what is there"
            ) from error
    if any(notice.source_function == "SyncRepWaitForLSN" for notice in was_cancelled):
        raise RecordUnavailable(f"somebody cancelled the wait of {name} for its standby, which may lack the change")


def _load(url: str, db: LimitedConnection, source: Path, wanted: dict[str, TableDigest]) -> None:
    """Write all rows of a SQLite store to the empty tables, and compare."""
    for table, rows in read_rows(source):
        known = REPLICATED_TABLES[table]
        columns = ", ".join(map(quote, known.columns))
        with (
            db.cursor() as cursor,
            cursor.copy(f"COPY {quote(table)} ({columns}) FROM STDIN (FORMAT BINARY)".encode()) as copy,
        ):
            copy.set_types([_postgres_type(column.type) for column in metadata.tables[table].columns])
            for row in rows:
                copy.write_row(row)
    # In the same transaction: what differs is never committed.
    if digest_tables(_rows_of(db)) != wanted:
        raise Unavailable(
            f"the rows in {postgres_connection.describe_url(url)} differ from those in {str(source)!r}, and nothing "
            "was changed there: check that no service uses the store"
        )


def _rows_of(db: LimitedConnection) -> Iterator[tuple[str, Sequence[SqlValues]]]:
    for table in REPLICATED_TABLES.values():
        columns = ", ".join(map(quote, table.columns))
        with db.cursor(name="written") as cursor:
            cursor.execute(f"SELECT {columns} FROM {quote(table.name)}".encode(), binary=True)
            while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                yield table.name, rows


def _postgres_type(kind: Any) -> str:
    if isinstance(kind, Float):
        return "float8"
    if isinstance(kind, LargeBinary):
        return "bytea"
    return "text" if isinstance(kind, String) else "int8"


def _snapshot_digests(record: PostgresRecord) -> dict[str, TableDigest]:
    with record.snapshot() as snapshot:
        return digest_tables(snapshot.tables)


def _require_empty(record: PostgresRecord, lease: LeaseRow) -> None:
    found = {table: digest.rows for table, digest in _snapshot_digests(record).items() if digest.rows}
    if found or lease.number:
        rows = ", ".join(f"{count} {table}" for table, count in found.items()) or "no rows now"
        raise Refused(f"the record has been used already ({rows}) and is not overwritten: give an empty database")


def _last_seq(source: Path) -> int:
    with closing(sqlite_file.connect(source, mode="ro")) as db:
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'history'").fetchone()
    return int(row[0]) if row else 0


def _mark_moved(source: Path, target: str) -> None:
    with (
        sqlite_file.file_errors_as_unavailable(source, "marked as moved"),
        closing(sqlite_file.connect(source, mode="rw")) as db,
    ):
        db.execute("PRAGMA synchronous = FULL")
        db.execute(
            "INSERT INTO saved (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (MOVED_NAME, target.encode()),
        )
    sync_to_disk(source)


def _read_revision(db: psycopg.Connection[tuple[Any, ...]]) -> str | None:
    ((table,),) = db.execute(_REVISION_TABLE).fetchall()
    if table is None:
        return None
    return "/".join(str(number) for (number,) in db.execute(_READ_REVISION).fetchall())
