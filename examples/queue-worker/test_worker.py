"""The worker with events and faults. No test sleeps: `advance` moves the clock."""

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


def add_job(directory: Path, name: str, steps: int) -> None:
    (directory / f"{name}.job").write_text(json.dumps({"steps": steps, "completed": 0}), encoding="utf-8")


def saved_jobs(directory: Path) -> dict[str, int]:
    """The files of all jobs, each with the number of completed steps on disk."""
    files = sorted(directory.iterdir())
    return {path.name: json.loads(path.read_text(encoding="utf-8"))["completed"] for path in files}


def worker_in(lab: Lab, name: str, directory: Path) -> Worker:
    return Worker(directory, Client(lab.vm(name).endpoint, sleep=lambda seconds: None))


def work(worker: Worker, times: int) -> None:
    for _ in range(times):
        worker.run_once()


@pytest.mark.scheduled_events(vms=["worker-0", "worker-1"])
def test_a_job_is_put_back_before_a_reboot_and_continues_after_it(scheduled_events: Lab, tmp_path: Path) -> None:
    add_job(tmp_path, "big", steps=5)
    worker = worker_in(scheduled_events, "worker-0", tmp_path)
    work(worker, 2)
    assert saved_jobs(tmp_path) == {"big.taken": 0}

    event = scheduled_events.reboot("worker-0")
    worker.run_once()
    assert saved_jobs(tmp_path) == {"big.job": 2}
    assert event.approved_by == "worker-0"
    assert worker.is_paused

    scheduled_events.advance("1m")
    assert event.finished
    work(worker, 3)
    assert saved_jobs(tmp_path) == {"big.done": 5}


@pytest.mark.scheduled_events(vms=["worker-0", "worker-1"])
def test_another_worker_continues_the_job(scheduled_events: Lab, tmp_path: Path) -> None:
    add_job(tmp_path, "big", steps=3)
    one, other = (worker_in(scheduled_events, name, tmp_path) for name in ("worker-0", "worker-1"))
    work(one, 2)
    scheduled_events.redeploy("worker-0")
    one.run_once()
    other.run_once()
    assert saved_jobs(tmp_path) == {"big.done": 3}


@pytest.mark.scheduled_events(spot=["worker-0"])
def test_thirty_seconds_are_enough_for_an_eviction(scheduled_events: Lab, tmp_path: Path) -> None:
    add_job(tmp_path, "big", steps=5)
    worker = worker_in(scheduled_events, "worker-0", tmp_path)
    worker.run_once()
    event = scheduled_events.evict("worker-0")
    scheduled_events.advance("29s")
    worker.run_once()
    assert saved_jobs(tmp_path) == {"big.job": 1}
    scheduled_events.run_until(lambda: event.finished, within="5m")
    assert scheduled_events.vm("worker-0").power == "deallocated"


def test_work_continues_during_a_freeze(scheduled_events: Lab, tmp_path: Path) -> None:
    add_job(tmp_path, "big", steps=2)
    worker = worker_in(scheduled_events, "vm-0", tmp_path)
    event = scheduled_events.freeze("vm-0")
    work(worker, 2)
    assert event.approved_by == "vm-0"
    assert saved_jobs(tmp_path) == {"big.done": 2}


@pytest.mark.scheduled_events(vms=["worker-0", "worker-1"], availability_set="workers")
def test_an_event_of_a_neighbour_is_not_approved(scheduled_events: Lab, tmp_path: Path) -> None:
    event = scheduled_events.reboot("worker-1")
    worker = worker_in(scheduled_events, "worker-0", tmp_path)
    worker.run_once()
    assert event.seen_by == ("worker-0",)
    assert not event.approved
    assert not worker.is_paused


def test_work_continues_after_a_reboot_was_withdrawn(scheduled_events: Lab, tmp_path: Path) -> None:
    fault = scheduled_events.fault("withdrawn-after-approval", times=1)
    worker = worker_in(scheduled_events, "vm-0", tmp_path)
    event = scheduled_events.reboot("vm-0")
    worker.run_once()
    assert event.withdrawn
    assert fault.applied == 1
    worker.run_once()
    assert not worker.is_paused


@pytest.mark.parametrize("kind", ["gone", "empty-body", "internal-error", "throttled", "reset"])
def test_work_continues_while_the_service_has_a_fault(scheduled_events: Lab, tmp_path: Path, kind: str) -> None:
    add_job(tmp_path, "big", steps=3)
    fault = scheduled_events.fault(kind)
    worker = worker_in(scheduled_events, "vm-0", tmp_path)
    work(worker, 3)
    assert saved_jobs(tmp_path) == {"big.done": 3}
    assert fault.applied >= 3

    scheduled_events.clear_faults()
    event = scheduled_events.reboot("vm-0")
    worker.run_once()
    assert event.approved


def test_a_failing_host_loses_unsaved_progress(scheduled_events: Lab, tmp_path: Path) -> None:
    """A failing host gives no notice, so a handler cannot react."""
    add_job(tmp_path, "big", steps=5)
    work(worker_in(scheduled_events, "vm-0", tmp_path), 2)
    scheduled_events.fail_host(scheduled_events.vm("vm-0").host)
    assert saved_jobs(tmp_path) == {"big.taken": 0}


def test_the_program_finds_the_lab_by_its_environment(scheduled_events: Lab, tmp_path: Path) -> None:
    """After a kill and a restart the program still finds the pending event."""
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
