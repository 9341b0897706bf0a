"""The state of a record in PostgreSQL for people: what is there, and what is wrong with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from forewarn.cluster import postgres_connection
from forewarn.cluster.digests import copy_digests, snapshot_digests
from forewarn.cluster.following import CopyPosition, read_position
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.record import RecordUnavailable
from forewarn.errors import Refused
from forewarn.store import sqlite_file
from forewarn.store.sqlite_file import MOVED_NAME

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
