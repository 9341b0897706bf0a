"""The programs in docs/how-to/vm.md run inside VMs as shown, and print what it says."""

from __future__ import annotations

import shutil

import pytest

from tests.support.service_process import free_port
from tools.docs.executable_page import ROOT, CommandStep, open_page_shell, page_steps

PAGE = (ROOT / "docs" / "how-to" / "vm.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.namespaces


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl missing: see `make test-namespaces`")
def test_the_programs_on_the_page_run_in_their_vms() -> None:
    port = free_port(2)
    shown = page_steps(PAGE, ["shell-session"])
    # A note on stderr says so where the machine has no program for outgoing connections.
    before = [CommandStep(line, None) for line in ("forewarn up --detach --wait-ready", "exec 2>/dev/null")]
    with open_page_shell(ports=(port, port + 1)) as shell:
        assert [run.problem for run in shell.run_steps([*before, *shown]) if run.problem] == []
    assert len(shown) == 3
