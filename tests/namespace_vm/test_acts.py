"""Acts on a VM really happen to its program, once per act (spec §6)."""

import json
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
# Each boot is one line, with the files on the disks of the VM.
BOOT = (
    'echo "$FOREWARN_BOOT_ID $(cat /proc/sys/kernel/random/boot_id) $FOREWARN_HOST'
    ' disk=$(ls disk | wc -l) ephemeral=$(ls -A $FOREWARN_EPHEMERAL | wc -l)" >> boots;'
    " touch disk/kept; mkdir -p $FOREWARN_EPHEMERAL/a/b; touch $FOREWARN_EPHEMERAL/.hidden; exec sleep 1000"
)


class Lab:
    def __init__(self, service: FakeSupervisorServer, start: Start, directory: Path) -> None:
        self.service = service
        self._directory = directory
        self._start = start
        (directory / "disk").mkdir()
        self.child = self.run()
        self.wait_for_boots(1)

    def run(self) -> "subprocess.Popen[str]":
        self.child = self._start("web-0", "--", "sh", "-c", f"cd {self._directory}; {BOOT}")
        return self.child

    def boots(self) -> list[list[str]]:
        path = self._directory / "boots"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_boots(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.boots()) < count or not (self.ephemeral / ".hidden").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def ephemeral(self) -> Path:
        return self.service.directory_of("web-0") / "ephemeral"

    def perform(self, verb: str, host: str = "host-1") -> dict[str, object]:
        return self.service.perform("web-0", verb, host=host)


@pytest.fixture
def lab(service: FakeSupervisorServer, start: Start, tmp_path: Path) -> Lab:
    return Lab(service, start, tmp_path)


def test_a_reboot_gives_a_new_boot_id_and_keeps_the_disks(lab: Lab) -> None:
    result = lab.perform("reboot")
    lab.wait_for_boots(2)

    first, second = lab.boots()
    assert result["ok"]
    assert first[0] == first[1] != second[0] == second[1] == result["boot_id"]
    assert second[2:] == ["host-0", "disk=1", "ephemeral=2"]


def test_a_redeploy_empties_the_ephemeral_disk_and_moves_the_vm(lab: Lab) -> None:
    lab.perform("redeploy", host="host-2")
    lab.wait_for_boots(2)

    assert lab.boots()[1][2:] == ["host-2", "disk=1", "ephemeral=0"]
    assert lab.boots()[0][0] != lab.boots()[1][0]


def test_a_reimage_empties_the_ephemeral_disk_and_does_not_move(lab: Lab) -> None:
    lab.perform("reimage", host="host-2")
    lab.wait_for_boots(2)

    assert lab.boots()[1][2:] == ["host-0", "disk=1", "ephemeral=0"]


def test_a_reapply_does_nothing(lab: Lab) -> None:
    assert lab.perform("reapply")["ok"]
    assert len(lab.boots()) == 1


@pytest.mark.parametrize(("verb", "participle"), [("evict", "evicted"), ("delete", "deleted")])
def test_an_evicted_or_deleted_vm_prints_why_and_exits_with_code_0(lab: Lab, verb: str, participle: str) -> None:
    result = lab.perform(verb)

    _, stderr = lab.child.communicate(timeout=30)
    assert (result["ok"], result["state"]) == (True, "down")
    assert (lab.child.returncode, stderr) == (0, f"VM 'web-0' was {participle}: its program was ended\n")
    assert list(lab.ephemeral.iterdir()) == []


@pytest.mark.parametrize(("verb", "left"), [("power-off", 2), ("deallocate", 0)])
def test_a_stopped_vm_stays_down_until_it_is_started(lab: Lab, verb: str, left: int) -> None:
    assert lab.perform(verb)["state"] == "down"
    assert len(list(lab.ephemeral.iterdir())) == left
    assert lab.perform("reboot")["note"] == "the VM was down and stays down"
    assert len(lab.boots()) == 1

    assert lab.perform("start", host="host-2")["state"] == "running"
    lab.wait_for_boots(2)
    assert lab.boots()[1][2] == "host-2"
    assert lab.perform("start")["note"] == "the VM was already running"
    assert len(lab.boots()) == 2


def test_a_repeated_order_has_no_second_effect(lab: Lab) -> None:
    act = lab.service.order("web-0", "reboot", act="one")
    lab.service.outcome("web-0", act)
    lab.wait_for_boots(2)

    lab.service.order("web-0", "reboot", act="one")

    first, second = lab.service.outcome("web-0", "one"), lab.service.outcome("web-0", "one", times=2)
    assert first == second
    assert len(lab.boots()) == 2


def test_an_order_with_an_unknown_effect_fails_with_a_sentence(lab: Lab) -> None:
    lab.service.order_unknown_effect("web-0", "new")
    result = lab.service.outcome("web-0", "new")

    assert (result["ok"], result["note"]) == (False, "a namespace VM cannot 'defragment'")


def test_a_thaw_of_an_unknown_act_fails(lab: Lab) -> None:
    lab.service.thaw("web-0", "unknown")

    assert not lab.service.outcome("web-0", "unknown")["ok"]


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    script = f"trap '' TERM; echo boot >> {tmp_path}/boots; while :; do sleep 0.05; done"
    start("web-0", "--grace", "0.3", "--", "sh", "-c", script)
    while not (tmp_path / "boots").exists():
        time.sleep(0.01)

    assert service.perform("web-0", "reboot")["ok"]


@pytest.mark.parametrize(("abrupt", "farewells"), [(False, 1), (True, 0)], ids=["as planned", "host failed"])
def test_only_a_host_failure_kills_a_program_without_sigterm(
    service: FakeSupervisorServer, start: Start, tmp_path: Path, abrupt: bool, farewells: int
) -> None:
    """Spec §6.4: a failure gives no notice."""
    code = f"cd {tmp_path}; trap 'echo bye >> farewells; exit' TERM; echo up >> boots; while :; do sleep 0.05; done"
    start("web-0", "--", "sh", "-c", code)
    deadline = time.monotonic() + 30
    while not (tmp_path / "boots").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert service.perform("web-0", "redeploy", abrupt=abrupt)["ok"]

    stderr = tmp_path / "farewells"
    assert (stderr.read_text().count("bye") if stderr.exists() else 0) == farewells


def test_a_vm_whose_init_is_killed_during_a_reboot_ends(
    service: FakeSupervisorServer, start: Start, tmp_path: Path
) -> None:
    """As an out-of-memory killer may do: the VM cannot boot again, and the act fails."""
    child = start(
        "web-0",
        "--grace",
        "60",
        "--",
        "sh",
        "-c",
        "trap '' TERM; touch $0/up; while :; do sleep 1; done",
        str(tmp_path),
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    act = service.order("web-0", "reboot")
    service.wait_for(lambda: [stderr for stderr in service.messages_from("web-0") if stderr.get("act") == act])

    (first,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)

    assert service.wait_for_message("web-0", "exited")["exited"]["signal"] == signal.SIGKILL
    assert child.wait(timeout=30) == 128 + signal.SIGKILL


def test_a_restarted_supervisor_knows_the_outcomes_of_earlier_acts(lab: Lab) -> None:
    lab.service.outcome("web-0", lab.service.order("web-0", "reboot", act="one"))
    lab.wait_for_boots(2)
    os.kill(lab.child.pid, signal.SIGKILL)
    lab.child.wait()

    lab.run()
    lab.wait_for_boots(3)
    lab.service.order("web-0", "reboot", act="one")

    assert lab.service.outcome("web-0", "one", times=2)["ok"]
    assert len(lab.boots()) == 3


def test_a_restarted_supervisor_finishes_an_interrupted_act(lab: Lab) -> None:
    os.kill(lab.child.pid, signal.SIGKILL)
    lab.child.wait()
    with (lab.service.directory_of("web-0") / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"act": "half", "effect": "reboot", "wipes_disk": True}) + "\n")

    lab.run()
    lab.wait_for_boots(2)
    lab.service.order("web-0", "redeploy", act="half")

    assert "the VM was started again" in lab.service.outcome("web-0", "half")["note"]
    assert lab.boots()[1][4] == "ephemeral=0"
    assert len(lab.boots()) == 2


@pytest.mark.parametrize("lines", [1, 2], ids=["interrupted", "finished"])
@pytest.mark.parametrize("verb", ["evict", "delete", "power-off", "deallocate"])
def test_a_shutdown_that_a_killed_supervisor_had_begun_is_performed_again(lab: Lab, verb: str, lines: int) -> None:
    """The VM was started again meanwhile, so it would go on running although the service counts it as down."""
    os.kill(lab.child.pid, signal.SIGKILL)
    lab.child.wait()
    start = {"act": "half", "effect": "shut down", "wipes_disk": verb != "power-off"}
    entries = [start, {"act": "half", "ok": True, "note": ""}]
    with (lab.service.directory_of("web-0") / "journal.jsonl").open("a") as journal:
        journal.writelines(json.dumps(entry) + "\n" for entry in entries[:lines])

    lab.run()
    lab.wait_for_boots(2)
    lab.service.order("web-0", verb, act="half")

    result = lab.service.outcome("web-0", "half")
    assert (result["ok"], result["state"]) == (True, "down")
    if verb in ("evict", "delete"):
        assert lab.child.wait(timeout=30) == 0


def test_a_supervisor_empties_the_disk_of_an_interrupted_deallocation_only_once(lab: Lab) -> None:
    os.kill(lab.child.pid, signal.SIGKILL)
    lab.child.wait()
    with (lab.service.directory_of("web-0") / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"act": "half", "effect": "shut down", "wipes_disk": True}) + "\n")

    for boots in (2, 3):
        lab.run()
        lab.wait_for_boots(boots)
        os.kill(lab.child.pid, signal.SIGKILL)
        lab.child.wait()

    assert [boot[4] for boot in lab.boots()] == ["ephemeral=0", "ephemeral=0", "ephemeral=2"]
