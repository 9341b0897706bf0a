"""The recorder keeps every answer that differs from the one before, and every error (spec §11)."""

from __future__ import annotations

from typing import Any

import pytest

from forewarn.client import Unreachable
from forewarn.client.endpoint import parse_endpoint
from forewarn.client.recording import EndpointRecorder, RecordedResponse
from tests.support.scripted_server import ScriptedReply, ScriptedServer, json_reply

DATE = ("Date", "Mon, 19 Sep 2016 18:14:47 GMT")
EMPTY = json_reply({"DocumentIncarnation": 1, "Events": []}, headers=(DATE,))
BUSY = json_reply({"DocumentIncarnation": 2, "Events": [{"EventId": "X"}]}, headers=(DATE,))


class FakeTime:
    """A clock that advances only by `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def recorder_of(server: ScriptedServer, **options: Any) -> EndpointRecorder:
    time = FakeTime()
    return EndpointRecorder(parse_endpoint(server.url), clock=lambda: time.now, sleep=time.sleep, **options)


def record(*replies: ScriptedReply, polls: int) -> list[RecordedResponse]:
    """Poll this many times, once per second, and return the recorded answers."""
    with ScriptedServer(*replies) as server:
        return list(recorder_of(server, for_s=polls - 0.5).answers())


def test_an_answer_is_kept_once_with_its_offset_and_the_servers_date() -> None:
    first, second = record(EMPTY, EMPTY, EMPTY, BUSY, polls=5)
    assert (first.at_s, second.at_s) == (0.0, 3.0)
    assert (first.status, first.body, first.date) == (200, EMPTY.body, 1474308887.0)
    assert second.body == BUSY.body


def test_an_answer_that_comes_again_after_another_is_kept_again() -> None:
    assert [answer.body for answer in record(EMPTY, BUSY, EMPTY, polls=4)] == [EMPTY.body, BUSY.body, EMPTY.body]


def test_every_error_is_kept_with_its_headers_and_body() -> None:
    """Spec §11: empty bodies, 410, 429, 500, resets."""
    throttled = ScriptedReply(
        status=429, body=b"Throttle Result", headers=(("Retry-After", "2"), ("Content-Type", "text/x"))
    )
    faults = (
        ScriptedReply(status=410),
        throttled,
        ScriptedReply(),
        ScriptedReply(status=500, body=b"\xff"),
        ScriptedReply(resets=True),
    )
    kept = record(*faults, EMPTY, polls=6)
    assert [answer.status for answer in kept] == [410, 429, 200, 500, None, 200]
    assert (kept[1].retry_after, kept[1].content_type, kept[1].body) == ("2", "text/x", b"Throttle Result")
    assert (kept[2].body, kept[3].body) == (b"", b"\xff")
    assert "broke off its answer" in kept[4].broke


def test_an_error_that_persists_is_kept_once() -> None:
    assert [answer.status for answer in record(EMPTY, ScriptedReply(resets=True), polls=5)] == [200, None]
    assert [answer.status for answer in record(EMPTY, ScriptedReply(status=410), polls=5)] == [200, 410]


def test_the_recorder_asks_an_endpoint_that_can_to_hold_its_polls() -> None:
    """Spec §4.4; the last poll is not held past the end of the recording."""
    held = ScriptedReply(status=304, headers=(("Preference-Applied", "wait=9"),))
    tagged = json_reply({"DocumentIncarnation": 1, "Events": []}, headers=(("ETag", '"1-1"'), DATE))
    with ScriptedServer(tagged, held, BUSY, EMPTY) as server:
        recorder = recorder_of(server, for_s=2.5)
        kept = list(recorder.answers())
    assert [answer.body for answer in kept] == [tagged.body, BUSY.body, EMPTY.body]
    assert server.requests[0].header_values("prefer") == ()
    assert [request.header_values("prefer") for request in server.requests[1:3]] == [("wait=3",), ("wait=3",)]
    assert server.requests[1].header_values("if-none-match") == ('"1-1"',)
    assert recorder.end().polls == len(server.requests)


def test_the_recorder_asks_for_the_whole_document_after_an_error() -> None:
    tagged = json_reply({"DocumentIncarnation": 1, "Events": []}, headers=(("ETag", '"1-1"'),))
    with ScriptedServer(tagged, ScriptedReply(status=500), tagged) as server:
        list(recorder_of(server, for_s=2.5).answers())
    assert [request.header_values("if-none-match") for request in server.requests[:3]] == [(), ('"1-1"',), ()]


def test_the_end_of_a_recording_has_its_length_and_number_of_polls() -> None:
    with ScriptedServer(EMPTY) as server:
        recorder = recorder_of(server, for_s=10.0, every_s=2.0)
        list(recorder.answers())
    end = recorder.end()
    assert (end.at_s, end.date, end.polls) == (10.0, 1474308887.0, 5)


def test_an_endpoint_that_never_answers_raises_and_is_not_recorded() -> None:
    with ScriptedServer(EMPTY) as server:
        pass
    with pytest.raises(Unreachable, match="nothing answers"):
        list(recorder_of(server, for_s=1.0).answers())


def test_an_endpoint_that_stops_answering_is_recorded() -> None:
    with ScriptedServer(EMPTY) as server:
        answers = recorder_of(server, for_s=3.0).answers()
        next(answers)
    assert [answer.status for answer in answers] == [None]
