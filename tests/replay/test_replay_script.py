"""Replay scripts: the time, events and incarnation growth of each step, built from a recording."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.replay import RecordedAnswer, ReplayScript, UploadedRecording, build_replay_script
from forewarn.errors import Rejected
from forewarn.protocol.dates import http_date, iso_date
from forewarn.protocol.document import EventNotice, EventSource, Kind, NoticeStatus


def read(recording: UploadedRecording, **names: str) -> ReplayScript:
    return build_replay_script(recording, name="mine", names=names)


def instants(script: ReplayScript) -> list[float]:
    return [step.at_s for step in script.steps]


def only(script: ReplayScript, step: int = 0) -> EventNotice:
    (notice,) = script.steps[step].notices
    return notice


def test_the_clock_of_the_recorder_sets_the_pace(make: Any) -> None:
    """It is more precise than a Date header, which has whole seconds."""
    answers = [make.answer(at_s, incarnation=n) for n, at_s in enumerate((0.7, 1.2, 4.95))]
    assert instants(read(make.recording(*answers, ended_s=6.7))) == pytest.approx([0, 0.5, 4.25, 6])


def test_lab_time_that_was_skipped_is_part_of_the_pace(make: Any) -> None:
    """Spec §12: the time of a document is that of the server."""
    jumped = make.answer(2.0, make.event(), date=make.recorded_at + 900)
    after = make.answer(3.0, date=make.recorded_at + 901)
    recording = make.recording(make.answer(0.0), jumped, after, ended_s=4.0, ended_date=make.recorded_at + 902)
    assert instants(read(recording)) == [0, 900, 901, 902]


def test_the_clock_of_the_recorder_counts_if_the_server_has_no_date_or_one_that_goes_back(make: Any) -> None:
    for date in (None, make.recorded_at - 50):
        answers = [make.answer(0.0), make.answer(2.0, make.event(), date=date), make.answer(4.0, date=date)]
        assert instants(read(make.recording(*answers)))[:3] == [0, 2, 4]


def test_a_recording_without_an_end_ends_with_its_last_answer(make: Any) -> None:
    assert instants(read(make.recording(make.answer(0.0), make.answer(9.0, make.event())))) == [0, 9, 9]


def test_a_recording_of_one_answer_lasts_a_second(make: Any) -> None:
    assert read(make.recording(make.answer(3.0))).length_s == 1


def test_an_event_is_read_with_all_its_fields(make: Any) -> None:
    """Spec §4.2."""
    event = make.event(EventType="Freeze", Description="Host", EventSource="Platform", DurationInSeconds=9)
    notice = only(read(make.recording(make.answer(5.0, event))))
    assert notice == EventNotice(
        id=make.id,
        status=NoticeStatus.SCHEDULED,
        kind=Kind.FREEZE,
        resources=("mine",),
        not_before=895.0,
        description="Host",
        source=EventSource.PLATFORM,
        duration_s=9,
    )


def test_not_before_is_as_far_ahead_as_when_the_event_was_first_seen(make: Any) -> None:
    """Spec §4.2: it never changes while the event is scheduled, even if clocks differ."""
    event = make.event()
    answers = [
        make.answer(0.0, event),
        make.answer(9.6, event, make.event("B"), date=make.recorded_at + 9, incarnation=2),
    ]
    script = read(make.recording(*answers))
    assert {notice.not_before for notice in script.steps[1].notices if notice.id == make.id} == {900.0}


@pytest.mark.parametrize("write", [http_date, iso_date])
def test_the_preview_of_2017_is_read_with_its_underscores_and_dates(make: Any, write: Any) -> None:
    """Spec §3, §4.2."""
    event = {"EventId": make.id, "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["_theirs", "_other"]}
    old = make.answer(0.0, event | {"NotBefore": write(make.recorded_at + 900)})
    notice = only(read(make.recording(old, api_version="2017-03-01")))
    assert (notice.resources, notice.not_before, notice.duration_s) == (("mine", "other"), 900.0, -1)


def test_the_name_of_the_recorded_vm_and_mapped_names_are_replaced(make: Any) -> None:
    recording = make.recording(make.answer(0.0, make.event(Resources=["THEIRS", "Other", "third"])))
    assert only(read(recording, other="new")).resources == ("mine", "new", "third")
    assert only(read(recording, theirs="said")).resources == ("said", "Other", "third")


def test_a_name_that_no_event_has_cannot_be_replaced(make: Any) -> None:
    recording = make.recording(make.answer(0.0, make.event(Resources=["theirs", "b"])))
    with pytest.raises(Rejected, match=r"^no recorded event names VM 'c': those named are b, theirs$"):
        read(recording, c="x")


def test_the_incarnation_grows_as_recorded(make: Any) -> None:
    """Spec §4.2."""
    first, second = make.event(), make.event("B")
    answers = [
        make.answer(0.0, incarnation=8),
        make.answer(1.0, first, second, incarnation=10),
        make.answer(2.0, first, incarnation=13),
        make.answer(3.0, incarnation=14),
    ]
    assert [step.grows for step in read(make.recording(*answers)).steps] == [0, 2, 3, 1, 0]


def test_an_incarnation_that_went_back_in_the_recording_still_grows(make: Any) -> None:
    """Spec §4.2: other content needs another incarnation, and that of a lab never decreases."""
    answers = [make.answer(0.0, make.event(), incarnation=8), make.answer(1.0, incarnation=1)]
    assert [step.grows for step in read(make.recording(*answers)).steps] == [1, 1, 0]


def test_events_at_the_start_and_at_the_end_of_a_recording_count(make: Any) -> None:
    recording = make.recording(make.answer(0.0, make.event(), make.event("B"), incarnation=50))
    assert [step.grows for step in read(recording).steps] == [2, 2]


def test_an_error_replaces_a_document_and_changes_no_events(make: Any) -> None:
    """Spec §11."""
    gone = RecordedAnswer(at_s=1.0, status=410, content_type="text/plain", retry_after="7", body=b"gone")
    empty = RecordedAnswer(at_s=2.0, status=200)
    broken = RecordedAnswer(at_s=3.0)
    again = make.answer(4.0, make.event(), incarnation=2)
    steps = read(make.recording(make.answer(0.0, make.event(), incarnation=2), gone, empty, broken, again)).steps
    assert [step.instead and step.instead.status for step in steps] == [None, 410, 200, None, None, None]
    assert [step.instead is not None for step in steps] == [False, True, True, True, False, False]
    assert len({step.notices for step in steps[:5]}) == 1
    assert [step.grows for step in steps] == [1, 0, 0, 0, 0, 1]
    assert steps[1].instead is not None
    assert (steps[1].instead.retry_after, steps[1].instead.body) == ("7", b"gone")


def test_a_recording_that_no_api_version_knows_is_rejected_with_the_answer_number(make: Any) -> None:
    odd = make.recording(make.answer(0.0), make.answer(1.0, make.event(EventType="Teleport")))
    with pytest.raises(Rejected, match=r"^answer 2 of the recording lists event .* a 'Teleport' that is 'Scheduled'"):
        read(odd)
    with pytest.raises(Rejected, match=r"^answer 1 of the recording has status 777, which HTTP does not know"):
        read(make.recording(RecordedAnswer(at_s=0.0, status=777)))
    with pytest.raises(Rejected, match="made with api-version '2031-01-01': record with one of 2017-03-01, "):
        read(make.recording(make.answer(0.0), api_version="2031-01-01"))
