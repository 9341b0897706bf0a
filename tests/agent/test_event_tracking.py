"""How a change from the endpoint changes the open records."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.agent.event_tracking import records_after_changes
from forewarn.agent.model import Event, EventRecord, OpenRecords, RuleConfig
from forewarn.client import Change, Gone, Outcome, Scheduled, Started
from forewarn.client.events import event_key
from tests.agent.conftest import NOW, event, step

RULES = (RuleConfig(name="rest", steps=(step("drain"), step("save"))),)


def records_after(open_records: OpenRecords, *changes: Change, at: float = NOW, earlier: int = 0) -> OpenRecords:
    """The records after these changes, one by one; they must be the same if the changes come together."""
    arguments: dict[str, Any] = {"rules": RULES, "vm": "vm", "now": at, "boot_id": "boot-1"}
    together = records_after_changes(open_records, changes, count_records=lambda _: earlier, **arguments)
    one_by_one, created = open_records, list[str]()

    def count_records(event_id: str) -> int:
        return earlier + created.count(event_id)

    for change in changes:
        keys = {record.key for record in one_by_one}
        records = records_after_changes(one_by_one, [change], count_records=count_records, **arguments)
        created += [event_key(record.event) for record in records if record.key not in keys]
        one_by_one = one_by_one.with_records(*records)
    assert open_records.with_records(*together) == one_by_one
    return one_by_one


def scheduled(*events: Event) -> OpenRecords:
    return records_after(OpenRecords(), *(Scheduled(event=each) for each in events))


def only(open_records: OpenRecords) -> EventRecord:
    (record,) = open_records
    return record


def test_a_new_event_gets_the_steps_of_its_rule_permanently() -> None:
    record = only(scheduled(event()))
    assert (record.key, record.rule, record.plan) == ("E1", "rest", ("drain", "save"))
    assert (record.seen_at, record.not_before, record.started_at) == (NOW, NOW + 900, None)


def test_an_event_of_other_vms_is_recorded_without_steps() -> None:
    assert only(scheduled(event(resources=("other",)))).plan == ()


def test_an_event_first_seen_started_has_no_announced_time() -> None:
    record = only(records_after(OpenRecords(), Started(event=event(left_s=None), first=True)))
    assert (record.not_before, record.started_at) == (None, NOW)


def test_the_announced_time_is_kept_when_the_document_drops_it_at_the_start() -> None:
    record = only(records_after(scheduled(event()), Started(event=event(left_s=None)), at=NOW + 9))
    assert (record.not_before, record.started_at, record.event.status) == (NOW + 900, NOW + 9, "Started")


@pytest.mark.parametrize("later_s", [-0.5, 0.0])
def test_an_event_starts_no_earlier_than_it_was_seen_although_the_servers_time_went_back(later_s: float) -> None:
    record = only(records_after(scheduled(event()), Started(event=event(left_s=None)), at=NOW + later_s))
    assert (record.not_before, record.started_at) == (NOW + 900, NOW)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_event_that_is_gone_keeps_the_outcome_of_the_change(outcome: Outcome) -> None:
    record = only(records_after(scheduled(event()), Gone(event=event(), outcome=outcome), at=NOW + 5))
    assert (record.gone_at, record.outcome) == (NOW + 5, outcome)


def test_an_event_that_was_seen_started_has_finished_even_if_the_outcome_is_unknown() -> None:
    started = records_after(OpenRecords(), Started(event=event(left_s=None)))
    assert only(records_after(started, Gone(event=event(), outcome=Outcome.UNKNOWN))).outcome == "finished"


def test_a_repeated_change_has_no_effect() -> None:
    once = scheduled(event())
    assert records_after(once, Scheduled(event=event()), at=NOW + 1) == once
    started = records_after(once, Started(event=event(left_s=None)))
    assert records_after(started, Started(event=event(left_s=None)), Scheduled(event=event()), at=NOW + 1) == started
    gone = records_after(once, Gone(event=event()))
    assert records_after(gone, Gone(event=event()), at=NOW + 1) == gone
    assert records_after(OpenRecords(), Gone(event=event())) == OpenRecords()


def test_an_event_listed_again_after_it_was_gone_gets_a_new_record() -> None:
    gone = records_after(scheduled(event()), Gone(event=event()))
    again = records_after(gone, Scheduled(event=event()), at=NOW + 6, earlier=1)
    assert [record.key for record in again] == ["E1", "E1#2"]
    assert records_after(again, Scheduled(event=event()), at=NOW + 7, earlier=2) == again


def test_ids_are_compared_without_case() -> None:
    open_records = scheduled(event("aBc"))
    assert [record.key for record in records_after(open_records, Scheduled(event=event("AbC")))] == ["ABC"]


def test_events_are_recorded_in_the_order_of_their_changes() -> None:
    assert [record.key for record in scheduled(event("B"), event("A"))] == ["B", "A"]


def test_an_event_that_is_gone_and_comes_again_within_the_same_changes_gets_a_second_record() -> None:
    changes = (Scheduled(event=event()), Gone(event=event()), Scheduled(event=event()))
    gone, again = records_after(OpenRecords(), *changes)
    assert (gone.key, gone.gone_at, again.key, again.gone_at) == ("E1", NOW, "E1#2", None)
