"""Discovery in real namespaces: a VM outside a virtual network finds its endpoint by DHCP (spec §2.5)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import why_namespaces_are_unavailable
from tests.support.service_process import ServiceProcess

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(
        bool(why_namespaces_are_unavailable()),
        reason=f"this machine forbids namespaces: {why_namespaces_are_unavailable()}",
    ),
]
FLEET = '[[hosts]]\nname = "host-{n}"\ncount = 1\n[[vms]]\nname = "web-{n}"\ncount = 2\n'
PROGRAM = """
import asyncio, json
from forewarn.client import AsyncClient, Client
client, other = Client(), AsyncClient()
print(json.dumps([str(client.discover()), client.name(), [event.kind for event in client.own_events()],
                  str(asyncio.run(other.discover()))]))
"""


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [(("--no-vnet",), "http://168.63.129.16"), ((), "http://169.254.169.254")],
    ids=["outside a virtual network", "inside one"],
)
def test_a_client_in_a_vm_discovers_its_endpoint(tmp_path: Path, options: tuple[str, ...], endpoint: str) -> None:
    with ServiceProcess(data=tmp_path, fleet=FLEET) as service:
        service.api("POST", "/requests", {"operation": "restart", "vms": ["web-1"]})
        result = service.forewarn("vm", "run", "web-1", "--isolated", *options, "--", sys.executable, "-c", PROGRAM)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [endpoint, "web-1", ["Reboot"], endpoint]


DNSMASQ = Path("/usr/sbin/dnsmasq")
NETWORK = """
set -e
ip link set lo up
ip link add guest type veth peer name host
ip addr add 10.0.0.1/24 dev host
ip link set host up; ip link set guest up
echo 1 > /proc/sys/net/ipv4/conf/all/accept_local  # both ends are in one namespace
dnsmasq --no-daemon --conf-file=/dev/null --port=0 --interface=host --bind-interfaces \
  --dhcp-range=10.0.0.10,10.0.0.20,1h --dhcp-option-force=245,168.63.129.16 --dhcp-leasefile="$1/leases" --no-ping &
"$2" -c '
from forewarn.client.dhcp import ask_for_endpoint, ethernet_interfaces
(guest,) = (interface for interface in ethernet_interfaces() if interface.name == "guest")
print(next(filter(None, (ask_for_endpoint(guest, answer_timeout_s=1) for _ in range(20)))))
'
"""


@pytest.mark.skipif(not DNSMASQ.exists(), reason="dnsmasq is not installed")
def test_the_client_understands_dnsmasq(tmp_path: Path) -> None:
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "bash",
        "-c",
    ]
    result = subprocess.run(
        [*command, NETWORK, "bash", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "168.63.129.16\n", result.stderr


def test_without_privileges_the_error_says_what_is_missing(tmp_path: Path) -> None:
    """As an unprivileged user, in an empty network namespace."""
    program = (
        "import os\n"
        "from forewarn.client.dhcp import EthernetInterface, ask_for_endpoint\n"
        "try:\n"
        "    ask_for_endpoint(EthernetInterface(name='lo', mac=b'123456'))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    command = ["unshare", "--user", "--net", sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == (
        "Unavailable DHCP needs root, or CAP_NET_BIND_SERVICE and CAP_NET_RAW: name the endpoint\n"
    ), result.stderr
