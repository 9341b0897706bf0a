"""What a document changes in the book of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.agent.conftest import NOW, event, step

from forewarn.agent.record import Book, Record
from forewarn.agent.sight import sighted
from forewarn.agent.value import Event, Rule

RULES = (Rule(name="rest", steps=(step("drain"), step("save"))),)


def see(
    book: Book,
    *events: Event,
    at: float = NOW,
    boot_id: str = "boot-1",
    rounds: int = 0,
    outcomes: Mapping[str, str] | None = None,
) -> Book:
    for record in sighted(
        book, events, rules=RULES, vm="vm", now=at, boot_id=boot_id, rounds=lambda _: rounds, outcomes=outcomes or {}
    ):
        book = book.with_(record)
    return book


def only(book: Book) -> Record:
    (record,) = book
    return record


def test_a_new_event_gets_the_plan_of_its_rule_for_good() -> None:
    record = only(see(Book(), event()))
    assert (record.key, record.rule, record.plan) == ("E1", "rest", ("drain", "save"))
    assert (record.seen_at, record.not_before, record.started_at) == (NOW, NOW + 900, None)


def test_an_event_of_nobody_here_is_remembered_without_a_plan() -> None:
    assert only(see(Book(), event(resources=("other",)))).plan == ()


def test_a_document_that_shows_nothing_new_changes_nothing() -> None:
    book = see(Book(), event())
    assert see(book, event(), at=NOW + 1) == book


def test_the_promised_time_is_remembered_when_the_wire_forgets_it_at_the_start() -> None:
    record = only(see(see(Book(), event()), event(left_s=None), at=NOW + 9))
    assert (record.not_before, record.started_at, record.event.status) == (NOW + 900, NOW + 9, "Started")


def test_an_event_that_is_no_longer_listed_is_gone_with_the_outcome_told() -> None:
    record = only(see(see(Book(), event()), at=NOW + 5, outcomes={"E1": "withdrawn"}))
    assert (record.gone_at, record.outcome) == (NOW + 5, "withdrawn")


@pytest.mark.parametrize(
    ("left_s", "boot_id", "kind", "expected"),
    [
        (900, "boot-1", "Reboot", "unknown"),
        (900, "boot-2", "Reboot", "finished"),
        (900, "boot-2", "Freeze", "unknown"),
        (None, "boot-1", "Freeze", "finished"),
    ],
)
def test_where_nobody_tells_the_outcome_the_start_and_the_boot_narrow_it(
    left_s: float | None, boot_id: str, kind: str, expected: str
) -> None:
    book = see(Book(), event(kind=kind, left_s=left_s))
    assert only(see(book, boot_id=boot_id)).outcome == expected


def test_an_event_listed_again_after_it_was_gone_is_a_record_of_its_own() -> None:
    book = see(see(Book(), event()), at=NOW + 5)
    again = see(book, event(), at=NOW + 6, rounds=1)
    assert [record.key for record in again] == ["E1", "E1#2"]
    assert see(again, event(), at=NOW + 7, rounds=2) == again


def test_ids_are_compared_without_case() -> None:
    book = see(Book(), event("aBc"))
    assert [record.key for record in see(book, event("AbC"))] == ["ABC"]


def test_several_events_are_remembered_in_the_order_of_the_document() -> None:
    book = see(Book(), event("B"), event("A"))
    assert [record.key for record in book] == ["B", "A"]
    assert [record.key for record in book.with_(replace(only(see(Book(), event("B"))), closed=True))] == ["A"]
