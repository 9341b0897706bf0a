"""The reports of wrk, the configuration of nginx, and the measurements of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.approval import single_commits
from bench.clients import approval_request, is_complete, poll_request
from bench.nginx import configuration
from bench.process import cpu_s, memory_bytes, peak_memory_bytes, process_tree
from bench.rollout import fleet
from bench.run_context import RunContext
from bench.wrk import read_report
from forewarn.core.fleetfile.reader import read_fleet_file
from tests.support.service_process import HttpAnswer

WRK = """Running 4s test @ http://127.0.0.1:1
  69902 requests in 4.00s, 33.53MB read
Requests/sec:  17470.43
{"requests":69902,"duration_us":4001115,"bytes":35158425,"refused":0,"broken":0,"p50_us":3630,"p99_us":5640}
"""
ANSWER = HttpAnswer(200, b'{"DocumentIncarnation":1,"Events":[]}', {"ETag": '"1-1"', "Content-Length": "37"})


def test_the_rate_is_requests_over_duration() -> None:
    load = read_report(WRK)
    assert (load.requests, load.p99_us, load.refused) == (69902, 5640, 0)
    assert load.rate == pytest.approx(17470.6, abs=0.1)


def test_output_of_wrk_without_a_report_is_an_error() -> None:
    with pytest.raises(LookupError, match="wrk gave no report"):
        read_report("Running 4s test\n")


def test_nginx_is_configured_with_the_response_of_the_service() -> None:
    conf = configuration(ANSWER, 20001, 20002)
    assert conf.count('return 200 \'{"DocumentIncarnation":1,"Events":[]}\';') == 2
    assert "listen 127.0.0.1:20001 backlog" in conf
    assert "listen 127.0.0.1:20002 deferred" in conf
    assert conf.count("add_header ETag '\"1-1\"';") == 2
    assert "access_log off;" in conf
    assert "@" not in conf


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_response_is_complete_at_its_last_byte(cut: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 4\r\n\r\nbody"
    assert is_complete(whole)
    assert is_complete(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n")
    assert not is_complete(whole[: -min(cut, len(whole))])


def test_a_long_poll_has_the_etag_and_the_wait() -> None:
    assert b"If-None-Match" not in poll_request()
    assert b'If-None-Match: "1-7"\r\nPrefer: wait=300\r\n' in poll_request('"1-7"', 300)


def test_an_approval_has_the_right_content_length() -> None:
    head, _, body = approval_request("AB-12").partition(b"\r\n\r\n")
    assert body == b'{"StartRequests":[{"EventId":"AB-12"}]}'
    assert f"Content-Length: {len(body)}".encode() in head


def test_cpu_and_memory_of_a_process_are_measured() -> None:
    pid = os.getpid()
    assert process_tree(pid)[0] == pid
    assert cpu_s(pid) > 0
    assert 0 < memory_bytes(pid) <= peak_memory_bytes(pid)


def test_single_commits_are_measured_in_the_given_directory(tmp_path: Path) -> None:
    assert single_commits(tmp_path / "single.db", 0.05) > 0
    assert (tmp_path / "single.db").stat().st_size > 300 * 1000


def test_the_fleet_of_a_rollout_has_the_requested_size() -> None:
    text, hosts = fleet(1000)
    proposal = read_fleet_file(text, source="the rollout")
    assert (len(proposal.vms), hosts) == (1000, 100)


def test_a_quick_run_is_short_and_a_full_run_has_five_runs(tmp_path: Path) -> None:
    quick, whole = RunContext(directory=tmp_path, is_quick=True), RunContext(directory=tmp_path)
    assert (quick.runs, quick.scaled(10_000), quick.scaled(3)) == (1, 500, 1)
    assert (whole.runs, whole.scaled(10_000)) == (5, 10_000)


def test_the_progress_of_a_row_is_reported(tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    context = RunContext(directory=tmp_path, on_progress=lambda *step: progress.append(step))
    assert list(context.track("runs", "ab")) == ["a", "b"]
    assert progress == [("runs", 0, 2), ("runs", 1, 2), ("runs", 2, 2)]
