"""The time that a program waits for a CPU is measured from what the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forewarn.crash_test.process_usage import StarvationMeter

COMPUTE = "import os; os.sched_setaffinity(0, {%d}); os.nice(%d)\nwhile True: pass"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the waits of threads")


@contextmanager
def running(*command: str) -> Iterator[int]:
    """Run a program for the time of a block, and yield its pid."""
    process = subprocess.Popen(command)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_program_that_others_keep_from_running_is_starved() -> None:
    cpu = min(os.sched_getaffinity(0))
    with (
        running(sys.executable, "-S", "-c", COMPUTE % (cpu, 0)),
        running(sys.executable, "-S", "-c", COMPUTE % (cpu, 19)) as pid,
    ):
        meter = StarvationMeter()
        total, give_up_at = 0.0, time.monotonic() + 60
        while total < 0.3 and time.monotonic() < give_up_at:
            time.sleep(0.1)
            total += meter.measure([pid])
        assert total >= 0.3


def test_a_program_that_sleeps_is_not_starved() -> None:
    with running("sleep", "1000") as pid:
        meter = StarvationMeter()
        measured, give_up_at = [meter.measure([pid])], time.monotonic() + 60
        while measured[-1] > 0 and time.monotonic() < give_up_at:  # it waits for a CPU while it starts
            time.sleep(0.1)
            measured.append(meter.measure([pid]))
        assert measured[-1] == 0.0


def test_a_process_that_has_ended_counts_nothing() -> None:
    with running("sleep", "1000") as pid:
        pass
    assert StarvationMeter().measure([pid]) == 0.0
