"""What was measured did happen: a row is measured to its end only where it can show that."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from threading import Event

import pytest

from bench.approval import must_be_approved, started_of
from bench.contest import Contender, must_keep_connections, must_make_connections, size_of
from bench.crowd import Round
from bench.mixed import Pace, changes, incarnation, must_be_mixed
from bench.portal import must_keep_up, must_show
from bench.process import connections_made
from bench.reaction import reaction_s
from bench.subject import Subject, series_in
from bench.two_workers import must_share
from bench.wrk import Load
from tests.support.service_process import HttpAnswer, eventually

GOOD = b'HTTP/1.1 200 OK\r\nETag: "1-2"\r\nContent-Length: 0\r\n\r\n'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
PAGE = """# HELP forewarn_long_polls_waiting Requests that are held.
forewarn_long_polls_waiting 250.0
forewarn_connections 200.0
forewarn_requests_total{of="approval",outcome="200"} 3.0
forewarn_requests_total{of="approval",outcome="4xx"} 1.0
"""


class Told(Subject):
    """A service that is never started, and tells always the same of itself."""

    def _fetch(self, method: str, target: str, payload: str | None = None) -> bytes:
        return PAGE.encode() if target == "/metrics" else b'{"counts":{"vms":10}}'


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
    assert incarnation(HttpAnswer(200, b'{"DocumentIncarnation":7,"Events":[]}', {})) == 7
    with pytest.raises(AssertionError, match="only 0 of 40 changes were seen"):
        Pace(count=40, seconds=4).must_be_kept(0)


@pytest.mark.parametrize("approvals", [0, 500, 2000], ids=["none", "half", "twice as many"])
def test_one_request_in_a_hundred_must_be_an_approval(approvals: int) -> None:
    must_be_mixed(100_000, 1000)
    with pytest.raises(AssertionError, match=f"{approvals} of 100000 requests were approvals"):
        must_be_mixed(100_000, approvals)


ON_WIRE = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 4\r\n\r\nbody"
SIZE = size_of(HttpAnswer(200, b"body", {"ETag": "x", "Content-Length": "4"}))


def ten_polls(url: str, size: int = SIZE) -> Load:
    """A load that this process is busy with for a while."""
    begin = time.process_time()
    while time.process_time() - begin < 0.05:
        pass
    return Load(requests=10, duration_us=10, bytes=10 * size, refused=0, broken=0, p50_us=1, p99_us=1)


def test_answers_must_be_as_large_as_the_one_that_was_looked_at() -> None:
    assert len(ON_WIRE) == SIZE
    measured = Contender(os.getpid(), "http://here", SIZE)
    measured.run(ten_polls)
    assert (len(measured.rates), len(measured.costs), len(measured.connections)) == (1, 1, 1)
    with pytest.raises(AssertionError, match="did not always answer in full"):
        measured.run(lambda url: ten_polls(url, SIZE - len(b"body")))


def test_a_server_that_does_nothing_is_not_the_one_that_answers() -> None:
    with subprocess.Popen(["sleep", "60"]) as idle:
        try:
            with pytest.raises(AssertionError, match=f"process {idle.pid} did nothing"):
                Contender(idle.pid, "http://here").run(ten_polls)
        finally:
            idle.kill()


def test_connections_of_this_machine_are_counted() -> None:
    before = connections_made()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert connections_made() > before


def test_polls_over_kept_connections_are_told_from_a_connection_per_poll() -> None:
    kept, made = (Contender(1, "http://here", connections=per_poll) for per_poll in ([0.001, 0.01], [1.0, 0.999]))
    must_keep_connections([kept])
    must_make_connections([made])
    with pytest.raises(AssertionError, match=r"1\.00 connections a poll, not over kept ones"):
        must_keep_connections([kept, made])
    with pytest.raises(AssertionError, match=r"0\.00 connections a poll, not one for each"):
        must_make_connections([made, kept])


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ({7: 5.0, 8: 1.01}, "a worker had nothing to do"),
        ({7: 5.0, 9: 3.0}, "workers [7, 8] began, and [7, 9] ended"),
    ],
    ids=["one does it all", "one is new"],
)
def test_two_workers_are_two_that_work(after: dict[int, float], why: str) -> None:
    before = {7: 1.0, 8: 1.0}
    must_share(2, before, {7: 3.0, 8: 2.0})
    with pytest.raises(AssertionError, match=re.escape(why)):
        must_share(2, before, after)
    with pytest.raises(AssertionError, match="0 workers began where 2 were wanted"):
        must_share(2, {}, {})


def shown(*events: tuple[str, float | None, float | None]) -> list[dict[str, object]]:
    return [{"id": name, "approved_at": approved, "started_at": started} for name, approved, started in events]


def test_an_approval_counts_if_the_service_knows_it_when_it_comes_back() -> None:
    events = shown(("a", 1.0, 2.0), ("b", 1.5, None), ("c", None, None))
    assert started_of(events) == 1
    must_be_approved(["a", "b"], events)
    with pytest.raises(AssertionError, match="2 of 3 approvals were forgotten"):
        must_be_approved(["a", "c", "d"], events)


def test_a_fleet_is_as_large_as_the_figure_says(told: Told) -> None:
    told.must_serve(10)
    with pytest.raises(AssertionError, match="10 VMs where 100000 were wanted"):
        told.must_serve(100_000)


def test_nobody_reacts_to_what_is_not_there_yet() -> None:
    assert reaction_s(10.0, 10.25) == 0.25
    with pytest.raises(AssertionError, match="the event was published at"):
        reaction_s(10.0, 9.99)


def test_a_view_without_vms_is_no_view() -> None:
    must_show(100_000, [{"vms": 200}, {"vms": 100}])
    must_show(5, [{"vms": 5}])
    with pytest.raises(AssertionError, match="a view of 100000 VMs showed 0 of them"):
        must_show(100_000, [{"vms": 200}, {"vms": 0}])


@pytest.mark.parametrize(("heard", "drawn"), [(0, 0), (600, 700), (700, 600)])
def test_a_page_that_misses_changes_has_no_longest_frame(heard: int, drawn: int) -> None:
    good = {"for_s": 14, "heard": 630, "drawn": 630}
    must_keep_up([good])
    with pytest.raises(AssertionError, match=f"for 14 s {heard} were heard, {drawn} drawn"):
        must_keep_up([good, {"for_s": 14, "heard": heard, "drawn": drawn}])
