"""The replicated store on PostgreSQL: the conformance suite, and equal rows for every value the engines accept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.cluster.postgres_record import open_record
from forewarn.cluster.record import RecordGroup
from forewarn.cluster.replicated_store import ReplicatedStore
from forewarn.cluster.row_changes import ChangeCapture, copy_digests, snapshot_digests
from forewarn.conformance.store import StoreConformance
from forewarn.store import sqlite_file
from forewarn.store.schema import REVISION
from tests.support.postgres_pair import ServerPair
from tests.support.random_rows import RowWrite, row_writes, write_rows
from tests.support.replicated_store import open_replicated, take
from tests.support.replication_checks import check_copy, check_record

pytestmark = pytest.mark.cluster


class TestReplicatedStoreOnPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def _record(self, servers: ServerPair, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path / "copy.db"
        self.servers = servers
        self.record = open_record(servers.url)
        yield
        check_record(self.record)
        check_copy(self.path, self.record)
        self.record.close()

    def open(self) -> ReplicatedStore:
        self.record.release_lease(self.record.read_lease().term)
        return open_replicated(self.path, self.record)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(row_writes(), min_size=1, max_size=15), min_size=1, max_size=4))
def test_any_rows_are_the_same_in_both_engines(
    servers: ServerPair, tmp_path_factory: pytest.TempPathFactory, groups: list[list[RowWrite]]
) -> None:
    servers.empty()
    path = tmp_path_factory.mktemp("rows") / "store.db"
    sqlite_file.prepare_store_file(path)
    db = sqlite3.connect(path, isolation_level=None)
    record = open_record(servers.url)
    lease = take(record)
    capture = ChangeCapture(db)
    for number, writes in enumerate(groups, 1):
        capture.reset()
        db.execute("BEGIN")
        write_rows(db, writes)
        changes = capture.changes()
        db.execute("COMMIT")
        group = RecordGroup(term=lease.term, number=number, seq=0, clock=0.0, changes=changes, revision=REVISION)
        record.commit(group)
        assert repr(record.log_after(number - 1, 1)) == repr([group])
    db.close()
    with record.snapshot() as snapshot:
        assert snapshot_digests(snapshot) == copy_digests(path)
    record.close()
