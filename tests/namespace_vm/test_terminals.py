"""The terminal belongs to the program inside: shells, Ctrl-C and Ctrl-Z work as without a VM."""

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces


class Terminal:
    """A terminal with one program as its session."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.shown = ""
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execvpe(arguments[0], arguments, {**os.environ, "TERM": "dumb", "PS1": "$ ", **environment})

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def expect(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.shown:
            ready, _, _ = select.select([self._file], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} never came: {self.shown!r}"
            try:
                self.shown += os.read(self._file, 65536).decode(errors="replace")
            except OSError:
                assert text in self.shown, f"{text!r} never came: {self.shown!r}"
        self.shown = self.shown.partition(text)[2]

    def code(self) -> int:
        """The exit code, once the program has ended; reads its output meanwhile, so that it does not block."""
        while select.select([self._file], [], [], 30)[0]:
            try:
                if not os.read(self._file, 65536):
                    break
            except OSError:
                break
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._file)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def forewarn(data: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", "--data", str(data), "vm", *arguments]


@pytest.fixture
def shell(service: FakeSupervisorServer, tmp_path: Path, terminals: list[Terminal]) -> Terminal:
    arguments = forewarn(tmp_path, "shell", "web-0", "--isolated", "--grace", "0.3")
    terminals.append(Terminal(*arguments, SHELL="/bin/bash", HOME=str(tmp_path)))
    terminals[0].type("echo in $(hostname)\n")
    terminals[0].expect("in web-0-computer")
    return terminals[0]


def test_a_shell_inside_a_vm_exits_with_its_own_code(shell: Terminal) -> None:
    shell.type("exit 6\n")

    assert shell.code() == 6


def test_ctrl_c_ends_the_command_of_a_shell_and_not_the_shell(shell: Terminal) -> None:
    shell.type("sh -c 'echo go; exec sleep 1000'\n")
    shell.expect("go\r\n")

    shell.type("\x03")
    shell.type("echo still $((40 + 2))\n")

    shell.expect("still 42")


def test_a_shell_inside_a_vm_has_job_control(shell: Terminal) -> None:
    shell.type("sh -c 'echo go; exec sleep 1000'\n")
    shell.expect("go\r\n")

    shell.type("\x1a")
    shell.expect("Stopped")
    shell.type("kill %1; echo job $((40 + 2))\n")

    shell.expect("job 42")


def test_a_shell_and_its_jobs_continue_after_a_freeze(shell: Terminal, service: FakeSupervisorServer) -> None:
    shell.type("sh -c 'echo go; sleep 0.5; echo over $((40 + 2))'\n")
    shell.expect("go\r\n")

    service.perform("web-0", "freeze", duration_s=0.3)

    shell.expect("over 42")
    assert "Stopped" not in shell.shown


def test_a_reboot_gives_the_terminal_to_a_new_shell(shell: Terminal, service: FakeSupervisorServer) -> None:
    shell.type("echo before $FOREWARN_BOOT_ID\n")
    shell.expect("before " + service.wait_for_message("web-0", "hello")["hello"]["boot_id"])

    boot_id = service.perform("web-0", "reboot")["boot_id"]
    shell.type("echo after $FOREWARN_BOOT_ID\n")

    shell.expect(f"after {boot_id}")


def test_ctrl_c_ends_a_program_inside_a_vm(
    service: FakeSupervisorServer, tmp_path: Path, terminals: list[Terminal]
) -> None:
    arguments = forewarn(tmp_path, "run", "web-0", "--isolated", "--", "sh", "-c", "echo ready; exec sleep 1000")
    terminals.append(Terminal(*arguments))
    terminals[0].expect("ready")

    terminals[0].type("\x03")

    assert terminals[0].code() == 130


def test_ctrl_z_suspends_the_program_as_a_job_of_the_users_shell(
    service: FakeSupervisorServer, tmp_path: Path, terminals: list[Terminal]
) -> None:
    outer = Terminal("/bin/bash", "--norc", "--noprofile", "-i", HOME=str(tmp_path))
    terminals.append(outer)
    line = " ".join(
        forewarn(tmp_path, "run", "web-0", "--isolated", "--", "sh", "-c", "'echo ready; read x; echo got $x'")
    )
    outer.type(f"{line}\n")
    outer.expect("ready\r\n")

    outer.type("\x1a")
    outer.expect("Stopped")
    outer.type("echo outside $((40 + 2))\n")
    outer.expect("outside 42")
    outer.type("fg\n")
    outer.expect("vm run web-0")
    outer.type("word\n")

    outer.expect("got word")
    outer.type("exit 0\n")
