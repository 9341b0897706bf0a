"""`forewarn network apply`, `check` and `remove`, in namespaces: what VMs then see, and what remains afterwards.

Spec §2.1 and §7.4: a VM sees its own scope only, even if it forges addresses.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.network.conftest import EventsOf, Namespace, World
from tests.support.service_process import eventually

pytestmark = pytest.mark.namespaces

FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 3\n\n[[vms]]\nname = "web-{n}"\ncount = 4\n'
METADATA = "169.254.169.254"
URL = f"http://{METADATA}/metadata/versions"
# Of the programs that apply runs: the last one that reads, those that change something, and two that read again.
FATAL_STEPS = range(5, 11)


@dataclass
class Host:
    """A host, and the commands that run there."""

    namespace: Namespace
    directory: Path
    path: str = os.environ["PATH"]

    def line(self, *arguments: str) -> list[str]:
        program = [sys.executable, "-m", "forewarn", "--data", str(self.directory / "data"), "network", *arguments]
        return ["nsenter", f"--net=/run/netns/{self.namespace.name}", *program, "--state", str(self.state)]

    @property
    def state(self) -> Path:
        return self.directory / "network.json"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("FOREWARN_")}
        environment = {**clean, "PATH": self.path}
        return subprocess.run(self.line(*arguments), capture_output=True, text=True, check=False, env=environment)

    def succeed(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def facts(self) -> dict[str, str]:
        """Everything that the commands may change."""
        return {
            "ruleset": self.namespace.nft("list", "ruleset"),
            "rules": self.namespace.shown("rule"),
            "routes": self.namespace.shown("route", "show", "table", "all"),
            "addresses": self.namespace.shown("-4", "addr"),
            "sysctls": self.namespace.inside(read_sysctls),
        }

    def plan(self, *arguments: str) -> str:
        """The `[[listeners]]` for the service."""
        return self.succeed("plan", "--listeners", *arguments)


def read_sysctls() -> str:
    """The settings of IPv4 in the network namespace of this thread, as `sysctl` prints them."""
    root = Path("/proc/sys")
    paths = [*root.glob("net/ipv4/*fwmark*"), *root.glob("net/ipv4/conf/*/*")]
    names = {path: ".".join(path.relative_to(root).parts) for path in sorted(paths) if os.access(path, os.R_OK)}
    return "\n".join(f"{name} = {path.read_text().strip()}" for path, name in names.items())


@pytest.fixture
def host(world: World) -> Host:
    """A host whose kernel filters strictly, as some distributions set it."""
    namespace = world.namespace("host")
    # Without IPv6 the kernel adds no routes of its own while the test runs.
    namespace.inside(partial(Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text, "1"))
    namespace.sysctl(conf__all__rp_filter=1, conf__default__rp_filter=1, conf__lo__rp_filter=0)
    return Host(namespace, world.directory)


def taps(count: int) -> list[str]:
    return [word for n in range(count) for word in ("--tap", f"web-{n}=tap{n}")]


def mac(n: int) -> str:
    return f"02:00:00:00:00:0{n}"


def address(n: int) -> str:
    return f"10.0.0.1{n}"


PORTS = [word for n in (1, 2) for word in ("--port", f"web-{n}=tap{n},mac={mac(n)},ip={address(n)}")]


def bridge_vms(world: World, host: Host, *, bridge_address: str = "") -> dict[int, Namespace]:
    host.namespace.ip("link add br0 type bridge", "link set br0 up")
    if bridge_address:
        host.namespace.ip(f"addr add {bridge_address} dev br0")
    vms = {}
    for n in (1, 2):
        vms[n] = world.vm(f"vm{n}", host.namespace, f"tap{n}", address(n), mac(n))
        host.namespace.ip(f"link set tap{n} master br0")
    return vms


def curl(vm: Namespace) -> int:
    line = [
        "nsenter",
        f"--net=/run/netns/{vm.name}",
        "curl",
        "--silent",
        "--max-time",
        "20",
        "-H",
        "Metadata: true",
        URL,
    ]
    return subprocess.run(line, capture_output=True, check=False).returncode


def test_vms_with_the_same_address_on_two_taps_see_their_own_document(
    world: World, host: Host, events_of: EventsOf, poll: str
) -> None:
    vms = [world.vm(f"vm{n}", host.namespace, f"tap{n}") for n in range(2)]
    assert vms[0].gets_nothing(), "the kernel's filter drops the packets of taps"
    host.succeed("apply", *taps(2))
    service = world.service(host.namespace, FLEET, host.plan(*taps(2)))
    connections = [vm.connect(source="10.0.0.4", port=40000) for vm in vms]
    assert [connection.ask() for connection in connections] == [(200, "web-0"), (200, "web-1")]
    event_id = service.restart_vm("web-1")
    assert [events_of(connection.ask(poll)) for connection in connections] == [[], [event_id]]

    assert host.succeed("check", *taps(2)) == "this host matches the plan for 2 interfaces\n"
    wrong = host.run("check", "--tap", "web-9=tap0")
    assert (wrong.returncode, "the fleet has no VM 'web-9'" in wrong.stderr) == (2, True)


def test_a_vm_on_a_bridge_that_forges_its_neighbours_address_and_mac_sees_nothing(
    world: World, host: Host, events_of: EventsOf, poll: str
) -> None:
    vms = bridge_vms(world, host)
    host.succeed("apply", *PORTS)
    service = world.service(host.namespace, FLEET, host.plan(*PORTS))
    assert (vms[1].ask(), vms[2].ask()) == ((200, "web-1"), (200, "web-2"))
    event_id = service.restart_vm("web-1")
    connection = vms[1].connect()
    vms[2].ip(f"addr add {address(1)}/24 dev eth0", f"addr del {address(2)}/24 dev eth0")
    vms[2].ip(f"route replace {METADATA} dev eth0")
    assert vms[2].gets_nothing(), "it forges the address only"
    vms[2].ip(
        "link set eth0 down",
        f"link set eth0 address {mac(1)}",
        "link set eth0 up",
        f"route replace {METADATA} dev eth0",
    )
    assert vms[2].gets_nothing()
    assert events_of(connection.ask(poll)) == [event_id]
    assert events_of(vms[1].ask(poll)) == [event_id]


def test_vms_are_refused_at_once_while_no_service_listens(world: World, host: Host) -> None:
    bridged = bridge_vms(world, host, bridge_address="10.0.0.1/24")
    vms = [world.vm("vm0", host.namespace, "tap0"), *bridged.values()]
    arguments = ["--tap", "web-0=tap0", *PORTS]
    host.succeed("apply", *arguments)
    assert [curl(vm) for vm in vms] == [7, 7, 7], "curl exits with 7 if the connection is refused"


def test_a_tap_that_is_created_again_is_followed(world: World, host: Host) -> None:
    vm = world.vm("vm0", host.namespace, "tap0")
    with subprocess.Popen(host.line("apply", "--follow", *taps(2)), stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            lines = iter(child.stdout.readline, "")
            assert any("tap1 of VM web-1 does not exist; waiting" in line for line in lines)
            assert curl(vm) == 7
            busy = host.run("apply", *taps(1))
            assert (busy.returncode, f"(process {child.pid})" in busy.stderr) == (2, True)
            for _ in range(2):
                host.namespace.ip("link del tap0")
                world.plug(vm, host.namespace, "tap0")
                eventually(lambda: vm_is_refused(vm))
            late = world.vm("vm1", host.namespace, "tap1")
            eventually(lambda: vm_is_refused(late))
            host.namespace.nft("flush", "ruleset")
            eventually(lambda: "forewarn_network" in host.namespace.nft("list", "ruleset"))
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 0
    assert host.succeed("check", *taps(2)).startswith("this host matches the plan")


def vm_is_refused(vm: Namespace) -> bool:
    try:
        vm.connect(timeout_s=0.5)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def test_the_second_apply_changes_nothing_and_remove_leaves_the_host_as_it_was(world: World, host: Host) -> None:
    host.namespace.nft("add", "table", "ip", "somebody")
    host.namespace.ip("rule add fwmark 7 lookup 107", "route add blackhole 192.0.2.0/24 table 107")
    world.vm("vm0", host.namespace, "tap0")
    bridge_vms(world, host)
    arguments = ["--tap", "web-0=tap0", *PORTS]
    before = host.facts()

    first = json.loads(host.succeed("apply", "--json", *arguments))
    assert first["changes"]
    applied = host.facts()
    assert "net.ipv4.conf.lo.rp_filter = 1" in applied["sysctls"], "other devices stay as strict as they were"
    assert json.loads(host.succeed("apply", "--json", *arguments))["changes"] == []
    assert host.facts() == applied

    assert host.succeed("remove") == "removed: this host is as it was before\n"
    assert host.facts() == before
    assert host.succeed("remove") == "nothing is applied here\n"


def test_check_names_each_difference_and_apply_corrects_it(world: World, host: Host) -> None:
    world.vm("vm0", host.namespace, "tap0")
    host.succeed("apply", *taps(1))
    host.namespace.sysctl(fwmark_reflect=0)
    host.namespace.ip(f"addr del {METADATA}/32 dev lo")
    host.namespace.nft("delete", "element", "ip", "forewarn_network", "taps", '{ "tap0" }')
    host.namespace.nft("add", "rule", "ip", "forewarn_network", "output", "drop")
    mark = json.loads(host.succeed("plan", "--json", *taps(1)))["interfaces"][0]["mark"]
    host.namespace.ip(f"route flush table {mark}")
    done = host.run("check", *taps(1))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "the firewall lacks the guard of tap0",
        "the rules of table ip forewarn_network are not those that were loaded",
        "net.ipv4.fwmark_reflect is 0 instead of 1",
        "no device has the address 169.254.169.254",
        f"there is no route for refusals to tap0 in table {mark}",
    ]
    host.succeed("apply", *taps(1))
    assert host.succeed("check", *taps(1)).startswith("this host matches the plan")


def test_a_vm_that_is_dropped_from_the_file_leaves_nothing(world: World, host: Host) -> None:
    for n in range(2):
        world.vm(f"vm{n}", host.namespace, f"tap{n}")
    before = host.facts()
    file = host.directory / "interfaces.toml"
    texts = [f'[[interfaces]]\nvm = "web-{n}"\ntap = "tap{n}"\n' for n in range(2)]
    file.write_text("".join(texts))
    host.succeed("apply", "--file", str(file))
    file.write_text(texts[0])
    host.succeed("apply", "--file", str(file))
    facts = host.facts()
    assert "tap1" not in facts["ruleset"] + facts["rules"]
    assert "net.ipv4.conf.tap1.rp_filter = 1" in facts["sysctls"]
    refused = host.run("apply", "--tap", "web-1=tap1")
    assert (refused.returncode, "does not name its tap0" in refused.stderr) == (2, True)
    assert host.facts() == facts
    host.succeed("apply", "--replace", "--tap", "web-1=tap1")
    host.succeed("remove")
    assert host.facts() == before


@pytest.fixture
def deadly_programs(host: Host) -> Path:
    """`ip` and `nft` that kill their caller with SIGKILL after as many calls as the file `left` says."""
    directory = host.directory / "programs"
    directory.mkdir()
    for name in ("ip", "nft"):
        script = directory / name
        script.write_text(
            f'#!/bin/sh\n{shutil.which(name)} "$@" || exit\nleft=$(cat {directory}/left)\n'
            f'echo $((left - 1)) >{directory}/left\n[ "$left" -gt 1 ] || kill -9 $PPID\n'
        )
        script.chmod(0o755)
    return directory


def test_after_a_kill_in_the_middle_of_apply_the_next_command_continues(
    world: World, host: Host, deadly_programs: Path
) -> None:
    """Each program that apply runs is the last one of one attempt; then either apply or remove follows."""
    world.vm("vm0", host.namespace, "tap0")
    bridge_vms(world, host)
    arguments = ["--tap", "web-0=tap0", *PORTS]
    before = host.facts()
    host.succeed("apply", *arguments)
    applied = host.facts()
    host.succeed("remove")
    for step in FATAL_STEPS:
        (deadly_programs / "left").write_text(f"{step}\n")
        mortal = Host(host.namespace, host.directory, f"{deadly_programs}:{host.path}")
        assert mortal.run("apply", *arguments).returncode == -signal.SIGKILL
        if step % 2:
            host.succeed("apply", *arguments)
            assert host.facts() == applied
        host.succeed("remove")
        assert host.facts() == before


BAD_INPUTS = [
    (["--tap", "web-0=tap9"], "tap tap9 of VM web-0 does not exist: start the VM first"),
    (["--tap", "web-0=tap0", "--tap", "web-1=tap0"], "device tap0 is named for VM web-0 and VM web-1"),
    (["--tap", "web-1=tap1"], "tap tap1 of VM web-1 is a port of br0"),
    (["--port", f"web-0=tap0,mac={mac(2)}"], "port tap0 of VM web-0 is in no bridge: "),
    (["--tap", "web-0=lo"], "tap lo of VM web-0 is a device of the host itself"),
    (["--tap", "web-0=br0"], "tap br0 of VM web-0 is a bridge"),
    (["--port", "web-1=tap1"], "port tap1 of VM web-1 has no MAC"),
    ([], "no VM is named"),
]


def test_bad_input_gets_one_sentence_and_changes_nothing(world: World, host: Host) -> None:
    world.vm("vm0", host.namespace, "tap0")
    bridge_vms(world, host)
    before = host.facts()
    for arguments, sentence in BAD_INPUTS:
        done = host.run("apply", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(sentence), done.stderr
        assert done.stderr.count("\n") == 1
    host.state.write_text("{")
    done = host.run("apply", *taps(1))
    assert (done.returncode, f"state file {host.state} cannot be read" in done.stderr) == (2, True)
    host.state.unlink()
    host.namespace.nft("add", "table", "bridge", "forewarn_marks")
    by_hand = host.run("apply", *taps(1))
    assert (by_hand.returncode, "delete table bridge forewarn_marks" in by_hand.stderr) == (2, True)
    host.namespace.nft("delete", "table", "bridge", "forewarn_marks")
    assert host.facts() == before
