"""The README's programs inside VMs run as shown, and print what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service_process import ServiceProcess

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^\$ (.*)\n([^$`]*)", re.MULTILINE)

pytestmark = pytest.mark.namespaces


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl missing: see `make test-namespaces`")
def test_the_programs_of_the_readme_run_in_their_vms(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```shell-session\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    with ServiceProcess(data=tmp_path) as service:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        surroundings = os.environ | {"FOREWARN_DATA": str(service.data), "PATH": path}
        for command, expected in SHOWN.findall(block):
            line = ["bash", "-c", command]
            ran = subprocess.run(line, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
            assert (ran.returncode, ran.stdout.strip()) == (0, expected.strip()), f"$ {command}\n{ran.stderr}"
        assert len(SHOWN.findall(block)) == 3
