"""What a recording is read as: when each answer was given, what it listed, and by how much the incarnation grew."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.core.replay_script import RecordedAnswer, ReplayScript, UploadedRecording, build_replay_script
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


def test_the_recorders_clock_gives_the_pace(make: Any) -> None:
    """It is finer than a Date, which has whole seconds."""
    answers = [make.taken(at_s, incarnation=n) for n, at_s in enumerate((0.7, 1.2, 4.95))]
    assert instants(read(make.recording(*answers, ended_s=6.7))) == pytest.approx([0, 0.5, 4.25, 6])


def test_time_that_a_lab_skipped_was_skipped(make: Any) -> None:
    """Spec §12: a document's time is the server's."""
    jumped = make.taken(2.0, make.event(), date=make.then + 900)
    after = make.taken(3.0, date=make.then + 901)
    recording = make.recording(make.taken(0.0), jumped, after, ended_s=4.0, ended_date=make.then + 902)
    assert instants(read(recording)) == [0, 900, 901, 902]


def test_a_server_that_tells_no_time_or_goes_back_is_followed_by_the_recorders_clock(make: Any) -> None:
    for date in (None, make.then - 50):
        answers = [make.taken(0.0), make.taken(2.0, make.event(), date=date), make.taken(4.0, date=date)]
        assert instants(read(make.recording(*answers)))[:3] == [0, 2, 4]


def test_what_was_cut_off_ends_with_its_last_answer(make: Any) -> None:
    assert instants(read(make.recording(make.taken(0.0), make.taken(9.0, make.event())))) == [0, 9, 9]


def test_a_story_of_one_moment_lasts_a_second(make: Any) -> None:
    assert read(make.recording(make.taken(3.0))).length_s == 1


def test_an_event_is_read_with_all_its_fields(make: Any) -> None:
    """Spec §4.2."""
    event = make.event(EventType="Freeze", Description="Host", EventSource="Platform", DurationInSeconds=9)
    notice = only(read(make.recording(make.taken(5.0, event))))
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


def test_not_before_is_as_far_ahead_as_when_the_event_was_first_met(make: Any) -> None:
    """Spec §4.2: it never changes while the event is scheduled, whatever the clocks do."""
    event = make.event()
    answers = [make.taken(0.0, event), make.taken(9.6, event, make.event("B"), date=make.then + 9, incarnation=2)]
    script = read(make.recording(*answers))
    assert {notice.not_before for notice in script.steps[1].notices if notice.id == make.id} == {900.0}


@pytest.mark.parametrize("write", [http_date, iso_date])
def test_the_preview_of_2017_is_read_with_its_underscores_and_dates(make: Any, write: Any) -> None:
    """Spec §3, §4.2."""
    event = {"EventId": make.id, "EventStatus": "Scheduled", "EventType": "Freeze", "Resources": ["_theirs", "_other"]}
    old = make.taken(0.0, event | {"NotBefore": write(make.then + 900)})
    notice = only(read(make.recording(old, api_version="2017-03-01")))
    assert (notice.resources, notice.not_before, notice.duration_s) == (("mine", "other"), 900.0, -1)


def test_names_are_replaced_the_recorded_vms_own_and_those_that_are_said(make: Any) -> None:
    recording = make.recording(make.taken(0.0, make.event(Resources=["THEIRS", "Other", "third"])))
    assert only(read(recording, other="new")).resources == ("mine", "new", "third")
    assert only(read(recording, theirs="said")).resources == ("said", "Other", "third")


def test_a_name_that_no_event_has_cannot_be_replaced(make: Any) -> None:
    recording = make.recording(make.taken(0.0, make.event(Resources=["theirs", "b"])))
    with pytest.raises(Rejected, match=r"^no recorded event names VM 'c': those named are b, theirs$"):
        read(recording, c="x")


def test_the_incarnation_grows_as_it_was_recorded(make: Any) -> None:
    """Spec §4.2."""
    first, second = make.event(), make.event("B")
    answers = [
        make.taken(0.0, incarnation=8),
        make.taken(1.0, first, second, incarnation=10),
        make.taken(2.0, first, incarnation=13),
        make.taken(3.0, incarnation=14),
    ]
    assert [step.grows for step in read(make.recording(*answers)).steps] == [0, 2, 3, 1, 0]


def test_an_incarnation_that_went_back_still_grows(make: Any) -> None:
    """Spec §4.2: same number, same content; so it must be another number, and a lab's never goes back."""
    answers = [make.taken(0.0, make.event(), incarnation=8), make.taken(1.0, incarnation=1)]
    assert [step.grows for step in read(make.recording(*answers)).steps] == [1, 1, 0]


def test_a_story_that_begins_or_ends_amid_events_counts_them(make: Any) -> None:
    recording = make.recording(make.taken(0.0, make.event(), make.event("B"), incarnation=50))
    assert [step.grows for step in read(recording).steps] == [2, 2]


def test_what_is_no_document_stands_in_its_place_and_changes_no_list(make: Any) -> None:
    """Spec §11."""
    gone = RecordedAnswer(at_s=1.0, status=410, content_type="text/plain", retry_after="7", body=b"gone")
    empty = RecordedAnswer(at_s=2.0, status=200)
    broken = RecordedAnswer(at_s=3.0)
    again = make.taken(4.0, make.event(), incarnation=2)
    steps = read(make.recording(make.taken(0.0, make.event(), incarnation=2), gone, empty, broken, again)).steps
    assert [step.instead and step.instead.status for step in steps] == [None, 410, 200, None, None, None]
    assert [step.instead is not None for step in steps] == [False, True, True, True, False, False]
    assert len({step.notices for step in steps[:5]}) == 1
    assert [step.grows for step in steps] == [1, 0, 0, 0, 0, 1]
    assert steps[1].instead is not None
    assert (steps[1].instead.retry_after, steps[1].instead.body) == ("7", b"gone")


def test_what_no_version_knows_is_refused_with_its_answer(make: Any) -> None:
    odd = make.recording(make.taken(0.0), make.taken(1.0, make.event(EventType="Teleport")))
    with pytest.raises(Rejected, match=r"^answer 2 of the recording lists event .* a 'Teleport' that is 'Scheduled'"):
        read(odd)
    with pytest.raises(Rejected, match=r"^answer 1 of the recording has status 777, which HTTP does not know"):
        read(make.recording(RecordedAnswer(at_s=0.0, status=777)))
    with pytest.raises(Rejected, match="made with api-version '2031-01-01': record with one of 2017-03-01, "):
        read(make.recording(make.taken(0.0), api_version="2031-01-01"))
