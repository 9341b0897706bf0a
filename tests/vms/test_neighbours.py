"""Two real guests with the same address and the same MAC on two taps of one host: each sees its own document only.

Both are clones of one saved guest, which polls all the time. Spec §2.1 and §7.4.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support.service_process import ServiceProcess
from tests.vms.conftest import CloneGuest
from tests.vms.hosts import DEVICE, GUEST_ADDRESS, HOST_NAMES, ROOT, VM, HostSetup, QemuSite, wait_for

pytestmark = [pytest.mark.vms, pytest.mark.timeout(1200)]
FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 2\n\n[[vms]]\nname = "web-{n}"\ncount = 2\n'
NEIGHBOUR_DEVICE = "tap1"
MAC, OTHER_MAC = "52:54:00:00:00:01", "52:54:00:00:00:02"
OTHER_ADDRESS = "10.0.0.5"
CloneNeighbour = Callable[[QemuSite, str], HostSetup]


def inside(host: HostSetup, *arguments: str) -> None:
    """Run a program in the host's network."""
    line = ["ip", "netns", "exec", host.namespace, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"


def service_for(site: QemuSite, listeners: str) -> ServiceProcess:
    """A service that only simulates acts, so that both guests keep polling."""
    config = site.directory / "settings.toml"
    config.write_text(f'enablement = "always"\n{listeners}')
    return ServiceProcess(
        data=site.directory / "data", fleet=FLEET, command="serve", arguments=("--config", str(config))
    )


def add_tap(host: HostSetup) -> None:
    inside(host, "ip", "tuntap", "add", NEIGHBOUR_DEVICE, "mode", "tap")
    inside(host, "ip", "link", "set", NEIGHBOUR_DEVICE, "address", "12:34:56:78:9a:bc", "up")


def restart(service: ServiceProcess, vm: str) -> str:
    answer = service.api("POST", "/requests", {"operation": "restart", "vms": [vm]})
    assert answer.status == 202, answer.body
    return str(answer.json["events"][0]["id"])


def saw(host: HostSetup, event_id: str) -> None:
    wait_for(rf'^doc \{{.*"{event_id}"', host.console)


def documents(host: HostSetup) -> str:
    return "\n".join(re.findall(r"^doc .*", host.console_text(), re.MULTILINE))


def test_two_guests_with_the_same_address_on_two_taps_each_see_their_own_document(
    site: QemuSite, clone_guest: CloneGuest, clone_neighbour: CloneNeighbour
) -> None:
    host = site.hosts[HOST_NAMES[0]]
    add_tap(host)
    listeners = "".join(
        f'[[listeners]]\nby = "device"\nnamespace = "{host.namespace}"\ndevice = "{device}"\nvm = "{vm}"\n'
        for device, vm in ((DEVICE, VM), (NEIGHBOUR_DEVICE, "web-1"))
    )
    clone_guest(site)
    neighbour = clone_neighbour(site, NEIGHBOUR_DEVICE)
    with service_for(site, listeners) as service:
        first, second = restart(service, VM), restart(service, "web-1")
        saw(host, first)
        saw(neighbour, second)
        wait_for(rf"^approved {first}", host.console)
        assert service.api("GET", f"/events/{first}").json["approved_by"] == VM
    assert second not in documents(host)
    assert first not in documents(neighbour)


def _bridge(host: HostSetup) -> None:
    """Connect both taps to a bridge, as docs/how-to/network.md says; each port has its own MAC and address."""
    add_tap(host)
    inside(host, "ip", "link", "add", "br0", "address", "12:34:56:78:9a:bc", "type", "bridge")
    inside(host, "ip", "link", "set", "br0", "up")
    inside(host, "ip", "address", "del", "10.0.0.1/24", "dev", DEVICE)
    inside(host, "ip", "address", "add", "10.0.0.1/24", "dev", "br0")
    inside(host, "sysctl", "-q", "-w", "net.ipv4.tcp_fwmark_accept=1")
    for rules in ("bridge-marks.nft", "bridge-guard.nft"):
        inside(host, "nft", "-f", str(ROOT / "docs" / "how-to" / "network" / rules))
    ports = ((DEVICE, 1, MAC, GUEST_ADDRESS), (NEIGHBOUR_DEVICE, 2, OTHER_MAC, OTHER_ADDRESS))
    for device, mark, mac, address in ports:
        inside(host, "ip", "link", "set", device, "master", "br0")
        inside(host, "nft", "add", "element", "bridge", "forewarn_marks", "mark_of", f'{{ "{device}" : {mark} }}')
        _allow(host, device, mac, address)
        inside(host, "nft", "add", "element", "bridge", "forewarn_guard", "guarded", f'{{ "{device}" }}')


def _allow(host: HostSetup, device: str, mac: str, address: str) -> None:
    guard = ("nft", "add", "element", "bridge", "forewarn_guard")
    inside(host, *guard, "macs", f'{{ "{device}" . {mac} }}')
    inside(host, *guard, "addresses", f'{{ "{device}" . {address} }}')


def test_a_guest_that_forges_the_address_and_mac_of_its_neighbour_sees_nothing(
    site: QemuSite, clone_guest: CloneGuest, clone_neighbour: CloneNeighbour
) -> None:
    host = site.hosts[HOST_NAMES[0]]
    _bridge(host)
    marks = f'[[listeners]]\nby = "mark"\nnamespace = "{host.namespace}"\ndevice = "br0"\n'
    with service_for(site, marks + f'marks = {{1 = "{VM}", 2 = "web-1"}}\n') as service:
        clone_guest(site)
        wait_for(r"^doc \{", host.console)
        forger = clone_neighbour(site, NEIGHBOUR_DEVICE)
        first, second = restart(service, VM), restart(service, "web-1")
        saw(host, first)
        wait_for(rf"^approved {first}", host.console)
        forger.wait_for_ticks(50)  # five seconds, in which it polls
        assert documents(forger) == ""

        # It has polled all the time: with the neighbour gone and its own addresses allowed, it gets its own document.
        os.kill(int((host.directory / f"{VM}.pid").read_text()), signal.SIGKILL)
        _allow(host, NEIGHBOUR_DEVICE, MAC, GUEST_ADDRESS)
        saw(forger, second)
    assert first not in documents(forger)
    assert second not in documents(host)
