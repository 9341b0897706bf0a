"""Spec §2.8: no other program can pose as a namespace VM, so it gets tokens with any settings."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess, free_port

pytestmark = pytest.mark.namespaces

Run = Callable[..., "subprocess.CompletedProcess[str]"]
FLEET = '[[hosts]]\nname = "host-0"\n\n[[vms]]\nname = "web-{n}"\ncount = 2\n'
ASK = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://management.azure.com/"
CURL = ("curl", "--silent", "--max-time", "30", "--header", "Metadata: true")


def test_a_program_inside_a_vm_gets_its_token_and_one_on_loopback_does_not(tmp_path: Path, run: Run) -> None:
    environment = {"FOREWARN_API": f"127.0.0.1:{free_port()}"}
    with ServiceProcess(data=tmp_path, fleet=FLEET, environment=environment) as service:
        given = [run(vm, "--", *CURL, f"http://169.254.169.254{ASK}") for vm in ("web-0", "web-1")]

        tokens = [json.loads(result.stdout) for result in given]
        assert [token["token_type"] for token in tokens] == ["Bearer", "Bearer"]
        assert len({token["client_id"] for token in tokens}) == 2
        assert service.guest("web-0", "GET", ASK).status == 403
