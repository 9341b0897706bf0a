"""The worker on its bad days. No test waits: hours of notice pass when `advance` is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from worker import Worker

from forewarn.client import Client
from forewarn.lab import Lab

HERE = Path(__file__).parent


def put(place: Path, name: str, steps: int) -> None:
    (place / f"{name}.job").write_text(json.dumps({"steps": steps, "behind": 0}), encoding="utf-8")


def standing(place: Path) -> dict[str, int]:
    """Every job with its state, and how many steps are behind it on disk."""
    return {path.name: json.loads(path.read_text(encoding="utf-8"))["behind"] for path in sorted(place.iterdir())}


def worker_in(lab: Lab, name: str, place: Path) -> Worker:
    return Worker(place, Client(lab.vm(name).endpoint, sleep=lambda seconds: None))


def work(worker: Worker, turns: int) -> None:
    for _ in range(turns):
        worker.turn()


@pytest.mark.scheduled_events(vms=["worker-0", "worker-1"])
def test_a_job_is_laid_down_before_a_reboot_and_goes_on_after_it(scheduled_events: Lab, tmp_path: Path) -> None:
    put(tmp_path, "big", steps=5)
    worker = worker_in(scheduled_events, "worker-0", tmp_path)
    work(worker, 2)
    assert standing(tmp_path) == {"big.taken": 0}

    event = scheduled_events.reboot("worker-0")
    worker.turn()
    assert standing(tmp_path) == {"big.job": 2}
    assert event.approved_by == "worker-0"
    assert worker.is_resting

    scheduled_events.advance("1m")
    assert event.finished
    work(worker, 3)
    assert standing(tmp_path) == {"big.done": 5}


@pytest.mark.scheduled_events(vms=["worker-0", "worker-1"])
def test_another_worker_goes_on_meanwhile(scheduled_events: Lab, tmp_path: Path) -> None:
    put(tmp_path, "big", steps=3)
    one, other = (worker_in(scheduled_events, name, tmp_path) for name in ("worker-0", "worker-1"))
    work(one, 2)
    scheduled_events.redeploy("worker-0")
    one.turn()
    other.turn()
    assert standing(tmp_path) == {"big.done": 3}


@pytest.mark.scheduled_events(spot=["worker-0"])
def test_thirty_seconds_are_enough_for_an_eviction(scheduled_events: Lab, tmp_path: Path) -> None:
    put(tmp_path, "big", steps=5)
    worker = worker_in(scheduled_events, "worker-0", tmp_path)
    worker.turn()
    event = scheduled_events.evict("worker-0")
    scheduled_events.advance("29s")
    worker.turn()
    assert standing(tmp_path) == {"big.job": 1}
    scheduled_events.run_until(lambda: event.finished, within="5m")
    assert scheduled_events.vm("worker-0").power == "deallocated"


def test_a_freeze_is_approved_and_worked_through(scheduled_events: Lab, tmp_path: Path) -> None:
    put(tmp_path, "big", steps=2)
    worker = worker_in(scheduled_events, "vm-0", tmp_path)
    event = scheduled_events.freeze("vm-0")
    work(worker, 2)
    assert event.approved_by == "vm-0"
    assert standing(tmp_path) == {"big.done": 2}


@pytest.mark.scheduled_events(vms=["worker-0", "worker-1"], availability_set="workers")
def test_what_hits_a_neighbour_alone_is_left_to_it(scheduled_events: Lab, tmp_path: Path) -> None:
    event = scheduled_events.reboot("worker-1")
    worker = worker_in(scheduled_events, "worker-0", tmp_path)
    worker.turn()
    assert event.seen_by == ("worker-0",)
    assert not event.approved
    assert not worker.is_resting


def test_a_reboot_that_is_withdrawn_is_forgotten(scheduled_events: Lab, tmp_path: Path) -> None:
    fault = scheduled_events.fault("withdrawn-after-approval", times=1)
    worker = worker_in(scheduled_events, "vm-0", tmp_path)
    event = scheduled_events.reboot("vm-0")
    worker.turn()
    assert event.withdrawn
    assert fault.touched == 1
    worker.turn()
    assert not worker.is_resting


@pytest.mark.parametrize("kind", ["gone", "empty-body", "internal-error", "throttled", "reset"])
def test_work_goes_on_while_the_service_is_not_itself(scheduled_events: Lab, tmp_path: Path, kind: str) -> None:
    put(tmp_path, "big", steps=3)
    fault = scheduled_events.fault(kind)
    worker = worker_in(scheduled_events, "vm-0", tmp_path)
    work(worker, 3)
    assert standing(tmp_path) == {"big.done": 3}
    assert fault.touched >= 3

    scheduled_events.clear_faults()
    event = scheduled_events.reboot("vm-0")
    worker.turn()
    assert event.approved


def test_a_host_that_fails_costs_what_was_not_written_down(scheduled_events: Lab, tmp_path: Path) -> None:
    """There is no notice, and nothing that a handler could do."""
    put(tmp_path, "big", steps=5)
    work(worker_in(scheduled_events, "vm-0", tmp_path), 2)
    scheduled_events.fail_host(scheduled_events.vm("vm-0").host)
    assert standing(tmp_path) == {"big.taken": 0}


def test_the_program_finds_the_lab_by_its_environment(scheduled_events: Lab, tmp_path: Path) -> None:
    """Killed before it could react, and started again: what is pending is still announced."""
    environment = {**os.environ, **scheduled_events.vm("vm-0").environment}
    line = [sys.executable, str(HERE / "worker.py"), str(tmp_path)]
    with subprocess.Popen(line, env=environment) as program:
        scheduled_events.wait_for(lambda: scheduled_events.vm("vm-0").polls)
        program.kill()
    event = scheduled_events.reboot("vm-0")
    with subprocess.Popen(line, env=environment) as program:
        try:
            scheduled_events.wait_for(lambda: event.approved_by == "vm-0")
        finally:
            program.kill()
