"""Connections to PostgreSQL: the URL with its defaults, limits of calls, errors in plain words.

A call ends after CALL_LIMIT_S on this side, also while its answer arrives, without cancelling anything on the server:
PostgreSQL reports success for a COMMIT that was cancelled while it waits for the synchronous standby, although the
standby does not have it.
"""

from __future__ import annotations

import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, errors, waiting
from psycopg.abc import PQGen
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import Float, LargeBinary, String

from forewarn.cluster.record import RecordUnavailable, SqlValues
from forewarn.cluster.row_changes import REPLICATED_TABLES, conflict_action, quote
from forewarn.errors import ForewarnError, Refused, Rejected
from forewarn.store.schema import metadata

Result = TypeVar("Result")


# Rows as parameters of one PostgreSQL statement: an array for each column, in binary format.
#
# A statement per row costs the driver and the server more than the row itself: messages, a look at the socket, a
# result. The driver can send lists, but it looks at each element several times to guess its type; here the schema says
# it.

_HEADER = Struct(">iiIii").pack  # dimensions, whether there are NULLs, type of the elements, how many, first index
_LENGTH = Struct(">i").pack  # of the element that follows, in bytes
_INTEGER = Struct(">iq").pack  # length and value
_FLOAT = Struct(">id").pack
_NULL = _LENGTH(-1)


class _EncodedArray(ABC):
    element_oid = 0  # of the type of the elements, in PostgreSQL's catalogue
    oid = 0  # of the array type

    __slots__ = ("data",)

    def __init__(self, column: Sequence[Any]) -> None:
        header = _HEADER(1, None in column, self.element_oid, len(column), 1)
        self.data = header + b"".join(self.elements(column))

    @abstractmethod
    def elements(self, column: Sequence[Any]) -> list[bytes]:
        """Return the encoded elements, each after its length."""


class _IntegerArray(_EncodedArray):
    element_oid, oid = 20, 1016  # bigint
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        return [_NULL if value is None else _INTEGER(8, value) for value in column]


class _FloatArray(_EncodedArray):
    element_oid, oid = 701, 1022  # double precision
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        return [_NULL if value is None else _FLOAT(8, value) for value in column]


class _BytesArray(_EncodedArray):
    element_oid, oid = 17, 1001  # bytea
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        return [_NULL if value is None else _LENGTH(len(value)) + value for value in column]


class _TextArray(_EncodedArray):
    element_oid, oid = 25, 1009  # text
    __slots__ = ()

    def elements(self, column: Sequence[Any]) -> list[bytes]:
        if "\0" in "".join(filter(None, column)):
            raise psycopg.DataError("a text contains NUL, which PostgreSQL cannot store")
        return [_NULL if value is None else _LENGTH(len(data := value.encode())) + data for value in column]


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


def register_arrays(db: psycopg.Connection[Any]) -> None:
    """Enable a psycopg connection to send the parameters of `array_parameters`; contacts no server."""
    for kind in (_IntegerArray, _FloatArray, _BytesArray, _TextArray):
        dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.oid})
        db.adapters.register_dumper(kind, dumper)


@cache
def upsert_all_sql(table: str, width: int) -> bytes:
    """Return SQL for PostgreSQL that inserts many rows, and replaces those with the same primary keys."""
    names = ", ".join(map(quote, REPLICATED_TABLES[table].columns[:width]))
    arrays = ", ".join(["%b"] * width)
    return (
        f"INSERT INTO {quote(table)} ({names}) SELECT * FROM unnest({arrays}) {conflict_action(table, width)}".encode()
    )


def array_parameters(table: str, rows: Sequence[SqlValues]) -> tuple[object, ...]:
    """Return the parameters of `upsert_all_sql` for these rows: one array for each of their columns."""
    try:
        return tuple(kind(column) for kind, column in zip(_array_types(table), zip(*rows, strict=True), strict=False))
    except (TypeError, AttributeError, UnicodeError, StructError) as error:
        raise psycopg.DataError(f"a value of table {table} has the wrong type: {error}") from error


@cache
def _array_types(table: str) -> tuple[Callable[[Sequence[Any]], _EncodedArray], ...]:
    kinds = {Float: _FloatArray, LargeBinary: _BytesArray, String: _TextArray}
    return tuple(
        next((kind for base, kind in kinds.items() if isinstance(column.type, base)), _IntegerArray)
        for column in metadata.tables[table].columns
    )


CALL_LIMIT_S = 10.0  # after this a call gives up; the next one connects again, perhaps to another server
_MAX_CLOSING_STEPS = 10  # of a call that was ended
# Ends sessions of this user that have changed the lease, which has expired, and whose client has been silent since,
# such as a client that was stopped in the middle of a pipeline: the server does not limit idle transactions there.
END_STALLED_HOLDER = b"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE relation = 'lease'::regclass AND mode = 'RowExclusiveLock' AND granted
    AND usename = current_user AND datname = current_database()
    AND pid <> pg_backend_pid() AND wait_event = 'ClientRead' AND xact_start < clock_timestamp() - interval '1 second'
    AND EXISTS (SELECT FROM lease WHERE expires_at < clock_timestamp())"""
WAITS_FOR_STANDBY = b"""
    SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'
                   AND pid <> pg_backend_pid())"""
_CHECK_INTERVAL_S = 0.1  # how often a waiting call looks at its limit
_CORK: int = getattr(socket, "TCP_CORK", 0)  # only Linux has it

# Parameters of libpq unless the URL has them: a server that has vanished is noticed within seconds.
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 3,  # seconds, for each host
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 3000,  # milliseconds
    "target_session_attrs": "read-write",  # of several hosts, the one that is not a standby
    "application_name": "forewarn",
}
_CONNECTION_STATE = """
    SELECT pg_backend_pid(), pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool,
           current_setting('server_encoding'), current_setting('synchronous_commit'),
           current_setting('server_version_num')::int"""
# So that the server notices a node that has lost power, and releases its locks. Not for the connections of a pooler.
_SERVER_KEEPALIVES = """
    SELECT set_config('tcp_keepalives_idle', '2', false), set_config('tcp_keepalives_interval', '1', false),
           set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '3000', false)"""
_OLDEST_VERSION = 130000
# What PostgreSQL says, in English, if a later try will not help either.
_DRIVER_WORDS = re.compile(
    r"connection failed:|connection to server at .* failed:|FATAL: |^Is the server running .*\?$|Multiple connection "
    r"attempts failed. All failures were:|^- host: .*?, hostaddr: \S+:"
)
_PERMANENT_REASONS = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")


class CallAborted(psycopg.OperationalError):
    """A call took longer than its limit, or another thread has ended it."""


def parse_url(url: str) -> dict[str, Any]:
    """Return the parameters of a PostgreSQL URL, with our defaults; raises Rejected if it is not one."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise Rejected("the store is not a URL of PostgreSQL: give it as postgresql://USER@HOST/DATABASE")
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise Rejected(
            f"the URL of PostgreSQL is not valid ({reason}): give it as postgresql://USER@HOST/DATABASE"
        ) from None
    for port in str(given.get("port") or "5432").split(","):
        if port and not (port.isdecimal() and 0 < int(port) < 65536):
            raise Rejected(f"the URL of PostgreSQL has the port {port!r}: give a number from 1 to 65535")
    return {**_DEFAULTS, **given}


def describe_url(url: str) -> str:
    """Return what messages call the database of a PostgreSQL URL: hosts, ports and name; no password."""
    given = conninfo.conninfo_to_dict(url)
    hosts = str(given.get("host") or given.get("hostaddr") or "the local socket")
    ports = str(given.get("port") or "")
    database = str(given.get("dbname") or given.get("user") or "its default database")
    return f"PostgreSQL at {hosts}{f', port {ports},' if ports else ''} database {database!r}"


class LimitedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A psycopg connection whose calls end at `deadline` (monotonic), or soon after `is_aborted` is set.

    Its user sets `deadline` before each call; another thread may set `is_aborted`. After CallAborted close the
    connection. The statement is never cancelled on the server, not even on Ctrl-C.
    """

    deadline = float("inf")
    is_aborted = False
    is_pooled = False  # a connection pooler is between this process and the server

    def wait(self, gen: PQGen[Result], interval: float = _CHECK_INTERVAL_S, timeout: float | None = None) -> Result:
        """Wait for a call of psycopg and return its result; CallAborted at the deadline or after an abort."""
        return waiting.wait(self._limited(gen), self.pgconn.socket, interval=_CHECK_INTERVAL_S)

    @contextmanager
    def sending_together(self) -> Iterator[None]:
        """Send the statements that the `with` block queues in a pipeline at its end, in few packets."""
        # Otherwise the driver sends each statement at once, and each time the system wakes the server. Wait for no
        # answer within the block.
        if not _CORK:
            yield
            return
        with socket.socket(fileno=os.dup(self.pgconn.socket)) as sock:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, _CORK, 1)
            except OSError:  # a local socket
                yield
                return
            try:
                yield
            finally:
                with suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, _CORK, 0)

    def _limited(self, gen: PQGen[Result]) -> PQGen[Result]:
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send((yield wanted))
                self._check_limit()
        except StopIteration as end:
            result: Result = end.value
            return result
        except CallAborted:
            _close_generator(gen)
            raise

    def _check_limit(self) -> None:
        if self.is_aborted:
            raise CallAborted("the call was ended")
        if time.monotonic() > self.deadline:
            raise CallAborted("there was no complete answer in time")


def _close_generator(gen: PQGen[Result]) -> None:
    """Close a call of psycopg that is not complete, also one that would like to wait while it is closed."""
    for _ in range(_MAX_CLOSING_STEPS):
        with suppress(RuntimeError, psycopg.Error):  # RuntimeError: it waits again, as the end of a pipeline does
            gen.close()
            return


class _BigIntegers(Int8Dumper):
    """Sends every integer as bigint, so that one prepared statement fits all numbers."""


def connect(url: str, *, on_notice: Callable[[errors.Diagnostic], None] | None = None) -> LimitedConnection:
    """Return a new connection to PostgreSQL in autocommit mode, after checks of the server.

    Rejected if trying again will not help, otherwise RecordUnavailable, for example if the server is read-only, as a
    standby is.
    """
    parameters = parse_url(url)
    name = describe_url(url)
    try:
        db = LimitedConnection.connect(**parameters, autocommit=True, prepare_threshold=0)
    except psycopg.Error as error:
        raise _connection_error(name, error) from error
    try:
        db.adapters.register_dumper(int, _BigIntegers)
        register_arrays(db)
        if on_notice is not None:
            db.add_notice_handler(on_notice)
        db.deadline = time.monotonic() + CALL_LIMIT_S
        _check_server(name, db)
        db.deadline = float("inf")
    except psycopg.Error as error:
        db.close()
        raise _connection_error(name, error) from error
    except ForewarnError:
        db.close()
        raise
    return db


def _check_server(name: str, db: LimitedConnection) -> None:
    db.prepare_threshold = None
    row = db.execute(_CONNECTION_STATE).fetchone()
    assert row is not None
    backend, is_read_only, encoding, synchronous_commit, version = row
    # A pooler answers with a process number of its own. Behind it, another server process may execute the next
    # transaction, which does not know the statements that were prepared before.
    db.is_pooled = backend != db.info.backend_pid
    db.prepare_threshold = None if db.is_pooled else 0
    if not db.is_pooled:
        db.execute(_SERVER_KEEPALIVES)
    if is_read_only:
        raise RecordUnavailable(
            f"{name} is read-only, such as a standby: give the primary server, or several hosts, as in "
            "postgresql://a,b/forewarn"
        )
    if version < _OLDEST_VERSION:
        raise Refused(f"{name} has version {version // 10000}, which is too old: use version 13 or later")
    if encoding != "UTF8":
        raise Refused(f"{name} has the encoding {encoding}: create the database with encoding UTF8")
    if synchronous_commit in ("off", "local"):
        raise Refused(
            f"{name} has synchronous_commit = {synchronous_commit}, so that it may lose what it has confirmed: set it "
            "to on for this database or user"
        )


def _connection_error(name: str, error: psycopg.Error) -> ForewarnError:
    reason = failure_text(error)
    if any(part in reason for part in _PERMANENT_REASONS):
        return Rejected(f"{name} refuses the connection ({reason}): check the URL and its user and password")
    if "read-only" in reason:
        return RecordUnavailable(
            f"{name} has no server that can be written ({reason}): give the primary server, or promote a standby"
        )
    return RecordUnavailable(f"{name} cannot be reached now ({reason}): check the server and the URL")


def failure_text(error: psycopg.Error) -> str:
    """Return what PostgreSQL or its driver says in an error, on one line, without the driver's prefix."""
    text = error.diag.message_primary or str(error) or type(error).__name__
    lines = [_DRIVER_WORDS.sub("", line.strip()).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line)).removesuffix(".")


def failure_reason(url: str, error: psycopg.Error) -> str:
    """Return why a call to the database at `url` has failed, on one line for people; raises nothing."""
    if isinstance(error, CallAborted):
        try:
            with closing(connect(url)) as db:
                db.deadline = time.monotonic() + CALL_LIMIT_S
                ((waits,),) = db.execute(WAITS_FOR_STANDBY).fetchall()
        except (psycopg.Error, ForewarnError):
            waits = False
        if waits:
            return "it waits for its synchronous standby: start the standby, or change synchronous_standby_names"
    return failure_text(error)


def transaction_settings(lock_s: float, idle_s: float) -> str:
    """Return SQL that limits lock waits and idle time (seconds) in the rest of a transaction.

    After `idle_s` without a statement the server ends the session, so that a node that vanishes within a transaction
    does not keep the lease locked. Only the transaction has these settings, because a pooler may give the next one to
    another server process.
    """
    return (
        f"SELECT set_config('lock_timeout', '{lock_s * 1000:.0f}', true), "
        f"set_config('idle_in_transaction_session_timeout', '{idle_s * 1000:.0f}', true)"
    )
