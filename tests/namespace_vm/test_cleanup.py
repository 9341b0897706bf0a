"""However a supervisor ends, its VM ends with it: processes, mounts, devices and namespaces."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces

Start = Callable[..., "subprocess.Popen[str]"]
KINDS = ("net", "mnt", "uts", "pid", "user")
# A family of which one has left for a session of its own, and none listens to reason.
STUBBORN = (
    "trap '' INT TERM HUP; setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000 & touch $0/ready; while :; do wait; done"
)


def namespaces() -> set[str]:
    """The namespaces of all processes that this one may inspect."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns"):
        for kind in KINDS:
            try:
                found.add(os.readlink(path / kind))
            except OSError:
                pass
    return found


def namespaces_of(pid: int) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}


def processes_in_network_of(first: int) -> set[tuple[int, str]]:
    """All processes in the network namespace of this one, each with its start time."""
    network, found = os.readlink(f"/proc/{first}/ns/net"), set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "ns" / "net") == network:
                found.add((int(path.name), state(int(path.name))[1]))
        except OSError:
            pass
    return found


def state(pid: int) -> tuple[str, str]:
    """The state letter and the start time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]


def is_alive(pid: int, start_time: str) -> bool:
    try:
        process_state, started = state(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return started == start_time and process_state not in "ZX"


def mounts() -> list[str]:
    """The mounts of this process, without those of named namespaces, which others create."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if not line.startswith("nsfs")]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end_by_kill(child: "subprocess.Popen[str]") -> None:
    os.kill(child.pid, signal.SIGKILL)


def end_by_term(child: "subprocess.Popen[str]") -> None:
    os.kill(child.pid, signal.SIGTERM)


def end_by_interrupt(child: "subprocess.Popen[str]") -> None:
    """SIGINT, as a terminal sends it to a foreground job."""
    os.killpg(child.pid, signal.SIGINT)


def end_twice(child: "subprocess.Popen[str]") -> None:
    """Two signals, from a user who does not want to wait."""
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)


@pytest.mark.parametrize("end", [end_by_kill, end_by_term, end_by_interrupt, end_twice])
@pytest.mark.parametrize("net", [(), ("--no-vnet",)], ids=["vnet", "no-vnet"])
def test_a_supervisor_leaves_nothing_behind_however_it_ends(
    service: FakeSupervisorServer, start: Start, tmp_path: Path, end: Callable[..., None], net: tuple[str, ...]
) -> None:
    before, ours = mounts(), namespaces_of(os.getpid())
    grace = "600" if end is end_twice else "0.3"
    child = start("web-0", *net, "--grace", grace, "--", "sh", "-c", STUBBORN, str(tmp_path))
    wait_until((tmp_path / "ready").exists)
    (first,) = children_of(child.pid)
    theirs = namespaces_of(first) - ours
    assert len(theirs) == len(KINDS)
    wait_until(lambda: len(processes_in_network_of(first)) >= 5)
    family = processes_in_network_of(first)

    end(child)
    child.communicate(timeout=30)

    wait_until(lambda: not any(is_alive(*one) for one in family))
    wait_until(lambda: not namespaces() & theirs)
    assert mounts() == before
    service.wait_for_message("web-0", "gone")


def test_a_frozen_vm_ends_with_its_supervisor(service: FakeSupervisorServer, start: Start, tmp_path: Path) -> None:
    child = start("web-0", "--", "sh", "-c", f"touch {tmp_path}/ready; sleep 1000")
    wait_until((tmp_path / "ready").exists)
    family = processes_in_network_of(children_of(child.pid)[0])
    act = service.order("web-0", "freeze", duration_s=3600)
    service.wait_for(lambda: [stderr for stderr in service.messages_from("web-0") if stderr.get("act") == act])

    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=30)

    assert not any(is_alive(*one) for one in family)
    assert child.returncode == 143


def test_a_program_may_end_slowly_within_the_grace_and_keeps_its_exit_code(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    script = f"trap 'sleep 0.2; exit 5' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done"
    child = start("web-0", "--", "sh", "-c", script)
    wait_until((tmp_path / "ready").exists)

    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=30)

    assert child.returncode == 5


def test_background_processes_of_a_program_end_with_it(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    child = start("web-0", "--", "sh", "-c", f"setsid sleep 1000 & touch {tmp_path}/ready; read line; exit 4")
    wait_until((tmp_path / "ready").exists)
    family = processes_in_network_of(children_of(child.pid)[0])

    child.communicate("end\n", timeout=30)

    assert child.returncode == 4
    assert not any(is_alive(*one) for one in family)
