"""A frozen VM stops completely and continues where it was (spec §6).

A freeze loses no memory and no open files.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from forewarn.machines.namespace_vm.run import JOURNAL_FILE
from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces

Start = Callable[..., "subprocess.Popen[str]"]
TICKING = Path(__file__).parent / "ticking_program.py"
NAMES = ("parent", "child", "daemon")
FREEZE_S = 1.5


@pytest.fixture
def ticking(service: FakeSupervisorServer, start: Start, tmp_path: Path) -> "subprocess.Popen[str]":
    child = start("web-0", "--", sys.executable, str(TICKING), str(tmp_path))
    wait_for_ticks(tmp_path, 5)
    return child


def ticks(directory: Path, name: str) -> list[tuple[int, float]]:
    path = directory / f"{name}.ticks"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [(int(number), float(at)) for number, at in (line.split() for line in lines if line.endswith("\n"))]


def wait_for_ticks(directory: Path, more: int) -> None:
    """Wait until each of the three processes has ticked `more` times more."""
    before = {name: len(ticks(directory, name)) for name in NAMES}
    deadline = time.monotonic() + 30
    while any(len(ticks(directory, name)) < before[name] + more for name in NAMES):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_journalled_outcome(directory: Path, act: str) -> None:
    """Wait until the supervisor's journal has the outcome of the act."""
    deadline = time.monotonic() + 30
    while not any(act in line and '"ok"' in line for line in (directory / JOURNAL_FILE).read_text().splitlines()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def longest_gap(recorded: list[tuple[int, float]]) -> tuple[float, float]:
    return max(((a, b) for (_, a), (_, b) in pairwise(recorded)), key=lambda gap: gap[1] - gap[0])


@pytest.mark.parametrize("verb", ["freeze", "migrate"])
def test_no_process_of_a_vm_runs_during_a_freeze(
    ticking: "subprocess.Popen[str]", service: FakeSupervisorServer, tmp_path: Path, verb: str
) -> None:
    recorded = service.perform("web-0", verb, duration_s=FREEZE_S)
    wait_for_ticks(tmp_path, 5)

    gaps = [longest_gap(ticks(tmp_path, name)) for name in NAMES]
    began, ended = max(gap[0] for gap in gaps), min(gap[1] for gap in gaps)
    assert recorded["ok"]
    assert ended - began >= FREEZE_S, "all three stood still together, for as long as was announced"
    assert all(b - a < FREEZE_S + 5 for a, b in gaps)


def test_memory_and_open_files_outlive_a_freeze(
    ticking: "subprocess.Popen[str]", service: FakeSupervisorServer, tmp_path: Path
) -> None:
    boot_id = service.wait_for_message("web-0", "hello")["hello"]["boot_id"]
    recorded = service.perform("web-0", "freeze", duration_s=0.3)
    wait_for_ticks(tmp_path, 5)

    for name in NAMES:
        numbers = [number for number, _ in ticks(tmp_path, name)]
        assert numbers == list(range(len(numbers)))
    assert (recorded["boot_id"], recorded["state"]) == (boot_id, "running")


def test_a_freeze_is_answered_at_once_with_its_duration_and_again_when_it_is_over(
    ticking: "subprocess.Popen[str]", service: FakeSupervisorServer
) -> None:
    act = service.order("web-0", "freeze", duration_s=0.3)

    service.outcome("web-0", act)

    first, last = (message for message in service.messages_from("web-0") if message.get("act") == act)
    assert first == {"act": act, "until": 0.3}
    assert (last["ok"], last["note"]) == (True, "")


def test_a_thaw_ends_a_freeze(ticking: "subprocess.Popen[str]", service: FakeSupervisorServer, tmp_path: Path) -> None:
    act = service.order("web-0", "freeze", duration_s=3600)
    service.wait_for(lambda: [message for message in service.messages_from("web-0") if message.get("act") == act])

    service.thaw("web-0", act)

    assert service.outcome("web-0", act)["ok"]
    wait_for_ticks(tmp_path, 5)
    service.thaw("web-0", act)
    assert service.outcome("web-0", act, times=2)["ok"]


def test_a_repeated_order_of_a_freeze_is_answered_with_its_remaining_time(
    ticking: "subprocess.Popen[str]", service: FakeSupervisorServer
) -> None:
    act = service.order("web-0", "freeze", duration_s=3600)
    service.order("web-0", "freeze", act=act, duration_s=3600)

    both = service.wait_for(
        lambda: [s for s in service.messages_from("web-0") if s.get("act") == act and "until" in s][1:]
    )

    assert 0 < both[0]["until"] <= 3600


def test_a_freeze_ends_without_the_service(
    ticking: "subprocess.Popen[str]", service: FakeSupervisorServer, tmp_path: Path
) -> None:
    act = service.order("web-0", "freeze", duration_s=0.5)
    service.wait_for(lambda: [message for message in service.messages_from("web-0") if message.get("act") == act])

    service.stop()

    # Ticks alone would prove nothing: the progress is sent before the freeze begins.
    wait_for_journalled_outcome(service.directory_of("web-0"), act)
    wait_for_ticks(tmp_path, 5)
    service.start()
    assert service.wait_for_message("web-0", "hello", times=2)["hello"]["known"][act] == {"ok": True, "note": ""}


def test_processes_stopped_before_a_freeze_stay_stopped(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    script = (
        "sleep 1000 & kill -STOP $!; touch ready;"
        ' while sleep 0.01; do cut -d" " -f3 /proc/$!/stat > state.new; mv state.new state; done'
    )
    start("web-0", "--", "sh", "-c", f"cd {tmp_path}; {script}")
    while not (tmp_path / "state").exists():
        time.sleep(0.01)

    service.perform("web-0", "freeze", duration_s=0.2)

    before = (tmp_path / "state").stat().st_ino
    while (tmp_path / "state").stat().st_ino == before:
        time.sleep(0.01)
    assert (tmp_path / "state").read_text() == "T\n"


def test_a_reboot_ends_a_freeze(ticking: "subprocess.Popen[str]", service: FakeSupervisorServer) -> None:
    freeze = service.order("web-0", "freeze", duration_s=3600)
    service.wait_for(lambda: [message for message in service.messages_from("web-0") if message.get("act") == freeze])

    rebooted = service.perform("web-0", "reboot")

    assert rebooted["ok"]
    assert service.outcome("web-0", freeze)["ok"]
