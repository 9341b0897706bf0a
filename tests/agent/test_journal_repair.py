"""The repair of a damaged journal keeps what can be read, and says exactly what cannot."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.agent.actions import AgentSnapshot, StartStep
from forewarn.agent.decision import next_actions
from forewarn.agent.explanation import explain_event
from forewarn.agent.journal import AgentJournal, JournalDamaged, is_journal_locked
from forewarn.agent.journal_repair import repair_journal
from forewarn.agent.model import (
    LOST_STEP_TEXT,
    ApprovalRecord,
    ApprovalState,
    EventRecord,
    OpenRecords,
    StepConfig,
    StepPhase,
    StepRun,
    StepState,
)
from forewarn.agent.runner import make_step_folder
from forewarn.errors import Rejected
from tests.agent.conftest import NOW, event

PAGE = 4096
COUNT = 60
STAMP = "19700112T134640Z"  # of NOW


def make_record(number: int) -> EventRecord:
    """An event with a long description, so that each page has a few rows, and two steps."""
    facts = event(f"E{number:02}", description=f"{number:02} " * 200)
    made = EventRecord(key=facts.id, event=facts, seen_at=NOW + number, boot_id="boot-1", plan=("drain", "save"))
    for name in made.plan:
        made = made.with_step_run(StepRun(step=name, state=StepState.DONE, begun_at=NOW, text=f"{number:02} " * 100))
    return replace(made, approval=ApprovalRecord(state=ApprovalState.SENT, at=NOW))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of COUNT events, each with a step folder."""
    journal = AgentJournal(tmp_path / "journal.db")
    journal.save(*map(make_record, range(COUNT)))
    journal.save_value("vm", "web-0")
    journal.close()
    for number in range(COUNT):
        (make_step_folder(tmp_path / "steps", f"E{number:02}", "drain") / "found.json").write_text(
            f'{{"n":"{number}"}}'
        )
    return tmp_path / "journal.db"


def damage_pages(path: Path, pages: list[int]) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE)
            file.write(b"\xff" * PAGE)


def pages_of(path: Path, name: str) -> list[int]:
    """The leaf pages of a table or index, without its root."""
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    raw = path.read_bytes()
    start = (root - 1) * PAGE
    assert raw[start] in (2, 5), "the root is not an interior page: write more rows"
    count = int.from_bytes(raw[start + 3 : start + 5])
    cells = [int.from_bytes(raw[start + 12 + 2 * number : start + 14 + 2 * number]) for number in range(count)]
    return [int.from_bytes(raw[start + cell : start + cell + 4]) for cell in cells]


def read_records(path: Path) -> dict[str, EventRecord]:
    journal = AgentJournal(path)
    try:
        return {record.key: record for record in journal.records(-1)}
    finally:
        journal.close()


def test_a_journal_that_is_not_damaged_is_not_changed(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    done = repair_journal(path, tmp_path / "steps", NOW)
    assert (done.damaged_copy, done.unreadable) == (None, ())
    assert path.read_bytes() == before
    assert not [each.name for each in tmp_path.iterdir() if "damaged" in each.name]


def test_events_on_a_damaged_page_are_named_and_all_others_kept(path: Path, tmp_path: Path) -> None:
    damage_pages(path, pages_of(path, "events")[3:4])
    damaged = path.read_bytes()
    with pytest.raises(JournalDamaged):
        read_records(path)

    done = repair_journal(path, tmp_path / "steps", NOW)
    kept, all_keys = read_records(path), {f"E{number:02}" for number in range(COUNT)}
    lost = all_keys - kept.keys()
    assert 0 < len(lost) < 20
    assert kept == {key: make_record(int(key[1:])) for key in sorted(all_keys - lost)}
    assert done.kept == tuple(sorted(kept))
    for key in lost:
        assert [text for text in done.unreadable if text.startswith(f"event {key}: ") and "do drain done" in text]
        assert (tmp_path / f"steps.damaged-{STAMP}" / key / "drain" / "found.json").exists()
    assert done.damaged_copy == tmp_path / f"journal.db.damaged-{STAMP}"
    assert done.damaged_copy.read_bytes() == damaged
    assert done.step_folders == tmp_path / f"steps.damaged-{STAMP}"
    assert sorted(each.name for each in (tmp_path / "steps").iterdir()) == sorted(kept)


def test_a_step_on_a_damaged_page_counts_as_failed_so_that_it_is_undone_and_not_repeated(
    path: Path, tmp_path: Path
) -> None:
    damage_pages(path, pages_of(path, "steps")[1:2])
    done = repair_journal(path, tmp_path / "steps", NOW)
    records = read_records(path)
    assert len(records) == COUNT
    lost = [(key, run) for key, record in records.items() for run in record.step_runs if run.text == LOST_STEP_TEXT]
    assert 0 < len(lost) < 40
    for key, run in lost:
        assert (run.state, run.phase) == (StepState.FAILED, StepPhase.DO)
        text = f"the do of step {run.step} of event {key}: it counts as failed; it is undone when the event is gone"
        assert text in done.unreadable
    assert len(done.unreadable) == len(lost)
    assert all(len(record.step_runs) == 2 for record in records.values())


def test_a_damaged_index_loses_nothing(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_events_1'").fetchone()
    damage_pages(path, [root])
    done = repair_journal(path, tmp_path / "steps", NOW)
    assert read_records(path) == {f"E{n:02}": make_record(n) for n in range(COUNT)}
    assert (done.unreadable, done.step_folders) == ((), None)


def test_values_that_are_not_records_are_kept_or_named(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO memory VALUES ('half', '{')")
        db.execute("UPDATE events SET plan = '[' WHERE key = 'E07'")
        db.commit()
    done = repair_journal(path, tmp_path / "steps", NOW)
    journal = AgentJournal(path)
    assert (journal.load_value("vm"), journal.load_value("half")) == ("web-0", None)
    journal.close()
    assert "the value 'half': the agent asks for it again" in done.unreadable
    assert [text for text in done.unreadable if text.startswith("event E07: ")]
    assert len(done.kept) == COUNT - 1


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(b"no database " * 1000), lambda path: damage_pages(path, [1])],
    ids=["another file", "first page"],
)
def test_a_file_of_which_nothing_can_be_read_is_replaced_and_kept(
    path: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    done = repair_journal(path, tmp_path / "steps", NOW)
    assert read_records(path) == {}
    assert done.unreadable[0].startswith("the whole file (")
    assert len(done.unreadable) == 1 + COUNT, "one for each step folder"
    assert (tmp_path / f"steps.damaged-{STAMP}" / "E00").exists()


def test_a_journal_that_an_agent_uses_or_that_does_not_exist_is_not_repaired(path: Path, tmp_path: Path) -> None:
    journal = AgentJournal(path)
    with pytest.raises(Rejected, match="is in use by another agent"):
        repair_journal(path, tmp_path / "steps", NOW)
    journal.close()
    with pytest.raises(Rejected, match="does not exist: there is nothing to repair"):
        repair_journal(tmp_path / "other.db", tmp_path / "steps", NOW)


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_is_repaired_and_every_lost_event_is_accounted_for(path: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    size = path.stat().st_size // PAGE
    damage_pages(path, [chance.randrange(2, size + 1) for _ in range(chance.randrange(1, 5))])
    done = repair_journal(path, tmp_path / "steps", NOW)
    records = read_records(path)
    texts = "\n".join(done.unreadable)
    for number in range(COUNT):
        key = f"E{number:02}"
        folder = tmp_path / (f"steps.damaged-{STAMP}" if key not in records else "steps") / key
        assert key in records or f"event {key}: " in texts or f"step folder {key}" in texts
        assert (folder / "drain" / "found.json").exists()
        if key in records:
            wrong = [run for run in records[key].step_runs if run not in make_record(number).step_runs]
            assert all(run.text == LOST_STEP_TEXT for run in wrong)
            missing = 2 - len(records[key].step_runs)
            assert not missing or "further rows of the table steps" in texts
    assert not is_journal_locked(path)


@pytest.mark.parametrize(
    ("is_closed", "lost", "follows", "now"),
    [
        (
            True,
            "phase = 'undo'",
            "the event is closed, so the agent does not try it again: if the step is not undone, undo it by hand",
            "closed, but not known whether undone: drain; if it is not, undo it by hand",
        ),
        (
            True,
            "phase = 'do'",
            "the event is closed, so the agent does nothing more for it",
            "closed: nothing left to do",
        ),
        (False, "phase = 'undo'", "the undo is tried again", "gone, the undo is in progress"),
        (
            False,
            "phase = 'do'",
            "its undo is done, so the agent does nothing more for it",
            "gone, the undo is in progress",
        ),
    ],
    ids=["undo of a closed event", "step of a closed event", "undo of an open event", "undone step of an open event"],
)
def test_the_report_says_of_a_lost_step_what_the_agent_then_does(
    tmp_path: Path, is_closed: bool, lost: str, follows: str, now: str
) -> None:
    path, facts = tmp_path / "journal.db", event("E1")
    record = EventRecord(key="E1", event=facts, seen_at=NOW, boot_id="b1", plan=("drain",), gone_at=NOW + 5)
    for phase in StepPhase:
        record = record.with_step_run(
            StepRun(step="drain", phase=phase, state=StepState.DONE, begun_at=NOW, ended_at=NOW, boot_id="b1")
        )
    journal = AgentJournal(path)
    journal.save(replace(record, outcome="finished", closed=is_closed))
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE steps SET state = 'eaten' WHERE {lost}")
        db.commit()

    (text,) = repair_journal(path, tmp_path / "steps", NOW).unreadable
    assert text.endswith(f"of step drain of event E1: it counts as failed; {follows}")
    repaired = read_records(path)["E1"]
    assert explain_event(repaired, {}).now == now
    step = StepConfig(name="drain", use="command", budget_s=10, undo_tries=1)
    snapshot = AgentSnapshot(
        open_records=OpenRecords().with_records(repaired),
        rules={},
        steps={"drain": step},
        vm="web-0",
        now=NOW + 600,
        boot_id="b1",
    )
    undone = [each for each in next_actions(snapshot) if isinstance(each, StartStep)]
    assert bool(undone) == (follows == "the undo is tried again")
