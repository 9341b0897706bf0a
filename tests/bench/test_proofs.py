"""What was measured did happen: a row is measured to its end only where it can show that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pytest
from bench.crowd import Round
from bench.mixed import Pace, changes, incarnation, must_be_mixed
from bench.subject import Subject, series_in

from forewarn.testing.process import Answer, eventually

GOOD = b'HTTP/1.1 200 OK\r\nETag: "1-2"\r\nContent-Length: 0\r\n\r\n'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
PAGE = """# HELP forewarn_long_polls_waiting Requests that are held.
forewarn_long_polls_waiting 250.0
forewarn_connections 200.0
forewarn_requests_total{of="approval",outcome="200"} 3.0
forewarn_requests_total{of="approval",outcome="4xx"} 1.0
"""


class Told(Subject):
    """A service that is never started, and tells Prometheus always the same."""

    def _fetch(self, method: str, target: str, payload: str | None = None) -> bytes:
        return PAGE.encode()


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(data=tmp_path)


def heard(*answers: bytes, count: int | None = None) -> Round:
    """A round in which these were heard."""

    async def hear() -> Round:
        asking = Round(len(answers) if count is None else count)
        for answer in answers:
            asking.hear(answer)
        await asking.all()
        return asking

    return asyncio.run(hear())


@pytest.mark.parametrize("bad", [BUSY, b""], ids=["refused", "cut off"])
@pytest.mark.parametrize("place", range(3))
def test_one_bad_answer_among_many_ends_a_round_wherever_it_comes(bad: bytes, place: int) -> None:
    answers = [GOOD, GOOD, GOOD]
    answers[place] = bad
    with pytest.raises(AssertionError, match="a guest was answered"):
        heard(*answers)


def test_a_bad_answer_ends_a_round_before_the_others_are_there() -> None:
    with pytest.raises(AssertionError, match="503"):
        heard(GOOD, BUSY, count=10_000)


def test_a_long_poll_that_is_answered_before_the_change_is_no_long_poll() -> None:
    with pytest.raises(AssertionError, match="2 of 2 guests were answered before anything changed"):
        heard(GOOD, GOOD).must_wait()


def test_whoever_is_given_the_document_that_they_knew_was_told_nothing() -> None:
    asked = heard(GOOD, GOOD.replace(b"1-2", b"1-3"))
    asked.must_be_news('"1-1"')
    with pytest.raises(AssertionError, match='1 of 2 guests were given "1-2"'):
        asked.must_be_news('"1-2"')


def test_a_series_is_read_by_its_name_and_labels() -> None:
    assert series_in(PAGE, 'forewarn_requests_total{of="approval",outcome="200"}') == 3
    with pytest.raises(LookupError, match="tells nothing of forewarn_long_polls"):
        series_in(PAGE, "forewarn_long_polls")


def test_as_many_must_wait_as_the_service_holds(told: Told) -> None:
    told.must_hold(250)
    with pytest.raises(AssertionError, match="holds 250 requests where 251 wait"):
        told.must_hold(251)


def test_as_many_connections_must_be_open_as_were_made(told: Told) -> None:
    told.must_have(200)
    with pytest.raises(AssertionError, match="200 connections are open where 5000 were made"):
        told.must_have(5000)


class Changed(Subject):
    """A service that is never started, and refuses whatever comes after so many calls."""

    def __init__(self, *, data: Path, calls: int) -> None:
        super().__init__(data=data)
        self.pending: list[str] = []
        self.has_refused = Event()
        self._calls = calls

    def schedule(self, *vms: str) -> list[str]:
        self._call()
        self.pending.append("AB-12")
        return self.pending

    def withdraw(self, event_id: str) -> None:
        self._call()
        self.pending.remove(event_id)

    def _call(self) -> None:
        self._calls -= 1
        if self._calls < 0:
            self.has_refused.set()
            raise AssertionError("409: refused")


def test_changes_go_on_until_they_are_stopped_and_leave_nothing_pending(tmp_path: Path) -> None:
    service = Changed(data=tmp_path, calls=1_000_000)
    with changes(service) as pace:
        eventually(lambda: pace.count >= 3)
    assert pace.count >= 4
    assert pace.seconds > 0
    assert not service.pending


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_change_that_is_refused_is_no_mixed_load(tmp_path: Path, calls: int) -> None:
    service = Changed(data=tmp_path, calls=calls)
    with pytest.raises(AssertionError, match="refused"), changes(service):
        assert service.has_refused.wait(30)


def test_nine_changes_a_second_are_enough_and_fewer_are_not() -> None:
    Pace(count=36, seconds=4).must_be_kept(36)
    with pytest.raises(AssertionError, match=r"only 8\.8 changes a second"):
        Pace(count=35, seconds=4).must_be_kept(35)


def test_changes_must_be_seen_in_the_document_that_is_polled() -> None:
    assert incarnation(Answer(200, b'{"DocumentIncarnation":7,"Events":[]}', {})) == 7
    with pytest.raises(AssertionError, match="only 0 of 40 changes were seen"):
        Pace(count=40, seconds=4).must_be_kept(0)


@pytest.mark.parametrize("approvals", [0, 500, 2000], ids=["none", "half", "twice as many"])
def test_one_request_in_a_hundred_must_be_an_approval(approvals: int) -> None:
    must_be_mixed(100_000, 1000)
    with pytest.raises(AssertionError, match=f"{approvals} of 100000 requests were approvals"):
        must_be_mixed(100_000, approvals)
