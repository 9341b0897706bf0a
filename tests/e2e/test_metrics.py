"""The metrics of the real process: at the console's socket, on the listeners of owner and workers, and nowhere else."""

from __future__ import annotations

import http.client
import os
import platform
import signal
import socket
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as read

from tests.support.service_process import ServiceProcess, VmEndpoint, eventually, free_port

FLEET = '[[hosts]]\nname = "host-0"\n[[vms]]\nname = "web-{n}"\ncount = 3\n'
POLL = ("forewarn_polls_total", frozenset({("version", "2020-07-01"), ("outcome", "200")}))
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(service: ServiceProcess, port: int) -> Samples:
    connection = service.connect(VmEndpoint("127.0.0.1", port))
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        families = read(answer.read().decode())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    finally:
        connection.close()


def polls(samples: Samples) -> float:
    return samples.get(POLL, 0.0)


def test_a_service_alone_tells_all_at_one_port(tmp_path: Path) -> None:
    port = free_port()
    environment = {"FOREWARN_METRICS": f"127.0.0.1:{port}"}
    with ServiceProcess(data=tmp_path, fleet=FLEET, environment=environment) as service:
        assert polls(scraped(service, port)) == 0
        for _ in range(5):
            service.poll("web-0")
        told = scraped(service, port)
        assert polls(told) == 5
        assert (
            told["forewarn_build_info", frozenset({("version", "0.1.0"), ("python", platform.python_version())})] == 1
        )


def test_workers_tell_what_they_answered_and_it_adds_up_over_their_deaths(tmp_path: Path) -> None:
    port = free_port(3)
    environment = {"FOREWARN_METRICS": f"127.0.0.1:{port}"}
    arguments = ("--workers", "2")
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=arguments, environment=environment) as service:
        for _ in range(20):
            service.poll("web-0")
        assert POLL not in scraped(service, port)
        assert sum(polls(scraped(service, port + n)) for n in (1, 2)) == 20
        heard = scraped(service, port + 1)["forewarn_worker_heard_seconds", frozenset()]
        assert 0 <= heard < 5
        eventually(lambda: polls(whole(service)) == 20)

        [first, _] = [worker["pid"] for worker in service.api("GET", "/service").json["workers"]]
        os.kill(first, signal.SIGKILL)
        eventually(
            lambda: first not in [w["pid"] for w in service.api("GET", "/service").json["workers"] if w["ready"]]
        )
        eventually(lambda: _answers(service, port + 1))  # another is in its place
        service.poll("web-0")
        eventually(lambda: polls(whole(service)) == 21)


def test_workers_that_are_replaced_leave_their_counts_and_their_ports(tmp_path: Path) -> None:
    port = free_port(3)
    environment = {"FOREWARN_METRICS": f"127.0.0.1:{port}"}
    arguments = ("--workers", "2")
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=arguments, environment=environment) as service:

        def pids() -> set[int]:
            return {worker["pid"] for worker in service.api("GET", "/service").json["workers"] if worker["ready"]}

        for _ in range(20):
            service.poll("web-0")
        before = pids()
        os.kill(service.pid, signal.SIGHUP)
        eventually(lambda: len(pids() - before) == 2)
        eventually(lambda: _answers(service, port + 1) and _answers(service, port + 2))
        service.poll("web-0")
        eventually(lambda: polls(whole(service)) == 21)
        eventually(lambda: sum(polls(scraped(service, port + n)) for n in (1, 2)) == 1)


def whole(service: ServiceProcess) -> Samples:
    """What the console tells, on the local socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(15)
        sock.connect(str(service.data / "forewarn.sock"))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert answer.status == 200
        families = read(answer.read().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def _answers(service: ServiceProcess, port: int) -> bool:
    try:
        return bool(scraped(service, port))
    except (OSError, http.client.HTTPException):
        return False


def test_vms_cannot_read_metrics_where_they_ask_for_events(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        answer = service.guest("web-0", "GET", "/metrics")
        assert answer.status == 404
        assert b"forewarn_" not in answer.body
