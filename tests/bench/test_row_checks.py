"""Each row checks that what it measures has really happened."""

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

from bench.approval import check_approved, count_started
from bench.clients import ResponseBatch
from bench.comparison import MeasuredServer, check_connection_per_poll, check_connections_kept, response_size
from bench.mixed import ChangeRate, changes, check_mix, incarnation
from bench.portal import check_changes_drawn, check_refreshed, check_views
from bench.process import connections_made
from bench.reaction import reaction_s
from bench.service import BenchService, metric_value
from bench.two_workers import check_workers_shared
from bench.wrk import Load
from tests.support.service_process import HttpAnswer, eventually

GOOD = b'HTTP/1.1 200 OK\r\nETag: "1-2"\r\nContent-Length: 0\r\n\r\n'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
PAGE = """# HELP forewarn_long_polls_waiting Requests that are held.
forewarn_long_polls_waiting 250.0
forewarn_connections 200.0
forewarn_requests_total{route="approval",code="200"} 3.0
forewarn_requests_total{route="approval",code="4xx"} 1.0
"""


class FakeService(BenchService):
    """A service that is never started and always has the same metrics."""

    def _fetch(self, method: str, target: str, payload: str | None = None) -> bytes:
        return PAGE.encode() if target == "/metrics" else b'{"counts":{"vms":10}}'


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(data=tmp_path)


def batch_of(*responses: bytes, count: int | None = None) -> ResponseBatch:
    """A batch that received these responses."""

    async def receive() -> ResponseBatch:
        batch = ResponseBatch(len(responses) if count is None else count)
        for response in responses:
            batch.add(response)
        await batch.wait()
        return batch

    return asyncio.run(receive())


@pytest.mark.parametrize("bad", [BUSY, b""], ids=["refused", "cut off"])
@pytest.mark.parametrize("position", range(3))
def test_one_bad_response_at_any_position_ends_a_batch(bad: bytes, position: int) -> None:
    responses = [GOOD, GOOD, GOOD]
    responses[position] = bad
    with pytest.raises(AssertionError, match="a client got"):
        batch_of(*responses)


def test_a_bad_response_ends_a_batch_before_the_others_arrive() -> None:
    with pytest.raises(AssertionError, match="503"):
        batch_of(GOOD, BUSY, count=10_000)


def test_a_long_poll_must_not_be_answered_before_the_change() -> None:
    with pytest.raises(AssertionError, match="2 of 2 clients were answered before anything changed"):
        batch_of(GOOD, GOOD).check_none_answered()


def test_a_client_must_get_a_document_that_it_did_not_have() -> None:
    batch = batch_of(GOOD, GOOD.replace(b"1-2", b"1-3"))
    batch.check_changed('"1-1"')
    with pytest.raises(AssertionError, match='1 of 2 clients got "1-2"'):
        batch.check_changed('"1-2"')


def test_a_metric_is_read_by_its_name_and_labels() -> None:
    assert metric_value(PAGE, 'forewarn_requests_total{route="approval",code="200"}') == 3
    with pytest.raises(LookupError, match="has no metric forewarn_long_polls"):
        metric_value(PAGE, "forewarn_long_polls")


def test_all_long_polls_must_be_held(service: FakeService) -> None:
    service.check_held(250)
    with pytest.raises(AssertionError, match="holds 250 long polls, not 251"):
        service.check_held(251)


def test_all_connections_must_be_open(service: FakeService) -> None:
    service.check_connections(200)
    with pytest.raises(AssertionError, match="200 connections are open, not 5000"):
        service.check_connections(5000)


class FailingService(BenchService):
    """A service that is never started and refuses all calls after the first `calls`."""

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


def test_changes_stop_with_the_block_and_leave_nothing_pending(tmp_path: Path) -> None:
    service = FailingService(data=tmp_path, calls=1_000_000)
    with changes(service) as change_rate:
        eventually(lambda: change_rate.count >= 3)
    assert change_rate.count >= 4
    assert change_rate.seconds > 0
    assert not service.pending


@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_refused_change_fails_the_mixed_load(tmp_path: Path, calls: int) -> None:
    service = FailingService(data=tmp_path, calls=calls)
    with pytest.raises(AssertionError, match="refused"), changes(service):
        assert service.has_refused.wait(30)


def test_at_least_nine_changes_a_second_are_needed() -> None:
    ChangeRate(count=36, seconds=4).check(36)
    with pytest.raises(AssertionError, match=r"only 8\.8 changes a second"):
        ChangeRate(count=35, seconds=4).check(35)


def test_all_changes_must_be_published() -> None:
    assert incarnation(HttpAnswer(200, b'{"DocumentIncarnation":7,"Events":[]}', {})) == 7
    with pytest.raises(AssertionError, match="only 0 of 40 changes were published"):
        ChangeRate(count=40, seconds=4).check(0)


@pytest.mark.parametrize("approvals", [0, 500, 2000], ids=["none", "half", "twice as many"])
def test_one_request_in_a_hundred_must_be_an_approval(approvals: int) -> None:
    check_mix(100_000, 1000)
    with pytest.raises(AssertionError, match=f"{approvals} of 100000 requests were approvals"):
        check_mix(100_000, approvals)


ON_WIRE = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 4\r\n\r\nbody"
SIZE = response_size(HttpAnswer(200, b"body", {"ETag": "x", "Content-Length": "4"}))


def ten_polls(url: str, size: int = SIZE) -> Load:
    """A load that this process is busy with for a while."""
    begin = time.process_time()
    while time.process_time() - begin < 0.05:
        pass
    return Load(requests=10, duration_us=10, bytes=10 * size, refused=0, broken=0, p50_us=1, p99_us=1)


def test_responses_must_be_as_large_as_the_sample() -> None:
    assert len(ON_WIRE) == SIZE
    measured = MeasuredServer(os.getpid(), "http://here", SIZE)
    measured.run(ten_polls)
    assert (len(measured.rates), len(measured.costs), len(measured.connections)) == (1, 1, 1)
    with pytest.raises(AssertionError, match="sent incomplete responses"):
        measured.run(lambda url: ten_polls(url, SIZE - len(b"body")))


def test_a_server_under_load_must_use_cpu() -> None:
    with subprocess.Popen(["sleep", "60"]) as idle:
        try:
            with pytest.raises(AssertionError, match=f"process {idle.pid} did nothing"):
                MeasuredServer(idle.pid, "http://here").run(ten_polls)
        finally:
            idle.kill()


def test_new_connections_of_this_machine_are_counted() -> None:
    before = connections_made()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert connections_made() > before


def test_keep_alive_and_a_connection_per_poll_are_distinguished() -> None:
    kept, made = (MeasuredServer(1, "http://here", connections=per_poll) for per_poll in ([0.001, 0.01], [1.0, 0.999]))
    check_connections_kept([kept])
    check_connection_per_poll([made])
    with pytest.raises(AssertionError, match=r"1\.00 connections per poll, so they were not kept open"):
        check_connections_kept([kept, made])
    with pytest.raises(AssertionError, match=r"0\.00 connections per poll, not one for each"):
        check_connection_per_poll([made, kept])


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({7: 5.0, 8: 1.01}, "a worker had nothing to do"),
        ({7: 5.0, 9: 3.0}, "workers [7, 8] started, and [7, 9] are left"),
    ],
    ids=["one does it all", "one is new"],
)
def test_both_workers_must_do_a_part_of_the_work(after: dict[int, float], reason: str) -> None:
    before = {7: 1.0, 8: 1.0}
    check_workers_shared(2, before, {7: 3.0, 8: 2.0})
    with pytest.raises(AssertionError, match=re.escape(reason)):
        check_workers_shared(2, before, after)
    with pytest.raises(AssertionError, match="0 workers started, not 2"):
        check_workers_shared(2, {}, {})


def events(*rows: tuple[str, float | None, float | None]) -> list[dict[str, object]]:
    return [{"id": name, "approved_at": approved, "started_at": started} for name, approved, started in rows]


def test_approvals_must_survive_a_restart() -> None:
    listed = events(("a", 1.0, 2.0), ("b", 1.5, None), ("c", None, None))
    assert count_started(listed) == 1
    check_approved(["a", "b"], listed)
    with pytest.raises(AssertionError, match="2 of 3 approvals were lost"):
        check_approved(["a", "c", "d"], listed)


def test_the_fleet_must_have_the_expected_size(service: FakeService) -> None:
    service.check_vm_count(10)
    with pytest.raises(AssertionError, match="10 VMs, not 100000"):
        service.check_vm_count(100_000)


def test_a_step_must_run_after_the_event_was_published() -> None:
    assert reaction_s(10.0, 10.25) == 0.25
    with pytest.raises(AssertionError, match="the event was published at"):
        reaction_s(10.0, 9.99)


def test_a_view_must_show_vms() -> None:
    check_views(100_000, [{"vms": 200}, {"vms": 100}])
    check_views(5, [{"vms": 5}])
    with pytest.raises(AssertionError, match="a view of 100000 VMs showed 0 of them"):
        check_views(100_000, [{"vms": 200}, {"vms": 0}])


@pytest.mark.parametrize(("received", "drawn"), [(0, 0), (600, 700), (700, 600)])
def test_the_page_must_receive_and_draw_the_changes(received: int, drawn: int) -> None:
    good = {"for_s": 14, "received": 630, "drawn": 630}
    check_changes_drawn([good])
    with pytest.raises(AssertionError, match=f"for 14 s, {received} received, {drawn} drawn"):
        check_changes_drawn([good, {"for_s": 14, "received": received, "drawn": drawn}])


@pytest.mark.parametrize(
    ("received", "refreshed", "problem"),
    [(600, 10, "600 changes received"), (630, 4, "the heat map was drawn 4 times in 14 s")],
)
def test_the_overview_must_receive_the_changes_and_draw_its_map(received: int, refreshed: int, problem: str) -> None:
    good = {"for_s": 14, "received": 630, "refreshed": 10}
    check_refreshed([good])
    with pytest.raises(AssertionError, match=problem):
        check_refreshed([good, {"for_s": 14, "received": received, "refreshed": refreshed}])
