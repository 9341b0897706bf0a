"""The record in PostgreSQL when answers are lost, the standby is missing, or somebody cancels a COMMIT."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg
import pytest

from forewarn.cluster import postgres_record
from forewarn.cluster.lease import HeldLease, LeaseState
from forewarn.cluster.postgres_connection import LimitedConnection
from forewarn.cluster.postgres_record import PostgresRecord, open_record
from forewarn.cluster.record import (
    Deposed,
    LeaseRow,
    NotReplicated,
    OutcomeUnknown,
    RecordGroup,
    RecordUnavailable,
    RowChange,
)
from forewarn.conformance.record import FIRST_ROW, SECOND_ROW, group_after
from tests.support.breaking_proxy import BreakAt, BreakingProxy
from tests.support.postgres_pair import DATABASE, ServerPair
from tests.support.postgres_server import wait_until
from tests.support.replicated_store import take

pytestmark = pytest.mark.cluster
NewRecord = Callable[..., PostgresRecord]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait longer than in production: on a busy machine a standby takes its time to start."""
    monkeypatch.setattr("forewarn.cluster.postgres_record.CALL_LIMIT_S", 60.0)


@pytest.fixture
def new_record(servers: ServerPair) -> Iterator[NewRecord]:
    """Opens connections to the record, and closes them at the end."""
    opened: list[PostgresRecord] = []

    def new(url: str = "") -> PostgresRecord:
        opened.append(open_record(url or servers.url))
        return opened[-1]

    yield new
    for record in opened:
        record.close()


@pytest.fixture
def proxy(servers: ServerPair) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(servers.primary.port)
    yield proxy
    proxy.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def proxied_url(proxy: BreakingProxy) -> str:
    return f"postgresql://postgres:secret@127.0.0.1:{proxy.port}/{DATABASE}"


@contextmanager
def stalled_write(url: str) -> Iterator[None]:
    """A session that has changed the lease, and whose client has stopped in the middle of a pipeline."""
    with psycopg.connect(url) as db, db.pipeline():
        db.execute("BEGIN")
        db.execute("SELECT set_config('idle_in_transaction_session_timeout', '100', true)")
        db.execute("UPDATE lease SET n = n + 1, expires_at = clock_timestamp() + interval '3 s' WHERE shard = 0")
        db.pgconn.send_flush_request()
        db.pgconn.flush()
        yield


def test_a_node_that_is_stopped_while_it_writes_does_not_keep_the_lease(
    servers: ServerPair, new_record: NewRecord
) -> None:
    lease, other = take(new_record()), new_record()
    found: list[LeaseRow] = []

    def is_taken() -> bool:
        found.extend(row for row in (other.take_lease("c2", "http://c2"),) if row is not None)
        return bool(found)

    with pytest.raises(psycopg.OperationalError, match="closed"), stalled_write(servers.url):
        wait_until(is_taken, "the lease has expired, and another node has it")
    assert [(row.term, row.number) for row in found] == [(lease.term + 1, lease.number)]


@pytest.mark.parametrize("at", list(BreakAt))
def test_an_answer_lost_at_commit_is_found_out(
    servers: ServerPair, new_record: NewRecord, proxy: BreakingProxy, at: BreakAt
) -> None:
    record = new_record(proxied_url(proxy))
    lease = take(record)
    record.commit(group_after(lease, FIRST_ROW))
    proxy.break_connection(b"COMMIT", at)
    with pytest.raises(OutcomeUnknown):
        record.commit(group_after(lease, SECOND_ROW, number=2))
    assert proxy.breaks == 1
    took_effect = at is BreakAt.AFTER
    assert record.was_committed(lease.term, 2) is took_effect
    assert servers.query("SELECT count(*) FROM saved") == [(2 if took_effect else 1,)]
    record.commit(group_after(lease, SECOND_ROW, number=3 if took_effect else 2))


def test_a_connection_lost_before_commit_has_no_effect(
    servers: ServerPair, new_record: NewRecord, proxy: BreakingProxy
) -> None:
    record = new_record(proxied_url(proxy))
    lease = take(record)
    proxy.break_connection(b"first", BreakAt.BEFORE)
    with pytest.raises(RecordUnavailable):
        record.commit(group_after(lease, FIRST_ROW))
    assert proxy.breaks == 1
    assert record.read_lease().number == 0
    record.commit(group_after(lease, FIRST_ROW))


def test_a_server_that_accepts_a_connection_and_then_stays_silent_is_unavailable(
    pool: ThreadPoolExecutor, proxy: BreakingProxy
) -> None:
    record = PostgresRecord(proxied_url(proxy))
    proxy.silence_connection(b"pg_is_in_recovery")  # the first statement on every connection
    with pytest.raises(RecordUnavailable, match="there was no complete answer in time"):
        pool.submit(record.read_lease).result(30)
    assert record.read_lease().term == 0  # on a new connection
    record.close()


def test_a_transaction_that_is_still_under_way_is_waited_for(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor
) -> None:
    """The server process of a lost connection may still be committing."""
    record = new_record()
    lease = take(record)
    with psycopg.connect(servers.url) as old:
        old.execute(f"UPDATE lease SET n = 1; INSERT INTO log VALUES (1, {lease.term}, '0005', 0, 0, '\\x90')")
        asking = pool.submit(record.was_committed, lease.term, 1)
        wait_until(lambda: servers.query(WAITING_FOR_LOCK) == [(1,)], "the question waits for the lock")
        assert not asking.done()
        old.commit()
    assert asking.result(30) is True


WAITING_FOR_LOCK = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
WAITING_FOR_STANDBY = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def test_an_open_write_keeps_others_from_the_lease(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that wants the lease waits for the write, which renews it."""
    record = new_record()
    lease = take(record)
    servers.query("UPDATE lease SET expires_at = clock_timestamp() - interval '1 second'")
    with stopped_before_commit(record, lease, monkeypatch) as finish:
        taking = pool.submit(new_record().take_lease, "c2", "")
        wait_until(lambda: servers.query(WAITING_FOR_LOCK) == [(1,)], "the other node waits for the lock")
        finish()
    assert taking.result(30) is None


def test_a_node_that_is_stopped_within_a_transaction_does_not_keep_the_lease(
    servers: ServerPair, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, other = new_record(), new_record()
    lease = take(record)
    with stopped_before_commit(record, lease, monkeypatch) as finish:
        end = time.monotonic() + 60
        taken = None
        while taken is None:
            assert time.monotonic() < end
            with suppress(RecordUnavailable):  # it waited for the lock
                taken = other.take_lease("c2", "")
        assert taken.term == lease.term + 1
        with pytest.raises(OutcomeUnknown):
            finish()
    assert not record.was_committed(lease.term, 1)


@contextmanager
def stopped_before_commit(
    record: PostgresRecord, lease: LeaseRow, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Let a commit stand still before its COMMIT is sent; the function that is returned lets it go on."""
    reached, go_on = threading.Event(), threading.Event()
    begin_call = record._begin_call

    def begin(db: LimitedConnection) -> None:
        begin_call(db)
        if record._is_committing:
            reached.set()
            go_on.wait(60)

    monkeypatch.setattr(record, "_begin_call", begin)
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(record.commit, group_after(lease, FIRST_ROW))
        assert reached.wait(60)

        def finish() -> None:
            go_on.set()
            committing.result(60)

        try:
            yield finish
        finally:
            go_on.set()


def start_commit(
    servers: ServerPair, record: PostgresRecord, pool: ThreadPoolExecutor, number: int = 1
) -> tuple[Future[None], int]:
    """Start a commit that waits for the missing standby; return it and its server process."""
    lease = record.read_lease()
    waiting = pool.submit(record.commit, group_after(lease, FIRST_ROW, number=number))
    wait_until(lambda: len(servers.query(WAITING_FOR_STANDBY)) == 1, "the COMMIT waits for the standby")
    ((pid,),) = servers.query(WAITING_FOR_STANDBY)
    assert isinstance(pid, int)
    return waiting, pid


def test_a_commit_waits_for_a_missing_standby(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor
) -> None:
    record, other = new_record(), new_record()
    take(record)
    with servers.without_standby():
        waiting, _ = start_commit(servers, record, pool)
        assert other.waits_for_standby()
        assert not waiting.done()
    waiting.result(30)
    assert not other.waits_for_standby()


def test_a_commit_whose_wait_was_cancelled_is_no_success(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor
) -> None:
    record = new_record()
    take(record)
    with servers.without_standby():
        waiting, pid = start_commit(servers, record, pool)
        servers.query(f"SELECT pg_cancel_backend({pid})")
        with pytest.raises(NotReplicated, match="cancelled the wait for its standby"):
            waiting.result(30)


def test_a_commit_whose_server_process_was_ended_is_known_when_the_standby_has_it(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor
) -> None:
    record = new_record()
    lease = take(record)
    with servers.without_standby():
        waiting, pid = start_commit(servers, record, pool)
        servers.query(f"SELECT pg_terminate_backend({pid})")
        with pytest.raises((NotReplicated, OutcomeUnknown)):
            waiting.result(30)
        asking = pool.submit(record.was_committed, lease.term, 1)
        wait_until(lambda: len(servers.query(WAITING_FOR_STANDBY)) == 1, "the answer waits for the standby")
        assert not asking.done()
    assert asking.result(30) is True


def test_a_missing_standby_suspends_the_lease_and_is_named(servers: ServerPair, new_record: NewRecord) -> None:
    record = new_record()
    sent_at = time.monotonic()
    held = HeldLease(record, take(record), sent_at=sent_at)
    held.start()
    try:
        servers.standby.kill()
        gone_at = time.monotonic()
        wait_until(lambda: held.state is LeaseState.SUSPENDED, "the lease is suspended")
        assert held._sent_at < gone_at  # no renewal has counted since, so it was suspended after 3 s at most
        wait_until(lambda: "waits for its synchronous standby" in held.explanation, "the standby is named")
        servers.standby.start()
        wait_until(lambda: held.state is LeaseState.HELD, "the lease is held again")
        assert held.explanation == ""
    finally:
        held.release()
    wait_until(servers.is_synchronous, "the standby follows again")
    assert take(record, "c2").term == held.term + 1


def test_a_server_that_stands_still_ends_a_call(
    servers: ServerPair, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.cluster.postgres_record.CALL_LIMIT_S", 1.0)
    record = new_record()
    lease = take(record)
    servers.primary.pause()
    try:
        with pytest.raises(RecordUnavailable):
            record.commit(group_after(lease, FIRST_ROW))
    finally:
        servers.primary.resume()
    wait_until(servers.is_synchronous, "the standby follows again")
    record.commit(group_after(lease, FIRST_ROW))


def let_time_pass(record: PostgresRecord) -> None:
    """Let the deadline of the last call pass, as if this process had done something else for a long time."""
    assert record._db is not None
    record._db.deadline = 0.0


def test_a_snapshot_can_be_read_slowly(new_record: NewRecord) -> None:
    record = new_record()
    lease = take(record)
    record.commit(group_after(lease, FIRST_ROW))
    found = []
    with record.snapshot() as snapshot:
        let_time_pass(record)
        for table, rows in snapshot.tables:
            found += [row for row in rows if table == "saved"]
            let_time_pass(record)
        let_time_pass(record)
    assert found == [FIRST_ROW.row]


def test_a_snapshot_says_why_it_cannot_be_read(servers: ServerPair, new_record: NewRecord) -> None:
    record = new_record()

    def read() -> None:
        with record.snapshot() as snapshot:
            servers.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
            list(snapshot.tables)

    with pytest.raises(RecordUnavailable, match="terminating connection"):
        read()


def test_the_time_in_which_a_group_is_encoded_does_not_count(
    new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = new_record()
    lease = take(record)
    send_group = postgres_record._send_group

    def send(db: LimitedConnection, group: RecordGroup, body: bytes) -> None:
        send_group(db, group, body)
        let_time_pass(record)

    monkeypatch.setattr(postgres_record, "_send_group", send)
    record.commit(group_after(lease, FIRST_ROW))
    assert record.read_lease().number == lease.number + 1


def test_a_call_reads_a_part_of_the_log_that_arrives_in_time(new_record: NewRecord) -> None:
    """A call for more would be ended on a slow network, and so would all its repetitions."""
    record = new_record()
    lease = take(record)
    lengths = [400_000, 400_000, 400_000, 1_500_000, 1_500_000, 1, 1]
    for number, length in enumerate(lengths, start=1):
        large = RowChange("saved", ("large",), ("large", bytes(length)))
        record.commit(group_after(lease, large, number=number))
    read: list[list[int]] = []
    while groups := record.log_after(sum(map(len, read)), 200):
        read.append([group.number for group in groups])
    assert read == [[1, 2], [3], [4], [5], [6, 7]]


def test_a_large_group_does_not_keep_the_lease_from_being_renewed(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor
) -> None:
    record = new_record()
    lease = take(record)
    record.commit(group_after(lease, FIRST_ROW))
    large = RowChange("saved", ("first",), ("first", bytes(1_500_000)))
    with psycopg.connect(servers.url) as other:
        other.execute("UPDATE saved SET value = '' WHERE name = 'first'")  # which the group waits for
        writing = pool.submit(record.commit, group_after(lease, large, number=2))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: servers.query(waiting) == [(1,)], "the group is being written")
        renewed = new_record().renew_lease(lease.term)
    writing.result(60)
    assert renewed is not None
    assert renewed.number == lease.number + 1
    assert record.was_committed(lease.term, lease.number + 2)


def test_a_large_group_of_a_deposed_node_is_not_written(servers: ServerPair, new_record: NewRecord) -> None:
    record, other = new_record(), new_record()
    lease = take(record)
    servers.query("UPDATE lease SET expires_at = '-infinity'")
    taken = take(other, "c2")
    other.commit(group_after(taken, FIRST_ROW))
    large = RowChange("saved", ("large",), ("large", bytes(1_500_000)))
    with pytest.raises(Deposed, match="'c2' has taken the lease"):
        record.commit(group_after(lease, large))
    assert servers.query("SELECT name FROM saved") == [("first",)]


def test_a_large_group_arrives_although_it_takes_longer_than_other_calls(
    servers: ServerPair, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, proxy = new_record(), BreakingProxy(servers.primary.port, answers_per_s=2_000_000)
    lease = take(record)
    large = RowChange("saved", ("large",), ("large", bytes(4_000_000)))
    record.commit(group_after(lease, large))
    monkeypatch.setattr("forewarn.cluster.postgres_record.CALL_LIMIT_S", 1.0)
    try:
        assert [group.changes for group in new_record(proxied_url(proxy)).log_after(lease.number, 1)] == [(large,)]
    finally:
        proxy.close()


def test_a_call_can_be_aborted_from_another_thread(
    servers: ServerPair, new_record: NewRecord, pool: ThreadPoolExecutor
) -> None:
    record = new_record()
    lease = take(record)
    with servers.without_standby():
        waiting, _ = start_commit(servers, record, pool)
        record.abort()
        with pytest.raises(OutcomeUnknown):
            waiting.result(30)
    assert record.was_committed(lease.term, 1)


def test_a_lease_that_cannot_be_taken_for_want_of_a_standby_says_so(
    servers: ServerPair, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.cluster.postgres_record.CALL_LIMIT_S", 1.0)
    record = new_record()
    with servers.without_standby(), pytest.raises(RecordUnavailable, match="it waits for its synchronous standby"):
        record.take_lease("c1", "")
