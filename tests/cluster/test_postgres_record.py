"""The record in PostgreSQL passes the conformance suite of records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forewarn.cluster import postgres_record
from forewarn.cluster.postgres_record import open_record
from forewarn.cluster.record import LeaseRow, SharedRecord
from forewarn.conformance.record import RecordConformance
from tests.support.postgres_pair import ServerPair

pytestmark = pytest.mark.cluster


class TestPostgresRecord(RecordConformance):
    @pytest.fixture(autouse=True)
    def _connections(self, servers: ServerPair) -> Iterator[None]:
        self.servers = servers
        self.opened: list[SharedRecord] = []
        yield
        for record in self.opened:
            record.close()

    def open(self) -> SharedRecord:
        record = open_record(self.servers.url)
        self.opened.append(record)
        return record

    def expire_lease(self) -> None:
        self.servers.query("UPDATE lease SET expires_at = clock_timestamp() - interval '1 second'")

    def make_log_old(self) -> None:
        self.servers.query("UPDATE log SET at = at - interval '2 hours'")

    def commit_many(self, record: SharedRecord, lease: LeaseRow, count: int) -> None:
        self.servers.query(
            "INSERT INTO log (n, term, revision, seq, clock, body) "
            f"SELECT n, {lease.term}, '', 0, 0, '\\x90' FROM generate_series(1, {count}) AS numbers (n); "
            f"UPDATE lease SET n = {count}"
        )

    def test_the_suite_finds_a_fence_that_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for condition in ("term = %s", "n = %s"):
            monkeypatch.setattr(postgres_record, "_FENCE", postgres_record._FENCE.replace(condition, "%s > -1"))
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            self.test_a_deposed_node_writes_nothing()
