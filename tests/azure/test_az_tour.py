"""The tour with az in docs/how-to/azure.md runs in order, and prints what the page shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.service_process import free_port
from tools.docs.executable_page import ROOT, CommandStep, open_page_shell, page_steps

PAGE = (ROOT / "docs" / "how-to" / "azure.md").read_text(encoding="utf-8")
AZ = ROOT / ".venv-az" / "bin" / "az"
pytestmark = [pytest.mark.az, pytest.mark.skipif(not AZ.exists(), reason="az was not fetched: `make test-az` does")]


def test_the_tour_with_az_prints_what_the_page_says() -> None:
    shown = page_steps(PAGE, ["azurecli"])
    assert len(shown) > 8
    port = free_port(2)
    programs = os.pathsep.join([str(Path(sys.executable).parent), str(AZ.parent), os.environ["PATH"]])
    steps = [CommandStep("forewarn up --detach --wait-ready", None), *shown]
    plain = {"AZURE_CORE_NO_COLOR": "true", "AZURE_CORE_DISABLE_PROGRESS_BAR": "true"}
    with open_page_shell(ports=(port, port + 1), PATH=programs, **plain) as shell:
        assert [run.problem for run in shell.run_steps(steps) if run.problem] == []
