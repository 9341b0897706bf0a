"""A real Prometheus answers the health checks of a rollout (spec §13.4): good, bad, no data, refused, and away."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.base.http_client import HttpClient, LocalTargets
from forewarn.control.health_probes import HealthProber
from forewarn.core.health import CheckKind, CheckOutcome, HealthCheck
from forewarn.core.request import Rollout, RolloutImpact, RolloutState
from tests.metrics.test_alerts import find_program, wait_for_value
from tests.support.service_process import free_port
from tests.support.world import World, a_host, a_vm

CONFIG = """
scrape_configs:
  - job_name: itself
    scrape_interval: 1s
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


class PrometheusProcess:
    """A Prometheus on loopback that scrapes itself."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        config = directory / "prometheus.yml"
        config.write_text(CONFIG % self.port, encoding="utf-8")
        command = [find_program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}"]
        with (directory / "log").open("wb") as log:
            self._child = subprocess.Popen(
                [*command, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log
            )

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(timeout=30)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[PrometheusProcess]:
    process = PrometheusProcess(tmp_path)
    try:
        assert wait_for_value(process.port, "up") == "1"
        yield process
    finally:
        process.kill()


@pytest.fixture
def world() -> Iterator[World]:
    prober = HealthProber(HttpClient(local_targets=LocalTargets.LOOPBACK))
    world = World(hosts=[a_host("h1")], vms=[a_vm("web-0")], prober=prober)
    yield world
    world.close()


@pytest.mark.real
def test_a_real_prometheus_answers_the_checks_of_a_rollout(prometheus: PrometheusProcess, world: World) -> None:
    def start(query: str, condition: str) -> str:
        check = HealthCheck(
            name="check",
            kind=CheckKind.PROMETHEUS,
            url=f"http://127.0.0.1:{prometheus.port}",
            query=query,
            condition=condition,
            timeout_s=60,
        )
        rollout = Rollout(impact=RolloutImpact.REBOOT, hosts=("h1",), checks=(check,))
        request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
        world.settle()
        return request.id

    def found(request_id: str) -> tuple[CheckOutcome, str, RolloutState]:
        latest = world.store.measurements(request_id)[-1]
        return latest.outcome, latest.text, world.rollout(request_id).progress

    bad = found(start("up", "< 1"))
    assert bad == (
        CheckOutcome.BAD,
        f"up{{instance=127.0.0.1:{prometheus.port}, job=itself}} 1 is not < 1",
        RolloutState.PAUSED,
    )
    missing = found(start("no_such_metric", "< 1"))
    assert missing == (CheckOutcome.UNCLEAR, "there is no data", RolloutState.RUNNING)
    refused = found(start("sum(", "< 1"))
    assert refused[0] is CheckOutcome.ERROR
    assert "Prometheus refused the query" in refused[1]
    assert "parse error" in refused[1]
    assert world.events() == []

    good = start("sum(up)", "== 1")
    assert found(good) == (CheckOutcome.GOOD, "1", RolloutState.RUNNING)
    assert [event.request_id for event in world.events()] == [good]

    prometheus.kill()
    world.advance(300)
    assert found(good) == (CheckOutcome.ERROR, "Prometheus: it refused the connection", RolloutState.RUNNING)
    assert "unclear after 3 errors" in world.rollout(good).unclear
