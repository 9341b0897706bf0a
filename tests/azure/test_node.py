"""Azure's library for JavaScript in Node, with only the certificate and the address configured."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import eventually
from tests.support.web_service import SUBSCRIPTION, WebService

PACKAGES = Path(__file__).parents[2] / ".venv-azure" / "node" / "node_modules"
PROGRAM = Path(__file__).with_name("restart_vm.cjs")
pytestmark = [
    pytest.mark.azure,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not PACKAGES.is_dir(), reason="Azure's library for JavaScript was not fetched"),
]


@pytest.fixture
def program(console: WebService, vm: str) -> Iterator[subprocess.Popen[str]]:
    client_id, secret = console.admin_credentials
    known = {"NODE_PATH": str(PACKAGES), "AZURE_CLIENT_ID": client_id, "AZURE_CLIENT_SECRET": secret}
    line = ["node", str(PROGRAM), console.base_url, SUBSCRIPTION, "shop", vm]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=console.trusting_environment | known) as child:
        yield child
        child.kill()


def message(program: subprocess.Popen[str]) -> Any:
    assert program.stdout is not None
    return json.loads(program.stdout.readline())


def test_the_node_sdk_lists_vms_and_waits_for_a_restart(
    console: WebService, vm: str, program: subprocess.Popen[str]
) -> None:
    assert vm in message(program)["listed"]
    eventually(lambda: console.scheduled_event_ids(vm))
    assert program.poll() is None

    console.approve_all(vm)
    console.service.advance(300)
    assert message(program) == {"restarted": vm}
    assert program.wait(timeout=30) == 0
