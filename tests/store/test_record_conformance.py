"""The record in memory passes the conformance suite of records, and has the faults that tests need."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from forewarn.cluster.record import LEASE_S, LogPruned, NotReplicated, OutcomeUnknown, RecordUnavailable, SharedRecord
from forewarn.conformance.record import FIRST_ROW, HOUR_S, SECOND_ROW, RecordConformance, group_after
from tests.support.memory_record import MemoryRecordServer


class TestMemoryRecord(RecordConformance):
    @pytest.fixture(autouse=True)
    def _new_server(self) -> None:
        self.now = 1000.0
        self.server = MemoryRecordServer(lambda: self.now)

    def open(self) -> SharedRecord:
        return self.server.connect()

    def expire_lease(self) -> None:
        self.now += LEASE_S + 0.001

    def make_log_old(self) -> None:
        self.now += 2 * HOUR_S


def test_an_outage_has_no_effect_on_the_record() -> None:
    server = MemoryRecordServer()
    record = server.connect()
    lease = record.take_lease("c1", "")
    assert lease is not None
    server.stop()
    with pytest.raises(RecordUnavailable):
        record.commit(group_after(lease, FIRST_ROW))
    server.start()
    assert record.read_lease().number == 0


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_answer_leaves_the_outcome_to_be_asked_for(committed: bool) -> None:
    server = MemoryRecordServer()
    record = server.connect()
    lease = record.take_lease("c1", "")
    assert lease is not None
    server.lose_answer(committed=committed)
    with pytest.raises(OutcomeUnknown):
        record.commit(group_after(lease, FIRST_ROW))
    assert record.was_committed(lease.term, 1) is committed


def test_a_cancelled_wait_for_the_standby_is_no_success() -> None:
    server = MemoryRecordServer()
    record = server.connect()
    lease = record.take_lease("c1", "")
    assert lease is not None
    server.cancel_wait()
    with pytest.raises(NotReplicated):
        record.commit(group_after(lease, FIRST_ROW))


def test_a_commit_waits_for_a_missing_standby_and_says_so() -> None:
    server = MemoryRecordServer()
    record, other = server.connect(), server.connect()
    lease = record.take_lease("c1", "")
    assert lease is not None
    server.remove_standby()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(record.commit, group_after(lease, FIRST_ROW))
        while not other.waits_for_standby():
            assert not waiting.done()
        server.add_standby()
        waiting.result(30)
    assert not other.waits_for_standby()


def test_a_waiting_commit_can_be_aborted_and_its_outcome_is_unknown() -> None:
    server = MemoryRecordServer()
    record, other = server.connect(), server.connect()
    lease = record.take_lease("c1", "")
    assert lease is not None
    server.remove_standby()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(record.commit, group_after(lease, FIRST_ROW))
        while not other.waits_for_standby():
            assert not waiting.done()
        record.abort()
        with pytest.raises(OutcomeUnknown):
            waiting.result(30)


def test_a_promotion_can_lose_the_last_groups() -> None:
    server = MemoryRecordServer()
    record = server.connect()
    lease = record.take_lease("c1", "")
    assert lease is not None
    record.commit(group_after(lease, FIRST_ROW))
    record.commit(group_after(lease, SECOND_ROW, number=2))
    server.promote(lost=1)
    assert record.read_lease().number == 1
    assert server.tables["saved"] == {("first",): ("first", b"1")}
    with pytest.raises(LogPruned):
        record.log_after(2, 10)
