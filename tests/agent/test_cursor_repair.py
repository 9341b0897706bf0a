"""At its start the agent makes its cursor agree with its journal, wherever it was killed between the two writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.agent.journal import AgentJournal
from forewarn.agent.model import Event, EventRecord
from forewarn.agent.watcher import repair_cursor
from forewarn.client import Change, Gone, Scheduled, Started
from forewarn.client.change_detection import KnownDocument, KnownEvent
from forewarn.client.cursor import WatchCursor, load_cursor, save_cursor
from forewarn.protocol.codec import decode_event
from tests.agent.conftest import NOW

BOOT = "boot-1"


def event(letter: str, status: str = "Scheduled") -> Event:
    """An event as it comes over the wire: the cursor stores that."""
    return decode_event({"EventId": letter, "EventStatus": status, "EventType": "Reboot", "Resources": ["vm"]})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[AgentJournal]:
    journal = AgentJournal(tmp_path / "journal.db")
    yield journal
    journal.close()


def known_after_repair(journal: AgentJournal, folder: Path, known: str, *unhandled: Change) -> str:
    """The events that the cursor knows, as letters, after a repair of one that knew these."""
    events = tuple(KnownEvent(event=event(letter), boot_id=BOOT) for letter in known)
    cursor = WatchCursor(known=KnownDocument(incarnation=3, events=events), unhandled=unhandled, boot_id=BOOT)
    save_cursor(folder / "cursor.json", cursor)
    repair_cursor(folder / "cursor.json", journal, BOOT)
    repaired = load_cursor(folder / "cursor.json")
    assert repaired.unhandled == unhandled
    return "".join(seen.event.id for seen in repaired.known.events)


@pytest.mark.parametrize("change", [Scheduled(event=event("A")), Started(event=event("A", "Started"))])
def test_an_event_whose_change_still_comes_stays_known_so_that_its_end_is_seen(
    journal: AgentJournal, tmp_path: Path, change: Change
) -> None:
    """The agent was killed after it wrote the cursor and before it wrote the journal."""
    assert known_after_repair(journal, tmp_path, "A", change) == "A"


def test_an_event_whose_end_still_comes_stays_unknown(journal: AgentJournal, tmp_path: Path) -> None:
    journal.save(EventRecord(key="A", event=event("A"), seen_at=NOW, boot_id=BOOT))
    assert known_after_repair(journal, tmp_path, "", Gone(event=event("A"))) == ""


def test_a_cursor_without_the_events_of_the_journal_learns_them(journal: AgentJournal, tmp_path: Path) -> None:
    record = EventRecord(key="A", event=event("A"), seen_at=NOW, boot_id=BOOT)
    journal.save(record, replace(record, key="B", event=event("B"), gone_at=NOW))
    assert known_after_repair(journal, tmp_path, "") == "A"


def test_an_event_that_neither_journal_nor_changes_have_comes_again(journal: AgentJournal, tmp_path: Path) -> None:
    assert known_after_repair(journal, tmp_path, "A") == ""
