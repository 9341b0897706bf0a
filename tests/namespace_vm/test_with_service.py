"""Namespace VMs and the service as real processes: acts happen once to the program inside.

The service or the supervisor is killed meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import ServiceProcess, eventually

pytestmark = pytest.mark.namespaces

Start = Callable[..., "subprocess.Popen[str]"]
INSIDER = Path(__file__).parent / "polling_program.py"
HOSTS = '[[hosts]]\nname = "host-{n}"\ncount = 2\n'
FLEET = HOSTS + '[[vms]]\nname = "web-{n}"\ncount = 2\n'


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        yield service


class Inside:
    """The files that the program in a VM has written."""

    def __init__(self, directory: Path, vm: str) -> None:
        self._directory, self._vm = directory, vm

    def lines(self, what: str) -> list[str]:
        path = self._directory / f"{self._vm}.{what}"
        return [line for line in path.read_text().split("\n")[:-1] if line] if path.exists() else []

    @property
    def boots(self) -> list[str]:
        return self.lines("boots")

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in pairwise(map(float, self.lines("ticks")))), default=0.0)

    @property
    def last_seen(self) -> Any:
        seen = self.lines("seen")
        return json.loads(seen[-1]) if seen else None

    def wait_for_ticks(self) -> None:
        """Wait until the program has ticked a few times more."""
        before = len(self.lines("ticks"))
        eventually(lambda: len(self.lines("ticks")) > before + 5)


RunInside = Callable[..., Inside]


@pytest.fixture
def run_inside(lab: ServiceProcess, start: Start, tmp_path: Path) -> RunInside:
    def start_program(vm: str, *arguments: str, options: tuple[str, ...] = ()) -> Inside:
        start(vm, *options, "--", sys.executable, str(INSIDER), str(tmp_path), *arguments)
        inside = Inside(tmp_path, vm)
        eventually(lambda: inside.last_seen)
        return inside

    return start_program


def ask(service: ServiceProcess, what: str, vm: str) -> str:
    answer = service.api("POST", "/requests", {"operation": what, "vms": [vm]})
    assert answer.status == 202, answer.body
    event_id: str = answer.json["events"][0]["id"]
    return event_id


def freeze(service: ServiceProcess, host: str) -> str:
    """A memory-preserving update of a host (spec §6.4)."""
    assert service.api("POST", "/rollouts", {"impact": "update", "hosts": [host]}).status == 202
    event_id: str = eventually(lambda: service.api("GET", "/events").json["events"])[0]["id"]
    return event_id


def event(service: ServiceProcess, event_id: str) -> Any:
    return service.api("GET", f"/events/{event_id}").json


def wait_until_over(service: ServiceProcess, event_id: str) -> Any:
    def ended() -> Any:
        shown = event(service, event_id)
        return shown if shown["status"] == "over" else None

    return eventually(ended, within_s=60)


def host_of(service: ServiceProcess, vm: str) -> str:
    host: str = service.api("GET", f"/vms/{vm}").json["host"]
    return host


def supervisor_of(service: ServiceProcess, vm: str) -> Any:
    return service.api("GET", f"/vms/{vm}").json["supervisor"]


def test_a_restart_approved_from_inside_reboots_the_program(lab: ServiceProcess, run_inside: RunInside) -> None:
    inside = run_inside("web-0", "approve")
    event_id = ask(lab, "restart", "web-0")
    assert wait_until_over(lab, event_id)["ending"] == "finished"
    eventually(lambda: len(inside.boots) == 2)
    assert len(set(inside.boots)) == 2
    assert supervisor_of(lab, "web-0")["boot_id"] == inside.boots[-1]
    inside.wait_for_ticks()


def test_two_vms_at_once_each_get_their_own_document(lab: ServiceProcess, run_inside: RunInside) -> None:
    """Spec §7.4."""
    first, second = run_inside("web-0"), run_inside("web-1")
    event_id = ask(lab, "restart", "web-0")
    seen = eventually(lambda: first.last_seen["Events"])
    assert [(shown["EventId"], shown["Resources"]) for shown in seen] == [(event_id, ["web-0"])]
    second.wait_for_ticks()
    assert second.last_seen["Events"] == []


def test_a_freeze_pauses_the_program_for_its_duration(lab: ServiceProcess, run_inside: RunInside) -> None:
    """Spec §6.4 says nine seconds; lab time runs four times as fast."""
    inside = run_inside("web-0", "approve")
    lab.api("POST", "/clock/speed", {"speed": 4})
    event_id = freeze(lab, host_of(lab, "web-0"))
    assert wait_until_over(lab, event_id)["ending"] == "finished"
    inside.wait_for_ticks()
    assert inside.longest_gap_s >= 2.0
    assert len(inside.boots) == 1


def test_a_service_killed_during_a_freeze_leaves_no_program_stopped(lab: ServiceProcess, run_inside: RunInside) -> None:
    inside = run_inside("web-0", "approve")
    event_id = freeze(lab, host_of(lab, "web-0"))
    eventually(lambda: (supervisor_of(lab, "web-0") or {}).get("state") == "frozen")
    lab.kill()
    lab.start()
    eventually(lambda: supervisor_of(lab, "web-0"))
    lab.advance(20)
    assert wait_until_over(lab, event_id)["ending"] == "finished"
    inside.wait_for_ticks()
    assert len(inside.boots) == 1
    assert supervisor_of(lab, "web-0")["state"] == "running"


def test_a_freeze_ends_while_the_service_stays_away(lab: ServiceProcess, run_inside: RunInside) -> None:
    """The supervisor's own timer ends the freeze."""
    inside = run_inside("web-0", "approve")
    freeze(lab, host_of(lab, "web-0"))
    eventually(lambda: (supervisor_of(lab, "web-0") or {}).get("state") == "frozen")
    lab.kill()
    inside.wait_for_ticks()


def test_a_service_killed_during_a_reboot_does_not_reboot_twice(lab: ServiceProcess, run_inside: RunInside) -> None:
    inside = run_inside("web-0", "approve", "stubborn", options=("--grace", "2"))
    event_id = ask(lab, "restart", "web-0")
    eventually(lambda: inside.lines("asked"))
    lab.kill()
    lab.start()
    assert wait_until_over(lab, event_id)["ending"] == "finished"
    inside.wait_for_ticks()
    assert len(inside.boots) == 2


def test_a_service_killed_between_commit_and_act_performs_the_act_later(
    lab: ServiceProcess, run_inside: RunInside
) -> None:
    """The supervisor is suspended, so that nothing happens before the service is killed."""
    inside = run_inside("web-0")
    supervisor = supervisor_of(lab, "web-0")["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        event_id = ask(lab, "restart", "web-0")
        assert lab.api("POST", f"/events/{event_id}/approve").status == 200
        eventually(lambda: event(lab, event_id)["status"] == "started")
        lab.kill()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    inside.wait_for_ticks()
    lab.start()
    assert wait_until_over(lab, event_id)["ending"] == "finished"
    inside.wait_for_ticks()
    assert len(inside.boots) == 2


@pytest.fixture
def with_programs(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A fleet file that names the programs of its VMs."""
    line = json.dumps([sys.executable, str(INSIDER), str(tmp_path)])
    fleet = HOSTS + f'[[vms]]\nname = "web-{{n}}"\ncount = 2\nprogram = {line}\nenvironment = {{ COLOUR = "blue" }}\n'
    with ServiceProcess(data=tmp_path, fleet=fleet) as service:
        try:
            yield service
        finally:
            service.kill()
            end_supervisors(tmp_path)


def end_supervisors(data: Path) -> None:
    """End the supervisors that a service of this test has started."""
    for path in (data / "vms").glob("*/supervisor.json"):
        _end(json.loads(path.read_bytes()))


def _end(record: dict[str, Any]) -> None:
    try:
        stat = Path(f"/proc/{record['pid']}/stat").read_text()
    except OSError:
        return
    if stat.rpartition(")")[2].split()[19] == record["started"]:
        os.kill(record["pid"], signal.SIGKILL)


def supervisor_pids(service: ServiceProcess) -> dict[str, int]:
    return {
        supervisor["vm"]: supervisor["pid"] for supervisor in service.api("GET", "/vm-supervisors").json["supervisors"]
    }


def test_programs_of_the_fleet_are_started_and_survive_the_service(
    with_programs: ServiceProcess, tmp_path: Path
) -> None:
    service, inside = with_programs, Inside(tmp_path, "web-0")
    eventually(lambda: inside.last_seen)
    pids = eventually(lambda: len(found := supervisor_pids(service)) == 2 and found)
    service.kill()
    inside.wait_for_ticks()
    service.start()
    assert eventually(lambda: len(found := supervisor_pids(service)) == 2 and found) == pids
    inside.wait_for_ticks()
    assert len(inside.boots) == 1


def test_a_supervisor_that_died_is_started_again(with_programs: ServiceProcess, tmp_path: Path) -> None:
    service, inside = with_programs, Inside(tmp_path, "web-0")
    eventually(lambda: inside.last_seen)
    pid = supervisor_pids(service)["web-0"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: supervisor_pids(service).get("web-0", pid) != pid)
    eventually(lambda: len(inside.boots) == 2)


def test_a_deleted_or_powered_off_vm_stays_down(with_programs: ServiceProcess, tmp_path: Path) -> None:
    service = with_programs
    first, second = Inside(tmp_path, "web-0"), Inside(tmp_path, "web-1")
    eventually(lambda: first.last_seen and second.last_seen)
    for what, vm in (("delete", "web-0"), ("power-off", "web-1")):
        assert wait_until_over(service, ask(service, what, vm))["ending"] == "finished"
    eventually(lambda: list(supervisor_pids(service)) == ["web-1"])
    assert supervisor_of(service, "web-1")["state"] == "down"
    service.kill()
    service.start()
    eventually(lambda: list(supervisor_pids(service)) == ["web-1"])
    assert wait_until_over(service, ask(service, "start", "web-1"))["ending"] == "finished"
    eventually(lambda: len(second.boots) == 2)
    assert len(first.boots) == 1


def test_the_program_of_a_vm_removed_from_the_fleet_ends(with_programs: ServiceProcess, tmp_path: Path) -> None:
    service, inside = with_programs, Inside(tmp_path, "web-0")
    eventually(lambda: inside.last_seen)
    eventually(lambda: len(supervisor_pids(service)) == 2)
    assert service.api("DELETE", "/fleet/vms/web-0").status == 200
    eventually(lambda: list(supervisor_pids(service)) == ["web-1"])


def shown(service: ServiceProcess) -> str:
    entries = service.api("GET", "/history?limit=100").json["entries"]
    return "\n".join(entry["text"] for entry in entries if entry["kind"] == "program")


def test_a_program_that_fails_is_in_the_history_and_can_be_corrected(tmp_path: Path) -> None:
    vms = [("typo", ["/no/such/program"]), ("short", ["sh", "-c", "echo I am done; exit 3"])]
    fleet = HOSTS + "".join(f'[[vms]]\nname = "{vm}"\nprogram = {json.dumps(line)}\n' for vm, line in vms)
    with ServiceProcess(data=tmp_path, fleet=fleet) as service:
        try:
            eventually(lambda: "the supervisor of typo ended with code 127: " in shown(service))
            eventually(lambda: "the program of short ended with code 3; its output: I am done" in shown(service))
            assert "program '/no/such/program' cannot be started in VM 'typo': " in shown(service)
            line = [sys.executable, str(INSIDER), str(tmp_path)]
            mended = HOSTS + "".join(f'[[vms]]\nname = "{vm}"\nprogram = {json.dumps(line)}\n' for vm, _ in vms)
            assert service.api("POST", "/fleet/apply", {"text": mended, "source": "f.toml"}).status == 200
            eventually(lambda: all(Inside(tmp_path, vm).last_seen for vm, _ in vms))
        finally:
            service.kill()
            end_supervisors(tmp_path)
