"""The time that a program waits for a CPU is measured from what the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from forewarn.crash_test.handler_machine import StarvationMeter, ThreadTimes

COMPUTE = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
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
    others = [running(sys.executable, "-S", "-c", COMPUTE % cpu) for _ in range(8)]
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(other)
        pid = stack.enter_context(running(sys.executable, "-S", "-c", COMPUTE % cpu))
        meter = StarvationMeter()
        total, give_up_at = 0.0, time.monotonic() + 60
        while total < 0.3 and time.monotonic() < give_up_at:
            time.sleep(0.1)
            total += meter.measure([pid])
        assert total >= 0.3


def measure_in_turns(*samples: dict[int, tuple[float, float]]) -> list[float]:
    """What a meter measures for a program whose threads ran, and waited, this many seconds since their start."""
    waiting = iter(samples)

    def read_threads(_pid: int) -> list[ThreadTimes]:
        times = next(waiting)
        return [ThreadTimes(id=id_, ran_ns=int(r * 1e9), waited_ns=int(w * 1e9)) for id_, (r, w) in times.items()]

    meter = StarvationMeter(read_threads)
    return [round(meter.measure([1]), 3) for _ in samples]


def test_what_a_program_waited_since_the_last_measurement_counts() -> None:
    assert measure_in_turns({7: (0.0, 0.5)}, {7: (0.1, 1.4)}, {7: (0.1, 1.4)}) == [0.5, 0.8, 0.0]


def test_a_thread_that_waits_but_goes_on_is_not_starved() -> None:
    assert measure_in_turns({7: (0.5, 0.5)}) == [0.0]


def test_a_program_whose_own_threads_take_the_cpus_is_not_starved() -> None:
    assert measure_in_turns(dict.fromkeys(range(12), (0.17, 0.83))) == [0.0]


def test_threads_that_gave_themselves_a_low_priority_do_not_count() -> None:
    cpu = min(os.sched_getaffinity(0))
    low = "import os; os.nice(19)\n" + COMPUTE % cpu
    with running(sys.executable, "-S", "-c", COMPUTE % cpu), running(sys.executable, "-S", "-c", low) as pid:
        meter = StarvationMeter()
        give_up_at = time.monotonic() + 60
        while os.getpriority(os.PRIO_PROCESS, pid) < 19 and time.monotonic() < give_up_at:
            time.sleep(0.05)
        assert [meter.measure([pid]) for _ in range(3)] == [0.0, 0.0, 0.0]


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
