"""What must hold of a record and its copies after any faults. Tests plant defects that these must find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from forewarn.cluster.following import CopyFollower
from forewarn.cluster.record import LogPruned, RecordGroup, SharedRecord, SqlValues
from forewarn.cluster.row_changes import copy_digests, digest_tables, snapshot_digests


def check_log(groups: list[RecordGroup]) -> None:
    """The numbers have no gaps, and terms, history numbers and times never go back."""
    for before, after in pairwise(groups):
        assert after.number == before.number + 1, f"group {after.number} follows {before.number}"
        assert after.term >= before.term, f"group {after.number} of term {after.term} follows term {before.term}"
        assert after.seq >= before.seq, f"history goes back in group {after.number}"
        assert after.clock >= before.clock, f"time goes back in group {after.number}"


def check_record(record: SharedRecord) -> None:
    """The whole log is in order, and leads to the rows of the tables."""
    groups, number = list[RecordGroup](), record.read_lease().number
    with suppress(LogPruned):  # a log with a gap: see below
        while len(groups) < number:  # a call returns fewer if they are large
            groups += record.log_after(len(groups), 100_000)
    check_log(groups)
    assert len(groups) >= number, f"the log of {number} groups does not continue after {len(groups)}"
    tables: defaultdict[str, dict[SqlValues, SqlValues]] = defaultdict(dict)
    for group in groups:
        for change in group.changes:
            if change.row is None:
                tables[change.table].pop(change.key, None)
        for change in group.changes:
            if change.row is not None:
                tables[change.table][change.key] = change.row
    from_log = digest_tables((table, list(rows.values())) for table, rows in tables.items())
    with record.snapshot() as snapshot:
        assert snapshot_digests(snapshot) == from_log, "the tables differ from the log"


def check_copy(path: Path, record: SharedRecord) -> None:
    """A copy that follows the log has the rows of the record; it must not be built again for that."""
    follower = CopyFollower(path, record)
    try:
        follower.follow()
        assert follower.rebuilt == [], f"the copy had to be built again: {follower.rebuilt}"
    finally:
        follower.close()
    with record.snapshot() as snapshot:
        assert copy_digests(path) == snapshot_digests(snapshot), "the copy differs from the record"


def check_saved(names: Iterable[str], record: SharedRecord) -> None:
    """Every value whose `save` was answered is in the record."""
    with record.snapshot() as snapshot:
        found = {row[0] for table, rows in snapshot.tables if table == "saved" for row in rows}
    missing = set(names) - found
    assert not missing, f"answered, but not in the record: {sorted(missing)}"
