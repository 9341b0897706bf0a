"""The console of a real VM: what its guest has written, found by any name of the VM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, Lab


@pytest.mark.parametrize("form", ["name", "group and name"])
def test_the_console_shows_what_the_guest_has_written(data: Path, lab: Lab, command: Command, form: str) -> None:
    vm = lab.api.get("vms", "web")
    directory = data / "hosts" / vm["host"]
    directory.mkdir(parents=True)
    (directory / "web.console.log").write_text("booted\n")
    name = "web" if form == "name" else f"{vm['resource_group']}/web"
    assert command.good("vm", "console", name, "--log") == "booted\n"
