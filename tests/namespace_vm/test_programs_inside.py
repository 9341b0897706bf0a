"""Any program runs inside a VM unchanged: 169.254.169.254 is the service (spec §2.1), the hostname is the VM's."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fake_supervisor_server import FakeSupervisorServer

pytestmark = pytest.mark.namespaces

Run = Callable[..., "subprocess.CompletedProcess[str]"]

POLL = "import urllib.request as u; print(u.urlopen('http://169.254.169.254/metadata/versions', timeout=9).read())"
UNPRIVILEGED = """
import ctypes, encodings.idna, os, sys, pathlib
from forewarn.namespace_vm.run import VmRunOptions, run_vm
import asyncio.unix_events
data, *program = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an execve: our own /proc is ours
options = VmRunOptions(vm="web-0", program=tuple(program), data=pathlib.Path(data), is_isolated=True)
sys.exit(run_vm(options, print))
"""


def test_the_service_answers_at_the_address_that_clients_have_built_in(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", sys.executable, "-c", POLL)

    assert told.stdout == """b'{"vm": "web-0", "path": "/metadata/versions"}'\n""", told.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_inside_a_vm_reaches_the_service(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", "curl", "-sS", "-m", "9", "http://169.254.169.254/x")

    assert told.stdout == '{"vm": "web-0", "path": "/x"}', told.stderr


def test_each_of_two_vms_is_itself(service: FakeSupervisorServer, run: Run) -> None:
    for vm in ("web-0", "web-1"):
        assert f'"vm": "{vm}"' in run(vm, "--", sys.executable, "-c", POLL).stdout


def test_the_hostname_is_the_vm_s_computer_name(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", sys.executable, "-c", "import socket; print(socket.gethostname())")

    assert told.stdout == "web-0-computer\n"
    assert os.uname().nodename != "web-0-computer"


def test_the_boot_id_is_the_vm_s_own(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", "sh", "-c", "cat /proc/sys/kernel/random/boot_id; echo $FOREWARN_BOOT_ID")

    read, given = told.stdout.split()
    assert read == given == service.wait_for_message("web-0", "hello")["hello"]["boot_id"]
    assert given != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_program_is_told_which_vm_it_is_in(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", "sh", "-c", 'echo "$FOREWARN_VM $FOREWARN_HOST $FOREWARN_EPHEMERAL"')

    assert told.stdout.split() == ["web-0", "host-0", str(service.directory_of("web-0") / "ephemeral")]


def test_a_program_runs_as_the_caller_in_the_caller_s_directory(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", "sh", "-c", "id -u; id -g; pwd")

    assert told.stdout.split() == [str(os.getuid()), str(os.getgid()), os.getcwd()]


def test_a_vm_has_no_devices_and_no_processes_but_its_own(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", "sh", "-c", "ls /sys/class/net; ls -d /proc/[0-9]* | wc -l")

    devices, processes = told.stdout.split()
    assert devices == "lo"
    assert int(processes) <= 5


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_program_s(service: FakeSupervisorServer, run: Run, script: str, code: int) -> None:
    assert run("web-0", "--", "sh", "-c", script).returncode == code


@pytest.mark.parametrize(("program", "code"), [("/no/such", 127), ("/etc/passwd", 126)], ids=["absent", "no program"])
def test_a_program_that_cannot_be_started_is_told_as_shells_do(
    service: FakeSupervisorServer, run: Run, program: str, code: int
) -> None:
    told = run("web-0", "--", program)

    assert told.returncode == code
    assert f"program {program!r} cannot be started in VM 'web-0': " in told.stderr


def test_a_program_that_goes_to_the_background_is_told_to_stay(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--", "sh", "-c", "setsid sleep 600 </dev/null >/dev/null 2>&1 &")

    assert told.returncode == 0
    assert "what it left in the background ends with it: run it in the foreground" in told.stderr
    assert "background" not in run("web-0", "--", "true").stderr


def test_the_service_hears_how_a_program_ended(service: FakeSupervisorServer, run: Run) -> None:
    run("web-0", "--", "sh", "-c", "exit 3")
    run("web-1", "--", "sh", "-c", "kill -9 $$")

    assert service.wait_for_message("web-0", "exited")["exited"] == {"code": 3, "signal": None, "output": ""}
    assert service.wait_for_message("web-1", "exited")["exited"] == {"code": None, "signal": 9, "output": ""}


def test_what_a_detached_program_writes_is_kept_and_its_end_is_told(service: FakeSupervisorServer, run: Run) -> None:
    told = run("web-0", "--detached", "--", "sh", "-c", "seq 2000; echo last words >&2; cat")

    log = (service.directory_of("web-0") / "output.log").read_text()
    assert (told.stdout, told.returncode) == ("", 0)
    assert log.startswith("1\n2\n")
    output = service.wait_for_message("web-0", "exited")["exited"]["output"]
    assert output == log[-4096:]
    assert output.endswith("last words\n")


def test_stdin_and_pipes_belong_to_the_program(service: FakeSupervisorServer, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "forewarn", "--data", str(tmp_path), "vm", "run", "web-0", "--isolated", "--", "cat"]

    told = subprocess.run(line, input=b"abc" * 100_000, capture_output=True, timeout=60, check=True)

    assert told.stdout == b"abc" * 100_000
    assert told.stderr == b""


def test_no_service_is_one_sentence_and_exit_code_3(run: Run) -> None:
    told = run("web-0", "--", "true")

    assert told.returncode == 3
    assert "start one with `forewarn up`" in told.stderr


def test_a_refusal_is_told_in_the_service_s_words_with_exit_code_2(service: FakeSupervisorServer, run: Run) -> None:
    service.refusals["web-9"] = "there is no VM 'web-9': see `forewarn fleet show`"

    told = run("web-9", "--", "true")

    assert (told.returncode, told.stderr) == (2, "there is no VM 'web-9': see `forewarn fleet show`\n")


@pytest.fixture
def somebody() -> Iterator[FakeSupervisorServer]:
    """The service of a user without privilege."""
    with tempfile.TemporaryDirectory() as directory, FakeSupervisorServer(Path(directory)) as service:
        (service.directory_of("web-0") / "ephemeral").mkdir(parents=True)
        for path in (service.data, *service.data.rglob("*")):
            os.chown(path, 65534, 65534)
        yield service


@pytest.mark.skipif(os.getuid() != 0, reason="everything here runs without root then")
def test_no_root_is_needed(somebody: FakeSupervisorServer) -> None:
    script = "id -u; hostname; cat /proc/sys/kernel/random/boot_id; grep CapEff /proc/self/status"

    told = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(somebody.data), "/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    uid, hostname, boot_id, _, capabilities = told.stdout.split()
    assert (uid, hostname) == ("65534", "web-0-computer"), told.stderr
    assert boot_id == somebody.wait_for_message("web-0", "hello")["hello"]["boot_id"]
    assert int(capabilities, 16) == 0


@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not installed")
def test_where_namespaces_are_forbidden_the_way_on_is_told(service: FakeSupervisorServer, tmp_path: Path) -> None:
    line = f"{sys.executable} -m forewarn --data {tmp_path} vm run web-0 -- true"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"

    told = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", f"{forbid}; exec {line}"], capture_output=True, text=True, check=False
    )

    assert told.returncode == 2
    assert told.stderr.startswith("this machine does not let a VM be made of namespaces (")
    assert "run this as root" in told.stderr
    assert told.stderr.count("\n") == 1
