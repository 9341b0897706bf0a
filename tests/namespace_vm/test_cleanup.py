"""However a keeper ends, everything of its VM ends with it: processes, mounts, devices and namespaces."""

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
    """Of all processes that we may look at."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/ns"):
        for kind in KINDS:
            try:
                found.add(os.readlink(place / kind))
            except OSError:
                pass
    return found


def of(pid: int) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}


def family_of(first: int) -> set[tuple[int, str]]:
    """All processes in the network of this one, each with the time of its birth."""
    network, found = os.readlink(f"/proc/{first}/ns/net"), set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(place / "ns" / "net") == network:
                found.add((int(place.name), state(int(place.name))[1]))
        except OSError:
            pass
    return found


def state(pid: int) -> tuple[str, str]:
    """A letter for how it is, and when it was born."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return words[0], words[19]


def lives(pid: int, born: str) -> bool:
    try:
        letter, began = state(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return began == born and letter not in "ZX"


def mounts() -> list[str]:
    """Ours; namespaces with names come and go, and are somebody else's."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if not line.startswith("nsfs")]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end_by_kill(child: "subprocess.Popen[str]") -> None:
    os.kill(child.pid, signal.SIGKILL)


def end_by_term(child: "subprocess.Popen[str]") -> None:
    os.kill(child.pid, signal.SIGTERM)


def end_by_interrupt(child: "subprocess.Popen[str]") -> None:
    """What a terminal does to a job that has it not for itself."""
    os.killpg(child.pid, signal.SIGINT)


def end_twice(child: "subprocess.Popen[str]") -> None:
    """Somebody who does not want to wait."""
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)


@pytest.mark.parametrize("end", [end_by_kill, end_by_term, end_by_interrupt, end_twice])
@pytest.mark.parametrize("net", [(), ("--no-vnet",)], ids=["vnet", "no-vnet"])
def test_a_keeper_leaves_nothing_behind(
    service: FakeSupervisorServer, start: Start, tmp_path: Path, end: Callable[..., None], net: tuple[str, ...]
) -> None:
    before, ours = mounts(), of(os.getpid())
    grace = "600" if end is end_twice else "0.3"
    child = start("web-0", *net, "--grace", grace, "--", "sh", "-c", STUBBORN, str(tmp_path))
    until((tmp_path / "ready").exists)
    (first,) = children_of(child.pid)
    theirs = of(first) - ours
    assert len(theirs) == len(KINDS)
    until(lambda: len(family_of(first)) >= 5)
    family = family_of(first)

    end(child)
    child.communicate(timeout=30)

    until(lambda: not any(lives(*one) for one in family))
    until(lambda: not namespaces() & theirs)
    assert mounts() == before
    service.wait_for_message("web-0", "gone")


def test_a_frozen_vm_ends_with_its_keeper(service: FakeSupervisorServer, start: Start, tmp_path: Path) -> None:
    child = start("web-0", "--", "sh", "-c", f"touch {tmp_path}/ready; sleep 1000")
    until((tmp_path / "ready").exists)
    family = family_of(children_of(child.pid)[0])
    act = service.order("web-0", "freeze", duration_s=3600)
    service.wait_for(lambda: [said for said in service.messages_from("web-0") if said.get("act") == act])

    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=30)

    assert not any(lives(*one) for one in family)
    assert child.returncode == 143


def test_a_program_may_take_its_time_to_end_and_its_code_is_kept(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    script = f"trap 'sleep 0.2; exit 5' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done"
    child = start("web-0", "--", "sh", "-c", script)
    until((tmp_path / "ready").exists)

    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=30)

    assert child.returncode == 5


def test_what_a_program_leaves_running_ends_with_it(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    child = start("web-0", "--", "sh", "-c", f"setsid sleep 1000 & touch {tmp_path}/ready; read line; exit 4")
    until((tmp_path / "ready").exists)
    family = family_of(children_of(child.pid)[0])

    child.communicate("end\n", timeout=30)

    assert child.returncode == 4
    assert not any(lives(*one) for one in family)
