"""Spec §2.5: outside a virtual network a client discovers its endpoint by DHCP (evidence §9)."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CLIENT = Path(__file__).parent / "dhcp_client.py"


@pytest.mark.parametrize("flag", ["0", "1"], ids=["no broadcast flag", "broadcast flag"])
def test_a_client_discovers_the_endpoint_and_finds_the_service_there(
    service: FakeSupervisorServer, run: Run, flag: str
) -> None:
    result = run("web-0", "--no-vnet", "--", sys.executable, str(CLIENT), flag)

    assert result.stdout == '168.63.129.16\n{"vm": "web-0", "path": "/metadata/scheduledevents"}\n', result.stderr
    assert service.wait_for_message("web-0", "listener")["listener"] == {"address": "168.63.129.16", "port": 80}


def test_a_client_finds_the_service_on_port_8080_too(service: FakeSupervisorServer, run: Run) -> None:
    """Azure's samples in C# and PowerShell use that port (evidence §9)."""
    read = "import urllib.request; print(urllib.request.urlopen('http://168.63.129.16:8080/x', timeout=10).read())"

    result = run("web-0", "--no-vnet", "--", sys.executable, "-c", read)

    assert '"vm": "web-0"' in result.stdout, result.stderr
    second = service.wait_for_message("web-0", "listener", times=2)["listener"]
    assert second == {"address": "168.63.129.16", "port": 8080}


def test_outside_a_virtual_network_169_254_169_254_is_unreachable(service: FakeSupervisorServer, run: Run) -> None:
    connect = "import socket; socket.create_connection(('169.254.169.254', 80), timeout=60)"

    result = run("web-0", "--no-vnet", "--", sys.executable, "-c", connect)

    assert result.returncode == 1
    assert "No route to host" in result.stderr, "a probe is refused, so that discovery goes on without waiting"


def test_vms_outside_a_virtual_network_do_not_get_each_others_dhcp_replies(
    service: FakeSupervisorServer, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-m", "forewarn", "--data", str(tmp_path), "vm", "run"]
    children = [
        subprocess.Popen(
            [*arguments, f"web-{number}", "--no-vnet", "--", sys.executable, str(CLIENT), "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(5)
    ]

    result = [child.communicate(timeout=60)[0] for child in children]

    assert all(f'"vm": "web-{number}"' in output for number, output in enumerate(result))
