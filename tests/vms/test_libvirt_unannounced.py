"""What others do to domains of libvirt, and crashes, are recorded by a running service; a hook can refuse them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from forewarn.core.unannounced import ObservedMachine, ObservedState, StateCause
from forewarn.machines.driver import HostUnreachable
from forewarn.machines.libvirt.connection import LibvirtHost
from forewarn.machines.libvirt.driver import LibvirtDriver
from tests.support.service_process import ServiceProcess, eventually
from tests.vms.hosts import VM
from tests.vms.libvirt_hosts import TIMEOUT_S, LibvirtDaemon, domain, driver_of

pytest.importorskip("libvirt", reason="libvirt's Python module is missing: `make test-vms` installs it")
HOOK = Path(__file__).parents[2] / "deploy" / "libvirt" / "qemu.d" / "forewarn"
# So long that what a test finds was found because of an event, or because the service looked when it started.
SETTINGS = 'hypervisor = "libvirt"\n[machines]\nobserve_interval_s = 600\nacpi_timeout_s = 1\n'
DOMAIN = f"""
<domain type='qemu'><name>{VM}</name><uuid>11111111-1111-4111-8111-111111111111</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
<features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model='none'/></devices></domain>
"""  # it runs only firmware, and starts at once
S, C = ObservedState, StateCause


@pytest.mark.vms
def test_one_listing_has_all_domains_of_a_host_with_the_cause_of_their_states(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain(), B=domain()) as driver:
            assert driver.hosts == ("a", "B")
            assert await driver.observe("a") == {"web-1": ObservedMachine(state=S.RUNNING, instance="1")}
            await driver.pause("a", "web-1")
            assert (await driver.observe("A"))["web-1"].state is S.PAUSED
            await driver.resume("a", "web-1")
            await driver.press_power_button("a", "web-1")
            assert (await driver.observe("a"))["web-1"] == ObservedMachine(state=S.OFF, cause=C.GUEST)
            await driver.power_on("a", "web-1")
            assert (await driver.observe("a"))["web-1"] == ObservedMachine(state=S.RUNNING, instance="2")
            await driver.power_off("a", "web-1")
            assert (await driver.observe("a"))["web-1"] == ObservedMachine(state=S.OFF, cause=C.OPERATOR)
            await driver.remove("a", "web-1", delete_disks=False)
            assert await driver.observe("a") == {}
            assert len(await driver.observe("b")) == 1

    asyncio.run(scenario())


@pytest.mark.vms
def test_each_change_that_a_host_reports_names_the_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with driver_of(tmp_path, a=domain()) as driver:
            await driver.state("a", "web-1")
            changes = driver.changed_hosts()
            first = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)  # the iterator has subscribed
            await driver.pause("a", "web-1")
            assert await first == "a"
            await changes.aclose()

    asyncio.run(scenario())


@pytest.mark.vms
def test_a_host_without_a_daemon_cannot_be_observed(tmp_path: Path) -> None:
    async def scenario() -> None:
        driver = LibvirtDriver({"a": LibvirtHost(uri=f"qemu+unix:///system?socket={tmp_path}/none")}, tmp_path)
        with pytest.raises(HostUnreachable, match="host a cannot be reached"):
            await driver.observe("a")
        await driver.close()

    asyncio.run(scenario())


class LibvirtSite:
    """Real daemons, a service of them, and a VM on the first one."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.directory = directory
        self.daemons = {name: LibvirtDaemon(name, number, directory / name) for number, name in enumerate(names, 1)}
        config = directory / "settings.toml"
        hosts = "".join(f'[libvirt.hosts.{name}]\nuri = "{daemon.uri}"\n' for name, daemon in self.daemons.items())
        config.write_text(SETTINGS + hosts)
        fleet = "".join(f'[[hosts]]\nname = "{name}"\n' for name in names) + f'[[vms]]\nname = "{VM}"\nhost = "kvm-a"\n'
        self.service = ServiceProcess(
            data=directory / "data", fleet=fleet, arguments=("--config", str(config)), start_s=TIMEOUT_S
        )

    def start(self) -> None:
        """Start the daemons, the VM, and the service, and wait until the fleet is compared with them."""
        for daemon in self.daemons.values():
            daemon.start()
        (self.directory / "domain.xml").write_text(DOMAIN)
        self.virsh("kvm-a", "define", str(self.directory / "domain.xml"))
        self.service.start()
        self.wait_for(f"{VM} is off on kvm-a: the fleet follows its hosts", what="fleet")
        self.virsh("kvm-a", "start", VM)
        self.wait_for(f"{VM} started on kvm-a: started by somebody else, without notice")

    def install_hook(self, host: str) -> None:
        """Install the hook on a host whose daemon has not started; `set_hook_mode` writes its settings."""
        folder = self.daemons[host].directory / "etc" / "hooks" / "qemu.d"
        folder.mkdir(parents=True)
        script = folder / "forewarn"  # it names the settings, because libvirt passes on no environment
        script.write_text(
            f'#!/bin/sh\nFOREWARN_LIBVIRT_HOOK={self.directory}/hook.toml exec {sys.executable} {HOOK} "$@"\n'
        )
        script.chmod(0o755)

    def set_hook_mode(self, mode: str) -> None:
        """Let the hook report or refuse what no event announces."""
        (self.directory / "hook.toml").write_text(
            f'mode = "{mode}"\nsocket = "{self.service.data}/forewarn.sock"\n'
            f'log = "{self.directory}/hook.log"\ntimeout_s = 60\n'
        )

    def virsh(self, host: str, *arguments: str, fails: bool = False) -> str:
        """Run virsh as somebody else would; returns what it prints."""
        done = subprocess.run(
            ["virsh", "-c", self.daemons[host].uri, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode != 0) is fails, done
        return done.stdout + done.stderr

    def recorded(self, what: str = "unannounced") -> list[str]:
        entries = self.service.api("GET", "/history?limit=1000").json["entries"]
        return [entry["text"] for entry in entries if entry["kind"] == what]

    def wait_for(self, text: str, *, what: str = "unannounced") -> None:
        eventually(lambda: any(entry.startswith(text) for entry in self.recorded(what)), within_s=TIMEOUT_S)

    def perform(self, ask: str) -> None:
        """Request an operation on the VM, approve its event, and wait until it has succeeded."""
        event = self.service.api("POST", "/requests", {"operation": ask, "vms": [VM]}).json["events"][0]
        if event["status"] == "scheduled":
            self.service.api("POST", f"/events/{event['id']}/approve")
        path = f"/events/{event['id']}"
        eventually(lambda: self.service.api("GET", path).json["status"] == "over", within_s=TIMEOUT_S)
        assert self.service.api("GET", path).json["ending"] == "finished"

    def close(self) -> None:
        with ExitStack() as stack:
            for daemon in self.daemons.values():
                stack.callback(daemon.close)
            stack.callback(self.service.kill)


@contextmanager
def running_site(*names: str, hook_on: str = "") -> Iterator[LibvirtSite]:
    directory = Path(tempfile.mkdtemp(prefix="fwlv-"))  # short: the path of a Unix socket is limited
    site = LibvirtSite(directory, *names)
    if hook_on:
        site.install_hook(hook_on)
    try:
        site.start()
        yield site
    finally:
        site.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.vms
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_can_run_vms")
def test_a_crash_a_pause_and_a_lost_daemon_are_recorded_at_once() -> None:
    with running_site("kvm-a") as site:
        daemon = site.daemons["kvm-a"]
        site.virsh("kvm-a", "suspend", VM)
        site.wait_for(f"{VM} is paused on kvm-a: paused by somebody else, without notice")
        site.virsh("kvm-a", "resume", VM)
        site.wait_for(f"{VM} runs again on kvm-a")
        os.kill(int((daemon.directory / "run" / "qemu" / f"{VM}.pid").read_text()), signal.SIGKILL)
        site.wait_for(f"{VM} is off on kvm-a: it crashed, without notice")
        assert site.service.api("GET", f"/vms/{VM}").json["power"] == "stopped"
        site.perform("start")
        daemon.stop(signal.SIGKILL)
        site.wait_for("host kvm-a does not answer")
        assert site.service.api("GET", f"/vms/{VM}").json["power"] == "running"
        daemon.start()
        site.wait_for("host kvm-a answers again")
        assert len(site.recorded()) == 6, site.recorded()
        explained = " ".join(site.service.forewarn("explain", VM).stdout.split())
        assert "it crashed, without notice" in explained


@pytest.mark.vms_long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_can_run_vms")
def test_a_migration_with_virsh_is_recorded_the_fleet_follows_and_the_hook_can_refuse_it() -> None:
    with running_site("kvm-a", "kvm-b", hook_on="kvm-b") as site:
        service, target = site.service, site.daemons["kvm-b"].uri
        how = ("--live", "--persistent", "--undefinesource", "--migrateuri", f"unix://{site.directory}/m.sock")
        to_b = ("migrate", *how, VM, target)
        site.set_hook_mode("refuse")
        assert "no started event of forewarn announces it: refused" in site.virsh("kvm-a", *to_b, fails=True)
        before = site.recorded()
        assert "running" in site.virsh("kvm-a", "domstate", VM)
        site.set_hook_mode("report")
        site.virsh("kvm-a", *to_b)
        assert "no started event of forewarn announces it: allowed" in (site.directory / "hook.log").read_text()
        moved = f"{VM} is on kvm-b instead of kvm-a: moved by somebody else, without notice"
        site.wait_for(moved)
        assert service.api("GET", f"/vms/{VM}").json["host"] == "kvm-b"
        site.set_hook_mode("refuse")
        site.perform("restart")  # the hook lets acts of the service pass
        assert "running" in site.virsh("kvm-b", "domstate", VM)
        site.virsh("kvm-b", "destroy", VM)
        powered_off = f"{VM} is off on kvm-b: powered off by somebody else, without notice"
        site.wait_for(powered_off)
        assert "is started, and no started event" in site.virsh("kvm-b", "start", VM, fails=True)
        assert site.recorded() == [*before, moved, powered_off]
