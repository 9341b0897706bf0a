"""What a change that was heard of makes of the book of events."""

from __future__ import annotations

import pytest

from forewarn.agent.event_tracking import record_after_change
from forewarn.agent.model import Event, RuleConfig
from forewarn.agent.records import EventRecord, OpenRecords
from forewarn.client import Change, Gone, Outcome, Scheduled, Started
from tests.agent.conftest import NOW, event, step

RULES = (RuleConfig(name="rest", steps=(step("drain"), step("save"))),)


def hear(book: OpenRecords, *changes: Change, at: float = NOW, rounds: int = 0) -> OpenRecords:
    for change in changes:
        record = record_after_change(
            book, change, rules=RULES, vm="vm", now=at, boot_id="boot-1", count_records=lambda _: rounds
        )
        book = book if record is None else book.with_record(record)
    return book


def scheduled(*events: Event) -> OpenRecords:
    return hear(OpenRecords(), *(Scheduled(event=each) for each in events))


def only(book: OpenRecords) -> EventRecord:
    (record,) = book
    return record


def test_a_new_event_gets_the_plan_of_its_rule_for_good() -> None:
    record = only(scheduled(event()))
    assert (record.key, record.rule, record.plan) == ("E1", "rest", ("drain", "save"))
    assert (record.seen_at, record.not_before, record.started_at) == (NOW, NOW + 900, None)


def test_an_event_of_nobody_here_is_remembered_without_a_plan() -> None:
    assert only(scheduled(event(resources=("other",)))).plan == ()


def test_an_event_first_heard_of_at_its_start_has_no_promise() -> None:
    record = only(hear(OpenRecords(), Started(event=event(left_s=None), first=True)))
    assert (record.not_before, record.started_at) == (None, NOW)


def test_the_promised_time_is_remembered_when_the_wire_forgets_it_at_the_start() -> None:
    record = only(hear(scheduled(event()), Started(event=event(left_s=None)), at=NOW + 9))
    assert (record.not_before, record.started_at, record.event.status) == (NOW + 900, NOW + 9, "Started")


@pytest.mark.parametrize("outcome", Outcome)
def test_an_event_is_gone_with_the_outcome_that_is_told(outcome: Outcome) -> None:
    record = only(hear(scheduled(event()), Gone(event=event(), outcome=outcome), at=NOW + 5))
    assert (record.gone_at, record.outcome) == (NOW + 5, outcome)


def test_an_event_that_was_seen_started_has_finished_whoever_cannot_tell() -> None:
    started = hear(OpenRecords(), Started(event=event(left_s=None)))
    assert only(hear(started, Gone(event=event(), outcome=Outcome.UNKNOWN))).outcome == "finished"


def test_a_change_that_is_told_again_changes_nothing() -> None:
    once = scheduled(event())
    assert hear(once, Scheduled(event=event()), at=NOW + 1) == once
    started = hear(once, Started(event=event(left_s=None)))
    assert hear(started, Started(event=event(left_s=None)), Scheduled(event=event()), at=NOW + 1) == started
    gone = hear(once, Gone(event=event()))
    assert hear(gone, Gone(event=event()), at=NOW + 1) == gone
    assert hear(OpenRecords(), Gone(event=event())) == OpenRecords()


def test_an_event_listed_again_after_it_was_gone_is_a_record_of_its_own() -> None:
    gone = hear(scheduled(event()), Gone(event=event()))
    again = hear(gone, Scheduled(event=event()), at=NOW + 6, rounds=1)
    assert [record.key for record in again] == ["E1", "E1#2"]
    assert hear(again, Scheduled(event=event()), at=NOW + 7, rounds=2) == again


def test_ids_are_compared_without_case() -> None:
    book = scheduled(event("aBc"))
    assert [record.key for record in hear(book, Scheduled(event=event("AbC")))] == ["ABC"]


def test_several_events_are_remembered_in_the_order_in_which_they_were_told() -> None:
    assert [record.key for record in scheduled(event("B"), event("A"))] == ["B", "A"]
