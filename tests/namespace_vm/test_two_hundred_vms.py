"""Two hundred VMs on one machine, each with its own program, under one service.

Each gets its own events (spec §7.4), and nothing of them is left, however they end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess, eventually

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl missing: see `make test-namespaces`"),
]

MANY = 200
LONG_S = 200.0
FLEET = f'[[hosts]]\nname = "host-{{n}}"\ncount = 4\n\n[[vms]]\nname = "vm-{{n}}"\ncount = {MANY}\n'
KINDS = ("net", "mnt", "uts", "pid", "user")
URL = "http://169.254.169.254/metadata"
# Once both answers are there, the program waits for the end of its input and ends with the code it was given.
PROGRAM = f"""
ask() {{ curl -sS -H Metadata:true "$1"; }}
ask '{URL}/instance/compute/name?api-version=2021-02-01&format=text' >"$1/$FOREWARN_VM.name"
ask '{URL}/scheduledevents?api-version=2020-07-01' >"$1/$FOREWARN_VM.tmp"
mv "$1/$FOREWARN_VM.tmp" "$1/$FOREWARN_VM.document"
read -r _
exit "$2"
"""

Vm = subprocess.Popen[bytes]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path / "data", fleet=FLEET) as service:
        yield service


@pytest.fixture
def start(lab: ServiceProcess, tmp_path: Path) -> Iterator[Callable[..., Vm]]:
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    surroundings = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | compiled
    children: list[subprocess.Popen[bytes]] = []

    def start_vm(vm: str, code: int) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "forewarn", "--data", str(lab.data), "vm", "run", vm, "--isolated", "--"]
        program = ["sh", "-c", PROGRAM, "sh", str(tmp_path), str(code)]
        children.append(subprocess.Popen([*line, *program], stdin=subprocess.PIPE, process_group=0, env=surroundings))
        return children[-1]

    yield start_vm
    for child in children:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
        child.communicate()


def namespaces_of(supervisor: int) -> set[str]:
    """The namespaces of the VM's init process that its supervisor does not share."""
    (first,) = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return {os.readlink(f"/proc/{first}/ns/{kind}") for kind in KINDS} - {
        os.readlink(f"/proc/{supervisor}/ns/{kind}") for kind in KINDS
    }


def namespaces() -> set[str]:
    """The namespaces of all processes."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/ns"):
        for kind in KINDS:
            try:
                found.add(os.readlink(place / kind))
            except OSError:
                pass
    return found


def leftovers() -> set[str]:
    """The devices and mounts of this machine, which a VM could leave behind."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return {line for line in mounts if not line.startswith("nsfs")} | {
        f"device {d}" for d in os.listdir("/sys/class/net")
    }


def end_well(vm: subprocess.Popen[bytes]) -> None:
    assert vm.stdin is not None
    vm.stdin.close()


def end_by_interrupt(vm: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, as a terminal sends it."""
    os.killpg(vm.pid, signal.SIGINT)


def end_by_kill(vm: subprocess.Popen[bytes]) -> None:
    os.kill(vm.pid, signal.SIGKILL)


# How they end, the exit code of their program, and the exit code of the supervisor.
ENDS = [(end_well, 0, 0), (end_well, 3, 3), (end_by_interrupt, 0, 130), (end_by_kill, 0, -signal.SIGKILL)]


def test_two_hundred_vms_get_their_own_events_and_leave_nothing_behind(
    lab: ServiceProcess, start: Callable[..., Vm], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"vm-{number}" for number in range(MANY)]
    answer = lab.api("POST", "/requests", {"operation": "restart", "vms": names})
    assert answer.status == 202, answer.body
    events = {event["vms"][0]: event["id"] for event in answer.json["events"]}
    before = leftovers()

    began = time.monotonic()
    vms = {name: start(name, ENDS[number % 4][1]) for number, name in enumerate(names)}
    eventually(lambda: len(list(tmp_path.glob("*.document"))) == MANY, LONG_S)
    up_s = time.monotonic() - began

    for name in names:
        assert (tmp_path / f"{name}.name").read_text() == name
        (event,) = json.loads((tmp_path / f"{name}.document").read_text())["Events"]
        assert (event["EventId"], event["Resources"]) == (events[name], [name])
    assert sorted(entry["vm"] for entry in lab.api("GET", "/vm-supervisors").json["supervisors"]) == sorted(names)
    theirs = {name: namespaces_of(vm.pid) for name, vm in vms.items()}
    assert len(set().union(*theirs.values())) == MANY * len(KINDS)

    began = time.monotonic()
    for number, vm in enumerate(vms.values()):
        ENDS[number % 4][0](vm)
    codes = [vm.wait(timeout=LONG_S) for vm in vms.values()]
    eventually(lambda: not namespaces() & set().union(*theirs.values()), LONG_S)
    down_s = time.monotonic() - began

    assert codes == [ENDS[number % 4][2] for number in range(MANY)]
    assert leftovers() <= before
    eventually(lambda: lab.api("GET", "/vm-supervisors").json["supervisors"] == [])
    with capsys.disabled():
        print(f" {MANY} VMs up in {up_s:.1f} s, down in {down_s:.1f} s ", end="")
