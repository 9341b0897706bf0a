"""The journal is durable, and only one agent at a time can write it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.agent.journal import (
    MIGRATIONS,
    AgentJournal,
    JournalDamaged,
    is_journal_locked,
    unusable_journal_error,
)
from forewarn.agent.model import (
    ApprovalCheckRecord,
    ApprovalRecord,
    ApprovalState,
    EventRecord,
    OpenRecords,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.errors import Rejected, Unavailable
from tests.agent.conftest import NOW, event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[AgentJournal]:
    opened = AgentJournal(path)
    yield opened
    opened.close()


def record(key: str = "E1", **facts: object) -> EventRecord:
    id_ = key.partition("#")[0]
    given = {"seen_at": NOW, "boot_id": "boot-1", **facts}
    return EventRecord(key=key, event=event(id_, extra={"New": [1]}), **given)  # type: ignore[arg-type]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TIMES = st.floats(0, 4e9)
STEP_RUNS = st.builds(
    StepRun,
    step=st.sampled_from(["a", "b"]),
    phase=st.sampled_from(StepPhase),
    state=st.sampled_from(StepState),
    begun_at=TIMES,
    ended_at=st.none() | TIMES,
    boot_id=TEXTS,
    text=TEXTS,
    notes=st.dictionaries(TEXTS, TEXTS, max_size=2),
    holder=TEXTS,
    tries=st.integers(1, 9),
)
RECORDS = st.builds(
    record,
    st.sampled_from(["E1", "E1#2", "E2"]),
    rule=TEXTS,
    plan=st.lists(TEXTS, max_size=2).map(tuple),
    not_before=st.none() | TIMES,
    gone_at=st.none() | TIMES,
    closed=st.booleans(),
    step_runs=st.lists(STEP_RUNS, max_size=4, unique_by=lambda run: (run.step, run.phase)).map(tuple),
    approval=st.none() | st.builds(ApprovalRecord, state=st.sampled_from(ApprovalState), at=TIMES, text=TEXTS),
    approval_check=st.none() | st.builds(ApprovalCheckRecord, first_at=TIMES, asked_at=TIMES, answer=TEXTS, text=TEXTS),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(RECORDS, max_size=4, unique_by=lambda record: record.key))
def test_records_are_read_as_they_were_written(
    records: list[EventRecord], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    first = AgentJournal(path)
    first.save(*records)
    first.close()
    second = AgentJournal(path)
    assert second.records() == tuple(reversed(records))
    assert (
        second.open_records
        == first.open_records
        == OpenRecords(records=tuple(each for each in records if not each.closed))
    )
    second.close()


def test_a_step_keeps_its_place_when_it_is_rewritten(journal: AgentJournal, path: Path) -> None:
    begun = StepRun(step="drain", begun_at=NOW, boot_id="boot-1")
    journal.save(record().with_step_run(begun))
    journal.save(record().with_step_run(replace(begun, state=StepState.DONE, notes={"was": "ready"})))
    reader = AgentJournal(path, readonly=True)
    (found,) = reader.records()
    reader.close()
    assert [(run.state, run.notes) for run in found.step_runs] == [(StepState.DONE, {"was": "ready"})]


def test_a_closed_event_is_no_longer_open_but_kept(journal: AgentJournal) -> None:
    journal.save(record())
    journal.save(replace(record(), closed=True))
    assert list(journal.open_records) == []
    assert journal.count_records("E1") == 1
    assert [each.key for each in journal.find_by_prefix("e1")] == ["E1"]
    assert journal.find_by_prefix("%") == ()


def test_old_closed_events_are_deleted_with_their_steps_and_open_ones_never(journal: AgentJournal) -> None:
    for number in range(5):
        journal.save(replace(record(f"E{number}"), closed=number > 0).with_step_run(StepRun(step="s", begun_at=NOW)))
    journal.prune(keep=2)
    assert [each.key for each in journal.records()] == ["E4", "E3", "E0"]
    assert journal.count_records("E1") == 0
    assert journal.keys() == ("E0", "E3", "E4")


def test_values_are_stored_by_name(journal: AgentJournal) -> None:
    assert journal.load_value("document") is None
    journal.save_value("document", {"incarnation": 7})
    journal.save_value("document", {"incarnation": 8})
    assert journal.load_value("document") == {"incarnation": 8}


def test_only_the_owner_can_read_the_file(journal: AgentJournal, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    AgentJournal(path.parent / "new" / "journal.db").close()
    assert stat.S_IMODE((path.parent / "new").stat().st_mode) == 0o700


def test_an_agent_may_start_while_another_process_asks_whether_one_runs(path: Path) -> None:
    AgentJournal(path).close()
    asking = os.open(path.with_name(f"{path.name}.lock"), os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `is_journal_locked` does
    answered = threading.Timer(0.05, os.close, (asking,))
    answered.start()
    journal = AgentJournal(path)
    answered.join()
    assert is_journal_locked(path)
    journal.close()
    assert not is_journal_locked(path)


def test_a_second_agent_is_rejected_and_a_reader_is_not(journal: AgentJournal, path: Path) -> None:
    with pytest.raises(Rejected, match="is in use by another agent: stop that agent, or set another `state`"):
        AgentJournal(path)
    journal.save(record())
    reader = AgentJournal(path, readonly=True)
    assert [each.key for each in reader.records()] == ["E1"]
    reader.close()


def test_saved_records_survive_kill_9(path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from forewarn.agent.journal import AgentJournal
from tests.agent.test_journal import record
journal = AgentJournal(Path({str(path)!r}))
journal.save(record())
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == -9
    reopened = AgentJournal(path)
    assert [each.key for each in reopened.open_records] == ["E1"]
    reopened.close()


def test_a_newer_or_damaged_journal_is_rejected_with_a_reason(path: Path, tmp_path: Path) -> None:
    AgentJournal(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(Rejected, match="was written by a newer forewarn: use that version"):
        AgentJournal(path)
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"no database " * 100)
    with pytest.raises(
        Rejected, match=r"is damaged \(file is not a database\): stop the agent and run `forewarn agent repair`"
    ):
        AgentJournal(junk)
    with pytest.raises(Rejected, match="does not exist: start the agent once"):
        AgentJournal(tmp_path / "none.db", readonly=True)


@pytest.mark.parametrize("content", [b"no database " * 100, "newer"], ids=["damaged", "newer"])
def test_a_journal_that_cannot_be_opened_is_not_locked(path: Path, content: bytes | str) -> None:
    AgentJournal(path).close()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(Rejected):
        AgentJournal(path)
    assert not is_journal_locked(path)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE events SET facts = 'half'", "UPDATE steps SET state = 'eaten'", "DROP TABLE steps"],
    ids=["facts", "state", "table"],
)
def test_a_record_that_cannot_be_read_is_reported_as_damage(path: Path, statement: str) -> None:
    journal = AgentJournal(path)
    journal.save(record().with_step_run(StepRun(step="drain", begun_at=NOW)))
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()
    with pytest.raises(JournalDamaged, match="stop the agent and run `forewarn agent repair`"):
        AgentJournal(path)


def test_damage_that_a_running_agent_finds_is_reported(journal: AgentJournal, path: Path) -> None:
    journal._db.execute("DROP TABLE events")
    for ask in (lambda: journal.count_records("E1"), journal.keys, journal.records):
        with pytest.raises(JournalDamaged):
            ask()


def test_an_unwritable_journal_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Rejected, match="cannot be opened"):
        AgentJournal(tmp_path / "file" / "journal.db")


def test_a_failed_write_leaves_the_journal_unchanged_and_usable(journal: AgentJournal) -> None:
    journal.save(record())
    journal._db.execute("PRAGMA max_page_count = 1")  # the disk is full
    with pytest.raises(Unavailable, match="cannot be written"):
        journal.save(record("E2", rule="x" * 100_000))
    assert [each.key for each in journal.open_records] == ["E1"]
    journal._db.execute("PRAGMA max_page_count = 1000000")
    journal.save(record("E3"))
    assert [each.key for each in journal.records()] == ["E3", "E1"]


def test_a_damaged_journal_is_rejected_and_a_full_disk_is_not_reported_as_damage(path: Path) -> None:
    journal = AgentJournal(path)
    journal.save(record())
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(Rejected, match=r"is damaged .*: stop the agent and run `forewarn agent repair`"):
        AgentJournal(path)
    assert "cannot be opened (disk full)" in str(unusable_journal_error(path, sqlite3.OperationalError("disk full")))
