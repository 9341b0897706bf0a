"""The scripts for Proxmox VE, and their page, with stand-ins for the programs of Proxmox."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.core.fleetfile.reader import read_fleet_file
from forewarn.machines.command import CommandHypervisor, command_input
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.service.settings import HypervisorKind, load_settings
from tests.support.markdown_pages import ROOT, blocks
from tests.support.service_process import eventually

SCRIPTS = ROOT / "deploy" / "proxmox"
PAGE = ROOT / "docs" / "how-to" / "proxmox.md"
INSTALLED = "/usr/local/lib/forewarn/act"
NOW = 1_700_000_000.0
# Records its calls; `status` answers with a file, and `migrate` moves the configuration as the cluster does.
QM = """#!/bin/sh
echo "qm $*" >>"$PVE_DIRECTORY/calls"
case $1 in
status) cat "$PVE_DIRECTORY/status" ;;
shutdown) echo 'status: stopped' >"$PVE_DIRECTORY/status" ;;
start) echo 'status: running' >"$PVE_DIRECTORY/status" ;;
reboot) test ! -e "$PVE_DIRECTORY/ignores-acpi" ;;
migrate) mv "$PVE_DIRECTORY"/nodes/*/qemu-server/"$2.conf" "$PVE_DIRECTORY/nodes/$3/qemu-server/" ;;
esac
"""
SSH = '#!/bin/sh\nshift 2\necho "ssh $1" >>"$PVE_DIRECTORY/calls"\nshift\nexec "$@"\n'
HOSTNAME = "#!/bin/sh\necho pve-1\n"
HOOK = '#!/bin/sh\necho "$*" >>"$PVE_DIRECTORY/calls"\nexit 1\n'


@dataclass(frozen=True)
class Cluster:
    """Two nodes as in /etc/pve; the scripts run on the first one. VM 100 is web-0, which runs on the first node."""

    directory: Path

    def __post_init__(self) -> None:
        for node in ("pve-1", "pve-2"):
            (self.directory / "nodes" / node / "qemu-server").mkdir(parents=True)
        self.configuration("pve-1", 100).write_text("cores: 1\nname: web-0\n\n[before-upgrade]\nname: old-name\n")
        self.configuration("pve-2", 101).write_text("name: web-1\n")
        (self.directory / "status").write_text("status: running\n")
        (self.directory / "bin").mkdir()
        for name, script in (("qm", QM), ("ssh", SSH), ("hostname", HOSTNAME), ("hook", HOOK)):
            (self.directory / "bin" / name).write_text(script)
            (self.directory / "bin" / name).chmod(0o755)

    def configuration(self, node: str, vm_id: int) -> Path:
        return self.directory / "nodes" / node / "qemu-server" / f"{vm_id}.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PVE_DIRECTORY": str(self.directory),
            "FOREWARN_HOOK": str(self.directory / "bin" / "hook"),
        }

    def calls(self) -> list[str]:
        """Return the commands that were run, without questions."""
        path = self.directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith("qm status")]

    def act(self, verb: Verb, vm: str = "web-0", **fields: str) -> subprocess.CompletedProcess[str]:
        given = {f"FOREWARN_{name.upper()}": value for name, value in command_input(act_of(verb, vm)).items()}
        return subprocess.run(
            [SCRIPTS / "act"],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment | given | {"FOREWARN_DURATION": "0"} | fields,
        )


def act_of(verb: Verb, vm: str = "web-0") -> Act:
    to_host = "pve-2" if verb in (Verb.MIGRATE, Verb.REDEPLOY) else ""
    return Act(
        id=f"E:{vm}", vm=f"s/g/{vm}", name=vm, verb=verb, event_id="E", from_host="pve-1", to_host=to_host, duration_s=0
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "pve")


STOP = "qm shutdown 100 --timeout 120 --forceStop 1"
MOVED = "ssh root@pve-2"


@pytest.mark.parametrize(
    ("verb", "calls"),
    [
        (Verb.FREEZE, ["qm suspend 100", "qm resume 100"]),
        (Verb.REBOOT, ["qm reboot 100 --timeout 120"]),
        (Verb.MIGRATE, ["qm migrate 100 pve-2 --online"]),
        (Verb.REDEPLOY, [STOP, "qm migrate 100 pve-2", MOVED, MOVED, "qm start 100"]),
        (Verb.EVICT, [STOP]),
        (Verb.POWER_OFF, [STOP]),
        (Verb.DEALLOCATE, [STOP]),
        (Verb.START, []),
    ],
)
def test_the_commands_of_the_page_carry_each_act_out_with_qm(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb, calls: list[str]
) -> None:
    text = next(block.text for block in blocks(PAGE) if "[commands]" in block.text)
    config = tmp_path / "settings.toml"
    config.write_text(text.replace(INSTALLED, str(SCRIPTS / "act")))
    settings = load_settings({}, lab=False, config=config, environ={"HOME": "/root"})
    assert settings.hypervisor is HypervisorKind.COMMAND
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)

    async def perform() -> ActDone:
        hypervisor = CommandHypervisor(settings.commands, tmp_path / "commands")
        try:
            while isinstance(answer := await hypervisor.perform(act_of(verb), NOW), ActUnderWay):
                pass
            return answer
        finally:
            await hypervisor.close()

    done = asyncio.run(perform())
    assert done.ok, done.note
    assert cluster.calls() == calls


def test_the_fleet_of_the_page_is_accepted() -> None:
    fleet = read_fleet_file(next(block.text for block in blocks(PAGE) if "[[hosts]]" in block.text))
    assert [vm.name for vm in fleet.vms] == ["web-0"]


def test_a_vm_of_another_node_is_reached_over_ssh_and_started_once(cluster: Cluster) -> None:
    (cluster.directory / "status").write_text("status: stopped\n")
    assert cluster.act(Verb.START, "web-1").returncode == 0
    assert cluster.act(Verb.START, "web-1").returncode == 0
    calls = cluster.calls()
    assert calls.count("qm start 101") == 1
    assert set(calls) == {"ssh root@pve-2", "qm start 101"}


def test_a_migration_that_was_done_is_not_repeated(cluster: Cluster) -> None:
    for _ in range(2):
        assert cluster.act(Verb.MIGRATE).returncode == 0
    assert cluster.calls() == ["qm migrate 100 pve-2 --online"]


def test_a_guest_that_ignores_acpi_is_reset(cluster: Cluster) -> None:
    (cluster.directory / "ignores-acpi").touch()
    assert cluster.act(Verb.REBOOT, SHUTDOWN_TIMEOUT_S="5").returncode == 0
    assert cluster.calls() == ["qm reboot 100 --timeout 5", "qm reset 100"]


@pytest.mark.parametrize(
    ("verb", "vm", "message"),
    [
        (Verb.REBOOT, "web-7", "no VM of this name exists"),
        (Verb.REBOOT, "old-name", "no VM of this name exists"),
        (Verb.DELETE, "web-0", "this script has no such act"),
    ],
    ids=["unknown VM", "name in a snapshot", "unknown act"],
)
def test_what_cannot_be_done_fails_with_a_sentence(cluster: Cluster, verb: Verb, vm: str, message: str) -> None:
    done = cluster.act(verb, vm)
    assert (done.returncode, done.stderr) == (1, f"{verb} of {vm}: {message}\n")
    assert cluster.calls() == []


def test_two_vms_of_one_name_are_not_touched(cluster: Cluster) -> None:
    cluster.configuration("pve-2", 102).write_text("name: web-0\n")
    done = cluster.act(Verb.REBOOT)
    assert (done.returncode, done.stderr) == (1, "reboot of web-0: 2 VMs have this name\n")
    assert cluster.calls() == []


def test_a_vm_goes_on_after_a_freeze_that_was_interrupted(cluster: Cluster) -> None:
    given = {f"FOREWARN_{name.upper()}": value for name, value in command_input(act_of(Verb.FREEZE)).items()}
    environment = cluster.environment | given | {"FOREWARN_DURATION": "600"}
    child = subprocess.Popen([SCRIPTS / "act"], env=environment, start_new_session=True)
    try:
        eventually(lambda: cluster.calls() == ["qm suspend 100"], within_s=60)
    finally:
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:  # a signal before the trap is set ends it at once
            os.killpg(child.pid, signal.SIGTERM)
            time.sleep(0.1)
    assert child.returncode == 1
    assert cluster.calls() == ["qm suspend 100", "qm resume 100"]


@pytest.mark.parametrize(
    ("environment", "operation"),
    [({}, "prepare"), ({"PVE_MIGRATED_FROM": "pve-2"}, "migrate")],
    ids=["start", "arrival"],
)
def test_the_hookscript_asks_the_hook_before_a_vm_starts(
    cluster: Cluster, environment: dict[str, str], operation: str
) -> None:
    def run(vm_id: str, phase: str) -> int:
        line = [str(SCRIPTS / "hookscript"), vm_id, phase]
        return subprocess.run(line, env=cluster.environment | environment, check=False).returncode

    for phase in ("post-start", "pre-stop", "post-stop"):
        assert run("100", phase) == 0
    assert run("999", "pre-start") == 0, "a VM without a configuration is not in the fleet"
    assert cluster.calls() == []
    assert run("100", "pre-start") == 1, "the answer of the hook"
    assert cluster.calls() == [f"web-0 {operation} begin -"]
