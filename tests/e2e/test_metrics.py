"""Metrics of the real process: on the local socket and the metrics listeners, and nowhere else."""

from __future__ import annotations

import http.client
import os
import platform
import signal
import socket
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as read

from forewarn import __version__
from tests.support.service_process import ServiceProcess, VmEndpoint, eventually, free_port

FLEET = '[[hosts]]\nname = "host-0"\n[[vms]]\nname = "web-{n}"\ncount = 3\n'
POLL = ("forewarn_polls_total", frozenset({("version", "2020-07-01"), ("code", "200")}))
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


def test_a_service_without_workers_serves_all_metrics_on_one_port(tmp_path: Path) -> None:
    port = free_port()
    environment = {"FOREWARN_METRICS": f"127.0.0.1:{port}"}
    with ServiceProcess(data=tmp_path, fleet=FLEET, environment=environment) as service:
        assert polls(scraped(service, port)) == 0
        for _ in range(5):
            service.poll("web-0")
        samples = scraped(service, port)
        assert polls(samples) == 5
        labels = {("version", __version__), ("python", platform.python_version())}
        assert samples["forewarn_build_info", frozenset(labels)] == 1


def test_counters_of_workers_add_up_even_after_workers_die(tmp_path: Path) -> None:
    port = free_port(3)
    environment = {"FOREWARN_METRICS": f"127.0.0.1:{port}"}
    arguments = ("--workers", "2")
    with ServiceProcess(data=tmp_path, fleet=FLEET, arguments=arguments, environment=environment) as service:
        for _ in range(20):
            service.poll("web-0")
        assert POLL not in scraped(service, port)
        assert sum(polls(scraped(service, port + n)) for n in (1, 2)) == 20
        silent_s = scraped(service, port + 1)["forewarn_worker_last_message_seconds", frozenset()]
        assert 0 <= silent_s < 5
        eventually(lambda: polls(whole(service)) == 20)

        [first, _] = [worker["pid"] for worker in service.api("GET", "/service").json["workers"]]
        os.kill(first, signal.SIGKILL)
        eventually(
            lambda: first not in [w["pid"] for w in service.api("GET", "/service").json["workers"] if w["ready"]]
        )
        eventually(lambda: _answers(service, port + 1))  # its replacement answers
        service.poll("web-0")
        eventually(lambda: polls(whole(service)) == 21)


def test_counters_of_replaced_workers_are_kept_and_new_workers_take_their_ports(tmp_path: Path) -> None:
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
    """All metrics of the service, from its local socket."""
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


def test_the_metadata_endpoint_serves_no_metrics(tmp_path: Path) -> None:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        answer = service.guest("web-0", "GET", "/metrics")
        assert answer.status == 404
        assert b"forewarn_" not in answer.body
