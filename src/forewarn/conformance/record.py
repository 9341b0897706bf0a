"""The conformance suite for implementations of `SharedRecord`.

Subclass it in a test module and define how to reach an empty record; pytest collects the tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest

from forewarn.cluster.record import (
    LEASE_S,
    Deposed,
    LeaseRow,
    LogPruned,
    RecordGroup,
    RecordMismatch,
    RowChange,
    RowsRejected,
    SharedRecord,
    SqlValues,
)
from forewarn.cluster.row_changes import digest_tables, snapshot_digests
from forewarn.core.control_node import NodeRow
from forewarn.store.commit_mark import RENEWAL_NAME, EpochRenewal, read_renewal
from forewarn.store.schema import REVISION

URL_1, URL_2 = "https://c1.example:8443", "https://c2.example:8443"
FIRST_ROW = RowChange("saved", ("first",), ("first", b"1"))
SECOND_ROW = RowChange("saved", ("second",), ("second", b"2"))
SCOPE_ROW = RowChange("scopes", ("one",), ("one", 1, 7, 3, None, None, 1, None))
HOUR_S = 3600.0
NOW = 1_800_000_000  # real time


def group_after(lease: LeaseRow, *changes: RowChange, number: int = 1, seq: int = 0) -> RecordGroup:
    """Return the `number`-th group of row changes that a node writes after it took the lease."""
    return RecordGroup(
        term=lease.term,
        number=lease.number + number,
        seq=lease.seq + seq,
        clock=lease.clock + number,
        changes=changes,
        revision=REVISION,
    )


class RecordConformance(ABC):
    """The tests that every `SharedRecord` must pass: the tables that several control nodes share.

    A subclass defines `open`, `expire_lease` and `make_log_old`; pytest collects its tests.
    """

    @abstractmethod
    def open(self) -> SharedRecord:
        """Return a connection to the record under test, which is empty at the first call in a test.

        Later calls in a test return further connections to the same record. Close them after the test.
        """

    @abstractmethod
    def expire_lease(self) -> None:
        """Make the lease of the record under test expire, as if its holder had not renewed it in time."""

    @abstractmethod
    def make_log_old(self) -> None:
        """Make all groups that are in the record's log two hours old, so that pruning may delete them."""

    def take(self, record: SharedRecord, holder: str = "c1", url: str = URL_1) -> LeaseRow:
        """Take the lease of the record for a control node and return it."""
        lease = record.take_lease(holder, url)
        assert lease is not None
        return lease

    def rows(self, record: SharedRecord, table: str = "saved") -> list[SqlValues]:
        """Return all rows of a table of the record, read in a new snapshot, sorted; [] if it has none."""
        found: list[SqlValues] = []
        with record.snapshot() as snapshot:
            for name, rows in snapshot.tables:
                if name == table:
                    found += map(tuple, rows)
        return sorted(found)

    def test_an_empty_record_has_a_lease_that_nobody_holds(self) -> None:
        """`read_lease` of an empty record: term, number and seq are 0, no holder, expired, with a record id."""
        lease = self.open().read_lease()
        assert (lease.term, lease.holder, lease.number, lease.seq) == (0, "", 0, 0)
        assert lease.remaining_s <= 0
        assert lease.record_id

    def test_the_lease_is_taken_once_until_it_expires(self) -> None:
        """`take_lease` returns term 1, then None until the lease expires, also to the node that holds it."""
        first, second = self.open(), self.open()
        lease = self.take(first)
        assert (lease.term, lease.holder, lease.url) == (1, "c1", URL_1)
        assert 0 < lease.remaining_s <= LEASE_S
        assert second.take_lease("c2", URL_2) is None
        assert first.take_lease("c1", URL_1) is None
        assert second.read_lease().holder == "c1"

    def test_an_expired_lease_is_taken_under_the_next_term(self) -> None:
        """Another node takes an expired lease under term 2; then only `renew_lease(2)` renews it."""
        first, second = self.open(), self.open()
        self.take(first)
        self.expire_lease()
        lease = self.take(second, "c2", URL_2)
        assert (lease.term, lease.holder, lease.url) == (2, "c2", URL_2)
        assert first.renew_lease(1) is None
        renewed = second.renew_lease(2)
        assert renewed is not None
        assert (renewed.term, renewed.holder) == (2, "c2")

    def test_an_expired_lease_that_nobody_took_is_renewed(self) -> None:
        """`renew_lease` returns an expired lease if its term is still the last, and it is held again."""
        record = self.open()
        lease = self.take(record)
        self.expire_lease()
        assert record.read_lease().remaining_s <= 0
        assert record.renew_lease(lease.term)
        assert record.read_lease().remaining_s > 0

    def test_a_released_lease_can_be_taken_at_once(self) -> None:
        """After `release_lease` another node takes the lease under the next term, without a wait."""
        first, second = self.open(), self.open()
        first.release_lease(self.take(first).term)
        assert self.take(second, "c2", URL_2).term == 2

    def test_a_released_lease_says_how_long_ago_that_was(self) -> None:
        """Right after `release_lease`, `remaining_s` is 0 or less, and not as low as an hour ago."""
        record = self.open()
        record.release_lease(self.take(record).term)
        assert -HOUR_S < record.read_lease().remaining_s <= 0

    def test_the_release_of_an_earlier_term_changes_nothing(self) -> None:
        """`release_lease` with an old term leaves the lease of the present holder unexpired."""
        first, second = self.open(), self.open()
        old = self.take(first)
        self.expire_lease()
        self.take(second, "c2", URL_2)
        first.release_lease(old.term)
        assert second.read_lease().remaining_s > 0

    def test_a_group_is_in_the_tables_the_log_and_the_lease(self) -> None:
        """A committed group is in the rows and in the log; the lease has its number, seq and clock."""
        record = self.open()
        lease = self.take(record)
        group = group_after(lease, FIRST_ROW, seq=7)
        record.commit(group)
        assert self.rows(record) == [("first", b"1")]
        assert record.log_after(lease.number, 10) == [group]
        assert record.group_mark(group.number) == (lease.term, group.hash)
        found = record.read_lease()
        assert (found.number, found.seq, found.clock) == (group.number, 7, group.clock)

    def test_of_two_rows_with_one_key_in_a_group_the_last_is_written(self) -> None:
        """A group can have several rows with the same key; the tables then have the last one."""
        record = self.open()
        lease = self.take(record)
        record.commit(group_after(lease, FIRST_ROW, RowChange("saved", ("first",), ("first", b"later"))))
        assert self.rows(record) == [("first", b"later")]

    def test_a_group_renews_the_lease(self) -> None:
        """`commit` renews an expired lease that nobody else has taken."""
        record = self.open()
        lease = self.take(record)
        self.expire_lease()
        record.commit(group_after(lease, FIRST_ROW))
        assert record.read_lease().remaining_s > 0

    def test_a_deposed_node_writes_nothing(self) -> None:
        """A group under an old term raises Deposed, without rows or log; the new holder can write."""
        first, second = self.open(), self.open()
        old = self.take(first)
        self.expire_lease()
        new = self.take(second, "c2", URL_2)
        with pytest.raises(Deposed):
            first.commit(group_after(old, FIRST_ROW))
        assert self.rows(second) == []
        assert second.log_after(0, 10) == []
        second.commit(group_after(new, SECOND_ROW))
        assert self.rows(first) == [("second", b"2")]

    @pytest.mark.parametrize("number", [0, 2])
    def test_a_group_with_a_number_that_does_not_follow_is_not_written(self, number: int) -> None:
        """A repeated or skipped number raises RecordMismatch; rows and lease stay as they are."""
        record = self.open()
        lease = self.take(record)
        with pytest.raises(RecordMismatch):
            record.commit(group_after(lease, FIRST_ROW, number=number))
        assert self.rows(record) == []
        assert record.read_lease().number == lease.number

    def test_the_log_leads_to_the_rows_of_the_tables(self) -> None:
        """Applying all groups of the log in order gives the rows of the tables, as their digests show."""
        record = self.open()
        lease = self.take(record)
        record.commit(group_after(lease, FIRST_ROW, SECOND_ROW))
        record.commit(group_after(lease, RowChange("saved", ("first",), None), number=2))
        rows: dict[SqlValues, SqlValues] = {}
        for change in (change for group in record.log_after(0, 10) for change in group.changes):
            rows.pop(change.key, None)
            if change.row is not None:
                rows[change.key] = change.row
        with record.snapshot() as snapshot:
            assert snapshot_digests(snapshot) == digest_tables([("saved", list(rows.values()))])

    def test_rows_are_replaced_and_deleted(self) -> None:
        """A change replaces the row with its key; one without a row deletes it."""
        record = self.open()
        lease = self.take(record)
        record.commit(group_after(lease, FIRST_ROW, SECOND_ROW))
        changed = RowChange("saved", ("first",), ("first", b"changed"))
        record.commit(group_after(lease, changed, RowChange("saved", ("second",), None), number=2))
        assert self.rows(record) == [("first", b"changed")]

    def test_a_row_that_was_deleted_and_added_again_exists(self) -> None:
        """A group with a row and, after it, a deletion of the same key leaves the row: deletions come first."""
        record = self.open()
        lease = self.take(record)
        record.commit(group_after(lease, FIRST_ROW))
        record.commit(group_after(lease, FIRST_ROW, RowChange("saved", ("first",), None), number=2))
        assert self.rows(record) == [("first", b"1")]

    def test_the_deletion_of_a_row_that_never_was_is_harmless(self) -> None:
        """A group that deletes an unknown row is committed, and changes no row."""
        record = self.open()
        record.commit(group_after(self.take(record), RowChange("saved", ("unknown",), None)))
        assert self.rows(record) == []

    def test_a_value_that_cannot_be_stored_leaves_the_record_as_it_was(self) -> None:
        """A text with NUL raises RowsRejected and writes nothing of its group; its number stays free."""
        record = self.open()
        lease = self.take(record)
        with pytest.raises(RowsRejected, match="NUL"):
            record.commit(group_after(lease, FIRST_ROW, RowChange("saved", ("a\0b",), ("a\0b", b""))))
        assert self.rows(record) == []
        record.commit(group_after(lease, FIRST_ROW))
        assert self.rows(record) == [("first", b"1")]

    def test_the_record_knows_which_groups_were_committed(self) -> None:
        """`was_committed` is True for each term and number that was written, and False for others."""
        first, second = self.open(), self.open()
        old = self.take(first)
        first.commit(group_after(old, FIRST_ROW))
        assert first.was_committed(old.term, 1)
        assert not first.was_committed(old.term, 2)
        self.expire_lease()
        new = self.take(second, "c2", URL_2)
        second.commit(group_after(new, SECOND_ROW))
        assert first.was_committed(old.term, 1)
        assert not first.was_committed(old.term, 2)
        assert first.was_committed(new.term, 2)

    def test_the_log_is_read_in_order_and_in_pieces(self) -> None:
        """`log_after` returns up to `limit` groups after a number, oldest first; [] after the last."""
        record = self.open()
        lease = self.take(record)
        groups = [group_after(lease, FIRST_ROW, number=number) for number in (1, 2, 3)]
        for group in groups:
            record.commit(group)
        assert record.log_after(0, 2) == groups[:2]
        assert record.log_after(2, 2) == groups[2:]
        assert record.log_after(3, 2) == []

    def test_a_copy_ahead_of_the_record_cannot_follow_its_log(self) -> None:
        """`log_after` raises LogPruned for a number that the record has not reached."""
        record = self.open()
        with pytest.raises(LogPruned):
            record.log_after(5, 10)

    def test_a_group_that_is_not_in_the_log_is_unknown(self) -> None:
        """`group_mark` is (0, "") for number 0, and None for a group that the log does not have."""
        record = self.open()
        assert record.group_mark(0) == (0, "")
        assert record.group_mark(1) is None

    def test_a_reported_loss_stays_until_the_epochs_are_renewed(self) -> None:
        """`report_loss` keeps the first text; `renew_epochs` deletes it, keeps the lease, and changes the record id."""
        record = self.open()
        lease = self.take(record)
        record.commit(group_after(lease, SCOPE_ROW))
        for text in ("first", "second"):
            record.report_loss(lease.record_id, text)
        lost = record.read_lease()
        assert lost.lost == "first"

        renewed, epoch = record.renew_epochs(lost, NOW, lost.lost, is_loss=True)
        assert epoch == NOW + 1
        assert (renewed.number, renewed.term, renewed.lost) == (2, NOW, "")
        assert renewed.record_id != lease.record_id
        assert renewed.remaining_s > 0
        assert self.rows(record, "scopes") == [("one", 1, epoch, 3, None, None, 1, None)]
        ((name, saved),) = self.rows(record)
        assert (name, read_renewal(saved)) == (
            RENEWAL_NAME,
            EpochRenewal(epoch=epoch, at=NOW, reason="first", is_loss=True),
        )
        record.report_loss(lease.record_id, "late")
        assert record.read_lease().lost == ""
        record.commit(group_after(renewed, FIRST_ROW))

    def test_epochs_are_renewed_only_under_the_present_lease_and_after_its_last_group(self) -> None:
        """`renew_epochs` raises Deposed and changes nothing under an old term, or if a group followed."""
        first, second = self.open(), self.open()
        old = self.take(first)
        self.expire_lease()
        lease = self.take(second, "c2", URL_2)
        second.commit(group_after(lease, FIRST_ROW))
        for stale in (old, lease):
            with pytest.raises(Deposed):
                first.renew_epochs(stale, NOW, "a test")
        assert second.read_lease().record_id == old.record_id

    def test_pruning_keeps_the_last_thousand_groups(self) -> None:
        """`prune_log` deletes only old groups that are not among the last 1000, and returns how many."""
        record = self.open()
        lease = self.take(record)
        self.commit_many(record, lease, 1003)
        assert record.prune_log(HOUR_S) == 0
        self.make_log_old()
        assert record.prune_log(HOUR_S) == 3
        assert len(record.log_after(3, 2000)) == 1000
        with pytest.raises(LogPruned):
            record.log_after(2, 10)

    def commit_many(self, record: SharedRecord, lease: LeaseRow, count: int) -> None:
        """Commit `count` groups without changes to the record, numbered from the one after `lease` on."""
        for number in range(1, count + 1):
            record.commit(group_after(lease, number=number))

    def test_a_snapshot_has_all_rows_as_of_one_group(self) -> None:
        """A commit while a snapshot is open does not change it; it has number, term, seq and revision."""
        record, other = self.open(), self.open()
        lease = self.take(record)
        record.commit(group_after(lease, FIRST_ROW, seq=4))
        with other.snapshot() as snapshot:
            record.commit(group_after(lease, SECOND_ROW, number=2))
            tables: dict[str, Sequence[SqlValues]] = {name: rows for name, rows in snapshot.tables if rows}
        assert (snapshot.number, snapshot.term, snapshot.seq) == (1, lease.term, 4)
        assert (snapshot.revision, snapshot.record_id) == (REVISION, lease.record_id)
        assert {name: list(map(tuple, rows)) for name, rows in tables.items()} == {"saved": [("first", b"1")]}

    def test_no_commit_waits_for_a_standby_while_all_is_well(self) -> None:
        """`waits_for_standby` is False while no commit is waiting for the database's standby server."""
        assert not self.open().waits_for_standby()

    def test_control_nodes_describe_themselves(self) -> None:
        """`nodes` returns the last `put_node` of each control node, sorted by name, with its age."""
        record = self.open()
        record.put_node(NodeRow(name="c2", url=URL_2, role="active", version="1"))
        record.put_node(NodeRow(name="c1", url=URL_1, role="standby", version="1", number=3, status="behind"))
        record.put_node(NodeRow(name="c2", url=URL_2, role="standby", version="2"))
        found = self.open().nodes()
        assert [(node.name, node.role, node.version) for node in found] == [
            ("c1", "standby", "1"),
            ("c2", "standby", "2"),
        ]
        assert (found[0].url, found[0].number, found[0].status) == (URL_1, 3, "behind")
        assert all(0 <= node.last_seen_ago_s < HOUR_S for node in found)

    def test_connections_are_independent(self) -> None:
        """A connection from `connect` can still take the lease and commit after the first one was closed."""
        record = self.open()
        other = record.connect()
        lease = self.take(other)
        record.close()
        other.commit(group_after(lease, FIRST_ROW))
        assert self.rows(other) == [("first", b"1")]
        other.close()
