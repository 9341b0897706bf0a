"""What load generators and servers say, as the figures read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.approval import single_commits
from bench.crowd import approval, is_whole, poll
from bench.ground import Ground
from bench.nginx import configuration
from bench.process import cpu_s, family, memory_bytes, peak_bytes
from bench.rollout import fleet
from bench.wrk import read_report
from forewarn.core.fleetfile.reader import read_fleet_file
from tests.support.service_process import HttpAnswer

WRK = """Running 4s test @ http://127.0.0.1:1
  69902 requests in 4.00s, 33.53MB read
Requests/sec:  17470.43
{"requests":69902,"duration_us":4001115,"bytes":35158425,"refused":0,"broken":0,"p50_us":3630,"p99_us":5640}
"""
ANSWER = HttpAnswer(200, b'{"DocumentIncarnation":1,"Events":[]}', {"ETag": '"1-1"', "Content-Length": "37"})


def test_a_rate_is_what_wrk_counted_over_the_time_it_took() -> None:
    load = read_report(WRK)
    assert (load.requests, load.p99_us, load.refused) == (69902, 5640, 0)
    assert load.rate == pytest.approx(17470.6, abs=0.1)


def test_wrk_without_a_report_is_no_measurement() -> None:
    with pytest.raises(LookupError, match="wrk gave no report"):
        read_report("Running 4s test\n")


def test_nginx_is_told_to_answer_as_the_service_did() -> None:
    conf = configuration(ANSWER, 20001, 20002)
    assert conf.count('return 200 \'{"DocumentIncarnation":1,"Events":[]}\';') == 2
    assert "listen 127.0.0.1:20001 backlog" in conf
    assert "listen 127.0.0.1:20002 deferred" in conf
    assert conf.count("add_header ETag '\"1-1\"';") == 2
    assert "access_log off;" in conf
    assert "@" not in conf


@pytest.mark.parametrize("cut", range(1, 60))
def test_an_answer_is_whole_at_its_last_byte_and_not_before(cut: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: 4\r\n\r\nbody"
    assert is_whole(whole)
    assert is_whole(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n")
    assert not is_whole(whole[: -min(cut, len(whole))])


def test_a_long_poll_names_the_document_it_knows() -> None:
    assert b"If-None-Match" not in poll()
    assert b'If-None-Match: "1-7"\r\nPrefer: wait=300\r\n' in poll('"1-7"', 300)


def test_an_approval_is_as_long_as_it_says() -> None:
    head, _, body = approval("AB-12").partition(b"\r\n\r\n")
    assert body == b'{"StartRequests":[{"EventId":"AB-12"}]}'
    assert f"Content-Length: {len(body)}".encode() in head


def test_a_process_is_measured_from_outside() -> None:
    pid = os.getpid()
    assert family(pid)[0] == pid
    assert cpu_s(pid) > 0
    assert 0 < memory_bytes(pid) <= peak_bytes(pid)


def test_single_commits_are_counted_on_the_disk_that_is_named(tmp_path: Path) -> None:
    assert single_commits(tmp_path / "single.db", 0.05) > 0
    assert (tmp_path / "single.db").stat().st_size > 300 * 1000


def test_the_fleet_of_a_rollout_has_as_many_vms_as_it_is_named_after() -> None:
    text, hosts = fleet(1000)
    proposal = read_fleet_file(text, source="the rollout")
    assert (len(proposal.vms), hosts) == (1000, 100)


def test_a_smoke_run_is_short_and_a_real_one_has_five_runs(tmp_path: Path) -> None:
    quick, whole = Ground(directory=tmp_path, is_quick=True), Ground(directory=tmp_path)
    assert (quick.runs, quick.sized(10_000), quick.sized(3)) == (1, 500, 1)
    assert (whole.runs, whole.sized(10_000)) == (5, 10_000)


def test_how_far_a_row_is_can_be_followed(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    ground = Ground(directory=tmp_path, tell=lambda *step: told.append(step))
    assert list(ground.track("runs", "ab")) == ["a", "b"]
    assert told == [("runs", 0, 2), ("runs", 1, 2), ("runs", 2, 2)]
