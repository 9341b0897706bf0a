"""The console of a real VM: what its guest has written, found by any name of the VM."""

from __future__ import annotations

import socket
import subprocess
import sys
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


def console_command(path: Path) -> list[str]:
    program = "import sys, pathlib; from forewarn.cli.vm import attach; attach(pathlib.Path(sys.argv[1]), 'web')"
    return [sys.executable, "-c", program, str(path)]


@pytest.mark.parametrize("kind", ["file", "device"])
def test_input_that_is_a_file_is_sent_to_the_guest_up_to_its_end(data: Path, kind: str) -> None:
    script = data / "script" if kind == "file" else Path("/dev/null")
    if kind == "file":
        script.write_text("poweroff\n")
    with socket.socket(socket.AF_UNIX) as listener, script.open() as typed:
        listener.bind(str(data / "web.console"))
        listener.listen()
        with subprocess.Popen(console_command(data / "web.console"), stdin=typed, stderr=subprocess.PIPE) as child:
            listener.settimeout(60)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                assert b"".join(iter(lambda: connection.recv(1024), b"")) == (b"poweroff\n" if kind == "file" else b"")
            assert child.communicate(timeout=60)[1] == b""
    assert child.returncode == 0


def test_a_vm_without_a_console_is_not_said_to_be_connected(lab: Lab, command: Command) -> None:
    assert command.refused("vm", "console", "web").startswith("VM 'web' has no console: only VMs that run")
