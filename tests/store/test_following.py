"""A copy follows the log of its record, and is built again if it is too old, differs, or is of another record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from forewarn.cluster.following import CopyFollower, RebuildReason, build_copy
from forewarn.cluster.record import (
    LEASE_S,
    LeaseRow,
    RecordGroup,
    RecordMismatch,
    RecordUnavailable,
    RowChange,
    chain_hash,
)
from forewarn.cluster.row_changes import copy_digests, encode_changes, snapshot_digests
from forewarn.conformance.record import group_after
from forewarn.conformance.store_suite import sample_history_entry
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.errors import Refused, Rejected
from forewarn.store import SqliteStore, restore_backup
from forewarn.store.sqlite_file import connect
from tests.support.memory_record import MemoryRecord, MemoryRecordServer
from tests.support.replicated_store import open_replicated, take


class Site:
    """A record in memory with an active node that writes groups."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.server = MemoryRecordServer(lambda: self.now)
        self.record = self.server.connect()
        self.path = path
        self.lease: LeaseRow = take(self.record)
        self.written = 0

    def write(self, count: int = 1) -> None:
        """Commit groups of one saved value each."""
        for _ in range(count):
            self.written += 1
            change = RowChange("saved", (f"n{self.written}",), (f"n{self.written}", b""))
            group = group_after(self.lease, change, number=self.server.number + 1 - self.lease.number)
            before = self.server.groups[-1].hash if self.server.groups else ""
            mark = chain_hash(before, group.term, group.number, encode_changes(group.changes))
            self.record.commit(replace(group, hash=mark))

    def take_over(self) -> None:
        """Take the lease under the next term."""
        self.now += LEASE_S + 1
        self.lease = take(self.record, "c2")

    @contextmanager
    def follower(self) -> Iterator[CopyFollower]:
        follower = CopyFollower(self.path, self.server.connect())
        yield follower
        follower.close()

    def follow(self) -> list[RebuildReason]:
        """Let a copy follow, check that it equals the record, and return why it was built again."""
        with self.follower() as follower:
            follower.follow()
            assert follower.position.number == self.server.number
            rebuilt = follower.rebuilt
        with self.record.snapshot() as snapshot:
            assert copy_digests(self.path) == snapshot_digests(snapshot)
        return rebuilt


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "copy.db")


def test_a_missing_copy_is_built_from_a_snapshot(site: Site) -> None:
    site.write(3)
    assert site.follow() == [RebuildReason.MISSING]


def test_a_copy_applies_the_groups_that_it_lacks(site: Site) -> None:
    site.follow()
    site.write(450)  # more than one piece of the log
    assert site.follow() == []
    site.take_over()
    site.write(2)
    assert site.follow() == []


def test_a_copy_that_is_up_to_date_changes_nothing(site: Site) -> None:
    site.write(2)
    with site.follower() as follower:
        for _ in range(2):
            follower.follow()
        assert follower.rebuilt == [RebuildReason.MISSING]
        assert follower.position.number == 2


def test_a_copy_older_than_the_log_is_built_again(site: Site) -> None:
    site.follow()
    site.write(1003)
    site.now += 7200
    site.record.prune_log(3600)
    assert site.follow() == [RebuildReason.TOO_OLD]


def test_a_copy_with_groups_that_the_record_has_lost_is_built_again(site: Site) -> None:
    site.write(3)
    site.follow()
    site.server.promote(lost=1)
    assert site.follow() == [RebuildReason.LOST_GROUPS]
    known = site.server.number + 1
    reported = site.record.read_lease().lost
    assert reported.startswith(f"PostgreSQL has lost commits: the copy had group {known}, but the record ended at ")
    assert site.follow() == []


def test_a_record_with_other_groups_of_the_same_terms_and_numbers_has_lost_those_of_the_copy(site: Site) -> None:
    """A holder on the old server and one on the promoted server had the same term."""
    site.write(2)
    term = site.lease.term
    for _ in range(2):
        site.server.term = term  # as the standby knew it when it was promoted
        site.take_over()
        site.write(1)
        rebuilt = site.follow()
        site.server.promote(lost=1)
    assert rebuilt == [RebuildReason.LOST_GROUPS]


def test_a_copy_with_other_groups_than_the_record_is_built_again(site: Site) -> None:
    """The record has lost a group, and a later holder has written others under the same numbers."""
    site.write(3)
    site.follow()
    site.server.promote(lost=1)
    site.take_over()
    site.write(4)
    assert site.follow() == [RebuildReason.LOST_GROUPS]


def test_a_record_that_loses_groups_while_a_copy_reads_the_log_is_noticed(site: Site) -> None:
    site.write(3)
    site.follow()

    class LosesGroups(MemoryRecord):
        """Loses a group, and gets others in its place, just before the log is read."""

        def log_after(self, number: int, limit: int) -> list[RecordGroup]:
            if site.server.term == 1:
                site.server.promote(lost=1)
                site.take_over()
                site.write(4)
            return super().log_after(number, limit)

    follower = CopyFollower(site.path, LosesGroups(site.server))
    follower.follow()
    follower.close()
    assert follower.rebuilt == [RebuildReason.LOST_GROUPS]
    assert site.follow() == []


def test_a_copy_of_another_record_is_built_again(site: Site) -> None:
    site.write(2)
    site.follow()
    site.server.record_id = "memory-2"
    assert site.follow() == [RebuildReason.OTHER_RECORD]


def test_a_damaged_copy_is_set_aside_and_built_again(site: Site) -> None:
    site.write(2)
    site.follow()
    with connect(site.path, mode="rw") as db:
        db.execute("DROP TABLE alembic_version")
    db.close()
    assert site.follow() == [RebuildReason.DAMAGED]
    assert site.path.with_name("copy.db.damaged").exists()


def test_a_store_of_its_own_is_never_overwritten(site: Site) -> None:
    async def fill() -> None:
        store = SqliteStore.open(site.path)
        await store.commit(Commit(scopes=(Scope(id="s"),)))
        await store.close()

    asyncio.run(fill())
    before = site.path.read_bytes()
    with pytest.raises(Refused, match="is not a copy of a record and was left as it is"):
        CopyFollower(site.path, site.record)
    assert site.path.read_bytes() == before


def test_a_file_of_another_program_is_never_overwritten(site: Site) -> None:
    site.path.write_text("a text")
    with pytest.raises(Rejected, match="not an SQLite database"):
        CopyFollower(site.path, site.record)
    assert site.path.read_text() == "a text"


def test_a_copy_that_cannot_replace_a_file_of_another_program_leaves_nothing_behind(site: Site) -> None:
    site.path.write_text("a text")
    with pytest.raises(Rejected, match="not an SQLite database"):
        build_copy(site.path, site.record)
    assert [(file.name, file.read_text()) for file in site.path.parent.iterdir()] == [("copy.db", "a text")]


def test_a_copy_is_not_a_store_of_its_own(site: Site) -> None:
    site.follow()
    with pytest.raises(Refused, match="is a copy of a record in PostgreSQL"):
        SqliteStore.open(site.path)


def test_a_backup_of_a_copy_is_restored_as_a_store_of_its_own(site: Site, tmp_path: Path) -> None:
    async def back_up() -> None:
        site.now += 10
        store = open_replicated(site.path, site.server.connect())
        await store.commit(Commit(entries=(sample_history_entry("a"),)))
        await store.back_up(tmp_path / "backup")
        await store.close()

    async def read() -> None:
        store = SqliteStore.open(tmp_path / "restored.db")
        assert [entry.text for entry in store.history()] == ["a"]
        await store.close()

    asyncio.run(back_up())
    restore_backup(tmp_path / "backup", tmp_path / "restored.db", now=1.0)
    asyncio.run(read())


def test_an_outage_while_a_copy_is_built_leaves_the_earlier_copy(site: Site) -> None:
    site.write(2)
    site.follow()
    with site.follower() as follower:
        site.server.record_id = "memory-2"

        class Fails(MemoryRecord):
            def read_lease(self) -> LeaseRow:
                lease = super().read_lease()
                site.server.stop()
                return lease

        follower._record = Fails(site.server)
        with pytest.raises(RecordUnavailable):
            follower.follow()
        site.server.start()
        follower._record = site.record
        follower.follow()
        assert follower.position.record_id == "memory-2"


def test_an_outage_of_the_record_is_reported_by_a_follower(site: Site) -> None:
    with site.follower() as follower:
        site.server.stop()
        with pytest.raises(RecordUnavailable):
            follower.follow()
        site.server.start()
        follower.follow()


def test_a_closed_follower_opens_its_copy_again(site: Site) -> None:
    with site.follower() as follower:
        follower.close()
        follower.close()
        site.write(1)
        follower.follow()
        assert follower.position.number == 1


def test_a_copy_stops_before_rows_of_a_newer_release(site: Site) -> None:
    site.follow()
    group = group_after(site.lease, RowChange("saved", ("new",), ("new", b"", 7)))
    site.record.commit(msgspec.structs.replace(group, revision="0999"))
    with site.follower() as follower:
        with pytest.raises(Refused, match="0999"):
            follower.follow()
        assert follower.position.number == 0


def test_a_copy_that_cannot_reach_the_lease_is_refused(site: Site) -> None:
    with site.follower() as follower:
        site.write(1)
        with pytest.raises(RecordMismatch):
            follower.follow_to(site.lease)
