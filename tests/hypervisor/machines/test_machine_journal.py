"""The journal of acts on real VMs: what it stores, keeps and deletes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.errors import Rejected
from forewarn.machines.interface import ActNotTried
from forewarn.machines.journal import MachineJournal
from forewarn.machines.steps import Enter, MachineActRecord, Release, Step, StepEntry

DAY_S = 24 * 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machines.db"


@pytest.fixture
def journal(path: Path) -> Iterator[MachineJournal]:
    journal = MachineJournal(path)
    yield journal
    journal.close()


def record(act_id: str = "EVENT-1:web-1", *, at: float = 1000.0) -> MachineActRecord:
    return MachineActRecord(
        act_id=act_id,
        verb=Verb.MIGRATE,
        vm="s/g/web-1",
        name="web-1",
        source="host-1",
        destination="host-2",
        steps=(StepEntry(step=Step.BEGIN, lab_at=at, real_at=at + 5),),
    )


def test_a_record_has_its_steps_and_what_each_of_them_knew(path: Path, journal: MachineJournal) -> None:
    journal.begin(record())
    journal.enter("EVENT-1:web-1", Enter(Step.PREPARE), lab_at=1001, real_at=2001)
    released = Enter(Step.ACTIVATE, release=Release.SENT, downtime_ms=40)
    journal.enter("EVENT-1:web-1", released, lab_at=1002, real_at=2002)
    journal.enter("EVENT-1:web-1", Enter(Step.CLEAN_UP), lab_at=1003, real_at=2003)
    reopened = MachineJournal(path)
    found = reopened.find("EVENT-1:web-1")
    reopened.close()
    assert found is not None
    assert [entry.step for entry in found.steps] == [Step.BEGIN, Step.PREPARE, Step.ACTIVATE, Step.CLEAN_UP]
    assert found.steps[2] == StepEntry(step=Step.ACTIVATE, lab_at=1002, real_at=2002)
    assert (found.release, found.downtime_ms, found.ok) == (Release.SENT, 40, None)


def test_an_act_acts_on_its_vm_until_it_ends_or_nothing_was_done_for_long(journal: MachineJournal) -> None:
    journal.begin(record())  # in real time at 1005
    journal.enter("EVENT-1:web-1", Enter(Step.PREPARE), lab_at=1001, real_at=2001)
    assert journal.vms_acted_on(2001) == {"s/g/web-1"}
    assert journal.vms_acted_on(2002) == frozenset()
    journal.end("EVENT-1:web-1", ok=False, note="")
    assert journal.vms_acted_on(0) == frozenset()


def test_an_act_begins_once(journal: MachineJournal) -> None:
    journal.begin(record())
    journal.enter("EVENT-1:web-1", Enter(Step.PREPARE), lab_at=1001, real_at=2001)
    journal.begin(record())
    found = journal.find("EVENT-1:web-1")
    assert found is not None
    assert found.step is Step.PREPARE


def test_the_first_outcome_of_an_act_stays_and_ends_its_steps(journal: MachineJournal) -> None:
    journal.begin(record())
    assert [each.act_id for each in journal.find_unfinished("s/g/web-1")] == ["EVENT-1:web-1"]
    journal.end("EVENT-1:web-1", ok=True, note="migrate took 4 s")
    journal.end("EVENT-1:web-1", ok=False, note="too late")
    journal.enter("EVENT-1:web-1", Enter(Step.UNDO), lab_at=1001, real_at=2001)
    found = journal.find("EVENT-1:web-1")
    assert found is not None
    assert (found.ok, found.note, found.step) == (True, "migrate took 4 s", Step.BEGIN)
    assert journal.find_unfinished("s/g/web-1") == []


def test_records_that_ended_are_deleted_after_thirty_days(path: Path, journal: MachineJournal) -> None:
    for act_id in ("ended", "unfinished"):
        journal.begin(record(act_id))
    journal.end("ended", ok=True, note="")
    journal.begin(record("young", at=1000 + 29 * DAY_S))
    assert journal.find("ended") is not None
    journal.begin(record("new", at=1001 + 30 * DAY_S))
    assert journal.find("ended") is None
    assert journal.find("unfinished") is not None
    connection = sqlite3.connect(path)
    left = connection.execute("SELECT DISTINCT act_id FROM step ORDER BY act_id").fetchall()
    connection.close()
    assert left == [("new",), ("unfinished",), ("young",)]


def test_a_file_of_another_program_is_refused_and_stays_as_it_is(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Rejected, match=r"is not a journal of acts of this version and was not changed"):
        MachineJournal(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("not a database, but long enough to be read as one" * 40)
    with pytest.raises(Rejected, match=r"is not a journal of acts, or is damaged"):
        MachineJournal(path)


def test_a_journal_that_cannot_be_used_does_not_count_as_an_attempt(journal: MachineJournal) -> None:
    journal.close()
    with pytest.raises(ActNotTried, match=r"cannot be used now"):
        journal.begin(record())
