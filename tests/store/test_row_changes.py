"""Changes captured on one store and applied to another make both equal, for every table and any writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.cluster.record import RowChange
from forewarn.cluster.row_changes import (
    REPLICATED_TABLES,
    ChangeCapture,
    apply_changes,
    decode_changes,
    encode_changes,
    group_changes,
    set_last_seq,
    upsert_sql,
)
from forewarn.store import sqlite_file
from forewarn.store.schema import metadata
from tests.support.random_rows import RowWrite, all_rows, row_writes, write_rows

NewDatabase = Callable[[], sqlite3.Connection]
GROUPS = st.lists(st.lists(row_writes(), min_size=1, max_size=12), min_size=1, max_size=4)
EVENT_COLUMNS = ("scope", 1, "request", "gate", "over", 1.0, b"{}")


@pytest.fixture
def new_database(tmp_path: Path) -> Iterator[NewDatabase]:
    """Opens an empty store in memory, with all tables."""
    path = tmp_path / "empty.db"
    sqlite_file.prepare_store_file(path)
    opened: list[sqlite3.Connection] = []

    def new() -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", isolation_level=None)
        opened.append(db)
        source = sqlite3.connect(path)
        source.backup(db)
        source.close()
        return db

    yield new
    for db in opened:
        db.close()


def test_every_table_but_those_of_one_node_is_replicated() -> None:
    assert set(metadata.tables) - set(REPLICATED_TABLES) == {"polls", "record_position"}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS)
def test_a_copy_that_applies_the_changes_equals_the_original(
    new_database: NewDatabase, groups: list[list[RowWrite]]
) -> None:
    original, copy = new_database(), new_database()
    capture = ChangeCapture(original)
    for writes in groups:
        capture.reset()
        original.execute("BEGIN")
        write_rows(original, writes)
        changes = decode_changes(encode_changes(capture.changes()))
        original.execute("COMMIT")
        assert changes == capture.changes()
        apply_changes(copy, changes)
        assert repr(all_rows(copy)) == repr(all_rows(original))  # also the kind of each value, and the sign of zero


def test_a_row_that_changed_twice_is_one_change(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO saved VALUES ('name', x'01')")
    db.execute("UPDATE saved SET value = x'02'")
    assert capture.changes() == (RowChange("saved", ("name",), ("name", b"\x02")),)


def test_of_two_rows_with_one_key_the_last_is_written() -> None:
    rows = [("name", b"1"), ("other", b"2"), ("name", b"3")]
    grouped = group_changes(RowChange("saved", (name,), (name, value)) for name, value in rows)
    assert grouped.upserts == {("saved", 2): [("name", b"3"), ("other", b"2")]}


def test_a_row_that_came_and_went_is_deleted(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO saved VALUES ('name', x'01')")
    db.execute("DELETE FROM saved")
    assert capture.changes() == (RowChange("saved", ("name",), None),)


def test_a_reset_forgets_changes(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO saved VALUES ('name', x'01')")
    capture.reset()
    assert capture.changes() == ()


def test_many_rows_of_several_tables_are_read_as_they_are_now(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.executemany("INSERT INTO saved VALUES (?, x'01')", [(f"name {number}",) for number in range(10)])
    db.executemany("INSERT INTO deliveries VALUES (?, 2, 3, 4, 5, 6.0)", [(number,) for number in range(10)])
    db.execute("UPDATE saved SET value = x'02' WHERE name = 'name 4'")
    values = {f"name {number}": b"\x02" if number == 4 else b"\x01" for number in range(10)}
    saved = [RowChange("saved", (name,), (name, value)) for name, value in values.items()]
    deliveries = [RowChange("deliveries", (number, 2, 3), (number, 2, 3, 4, 5, 6.0)) for number in range(10)]
    assert list(capture.changes()) == saved + deliveries


def test_a_change_that_is_rolled_back_to_a_savepoint_is_not_captured(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("BEGIN")
    db.execute("INSERT INTO saved VALUES ('kept', x'01')")
    db.execute("SAVEPOINT attempt")
    db.execute("INSERT INTO saved VALUES ('undone', x'01')")
    db.execute("ROLLBACK TO attempt")
    assert capture.changes() == (RowChange("saved", ("kept",), ("kept", b"\x01")),)


def test_a_changed_key_deletes_the_row_with_the_old_key(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO saved VALUES ('old', x'01')")
    capture.reset()
    db.execute("UPDATE saved SET name = 'new'")
    assert capture.changes() == (RowChange("saved", ("old",), None), RowChange("saved", ("new",), ("new", b"\x01")))


def test_events_that_exchanged_their_places_are_applied(new_database: NewDatabase) -> None:
    """Each takes the unique id that the other had: without deletes first, the copy would refuse them."""
    original, copy = new_database(), new_database()
    capture = ChangeCapture(original)
    insert = upsert_sql("events", 9, "?")
    original.executemany(insert, [(1, "A", *EVENT_COLUMNS), (2, "B", *EVENT_COLUMNS)])
    apply_changes(copy, capture.changes())
    capture.reset()
    original.execute("DELETE FROM events")
    original.executemany(insert, [(1, "B", *EVENT_COLUMNS), (2, "A", *EVENT_COLUMNS)])
    apply_changes(copy, capture.changes())
    assert all_rows(copy) == all_rows(original)


@pytest.mark.parametrize(
    ("column", "value", "is_captured"),
    [("last_request_at", 3599.0, False), ("last_request_at", 3600.0, True), ("incarnation", 2, True)],
    ids=["same hour", "next hour", "another column"],
)
def test_the_last_request_of_a_scope_is_replicated_once_an_hour(
    new_database: NewDatabase, column: str, value: float, is_captured: bool
) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO scopes VALUES ('s', 1, 1, 1, NULL, 100.0, 1, NULL)")
    capture.reset()
    db.execute(f"UPDATE scopes SET {column} = ?", (value,))
    assert bool(capture.changes()) is is_captured


def test_the_first_request_of_a_scope_is_replicated(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO scopes VALUES ('s', 1, 1, 1, NULL, NULL, 1, NULL)")
    capture.reset()
    db.execute("UPDATE scopes SET last_request_at = 5.0")
    assert len(capture.changes()) == 1


def test_polls_are_not_captured(new_database: NewDatabase) -> None:
    db = new_database()
    capture = ChangeCapture(db)
    db.execute("INSERT INTO polls VALUES ('vm', 's', 1.0, x'')")
    assert capture.changes() == ()


@pytest.mark.parametrize("seq", [3, 10])
def test_history_numbers_continue_after_pruned_entries(new_database: NewDatabase, seq: int) -> None:
    db = new_database()
    for _ in range(2):
        set_last_seq(db, seq)
        set_last_seq(db, seq - 1)  # never back
    added = db.execute("INSERT INTO history VALUES (NULL, 1.0, 'x', '', '', '', '', x'')")
    assert added.lastrowid == seq + 1


def test_rows_of_a_release_with_fewer_columns_are_applied(new_database: NewDatabase) -> None:
    """A later release adds columns at the end, and reads what the release before it wrote."""
    db = new_database()
    db.execute("ALTER TABLE saved ADD COLUMN later INTEGER")
    db.execute("INSERT INTO saved VALUES ('a', x'01', 7)")
    apply_changes(db, [RowChange("saved", ("a",), ("a", b"\x02")), RowChange("saved", ("b",), ("b", b""))])
    assert db.execute("SELECT * FROM saved ORDER BY name").fetchall() == [("a", b"\x02", 7), ("b", b"", None)]


def test_a_log_that_is_not_ours_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_changes(b"\xc1")
