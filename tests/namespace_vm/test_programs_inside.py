"""Any program runs inside a VM unchanged: 169.254.169.254 is the service (spec §2.1)."""

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
MACHINE_SETTINGS = (
    *("/proc/sys/vm/swappiness", "/proc/sys/kernel/panic", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity"),
    "/sys/kernel/mm/transparent_hugepage/enabled",
)
UNPRIVILEGED = """
import ctypes, encodings.idna, os, sys, pathlib
from forewarn.machines.namespace_vm.run import VmRunOptions, run_vm
import asyncio.unix_events
data, *program = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an execve: our own /proc is ours
options = VmRunOptions(vm="web-0", program=tuple(program), data=pathlib.Path(data), is_isolated=True)
sys.exit(run_vm(options, print))
"""


def test_the_service_answers_at_the_built_in_address_of_clients(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", sys.executable, "-c", POLL)

    assert result.stdout == """b'{"vm": "web-0", "path": "/metadata/versions"}'\n""", result.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_inside_a_vm_reaches_the_service(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", "curl", "-sS", "-m", "9", "http://169.254.169.254/x")

    assert result.stdout == '{"vm": "web-0", "path": "/x"}', result.stderr


def test_each_of_two_vms_is_identified_as_itself(service: FakeSupervisorServer, run: Run) -> None:
    for vm in ("web-0", "web-1"):
        assert f'"vm": "{vm}"' in run(vm, "--", sys.executable, "-c", POLL).stdout


def test_the_hostname_is_the_computer_name_of_the_vm(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", sys.executable, "-c", "import socket; print(socket.gethostname())")

    assert result.stdout == "web-0-computer\n"
    assert os.uname().nodename != "web-0-computer"


def test_a_vm_has_its_own_boot_id(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", "sh", "-c", "cat /proc/sys/kernel/random/boot_id; echo $FOREWARN_BOOT_ID")

    read, given = result.stdout.split()
    assert read == given == service.wait_for_message("web-0", "hello")["hello"]["boot_id"]
    assert given != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change settings of the machine")
def test_a_program_of_root_cannot_change_the_settings_of_the_machine(service: FakeSupervisorServer, run: Run) -> None:
    shared = [path for path in MACHINE_SETTINGS if os.access(path, os.W_OK)]
    script = 'for file; do if (: >> "$file") 2> /dev/null; then echo "$file"; fi; done'  # opens, and writes nothing

    result = run("web-0", "--", "sh", "-c", script, "sh", *shared, "/proc/sys/net/ipv4/ip_forward")

    assert "/proc/sys/vm/swappiness" in shared
    assert result.stdout == "/proc/sys/net/ipv4/ip_forward\n", "the VM's own network can be changed, and nothing else"


def test_the_environment_names_the_vm(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", "sh", "-c", 'echo "$FOREWARN_VM $FOREWARN_HOST $FOREWARN_EPHEMERAL"')

    assert result.stdout.split() == ["web-0", "host-0", str(service.directory_of("web-0") / "ephemeral")]


def test_a_program_runs_as_the_calling_user_in_the_current_directory(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", "sh", "-c", "id -u; id -g; pwd")

    assert result.stdout.split() == [str(os.getuid()), str(os.getgid()), os.getcwd()]


def test_a_vm_sees_only_its_own_devices_and_processes(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", "sh", "-c", "ls /sys/class/net; ls -d /proc/[0-9]* | wc -l")

    devices, processes = result.stdout.split()
    assert devices == "lo"
    assert int(processes) <= 5


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_that_of_the_program(service: FakeSupervisorServer, run: Run, script: str, code: int) -> None:
    assert run("web-0", "--", "sh", "-c", script).returncode == code


@pytest.mark.parametrize(("program", "code"), [("/no/such", 127), ("/etc/passwd", 126)], ids=["absent", "no program"])
def test_a_program_that_cannot_be_started_has_the_exit_code_of_a_shell(
    service: FakeSupervisorServer, run: Run, program: str, code: int
) -> None:
    result = run("web-0", "--", program)

    assert result.returncode == code
    assert f"program {program!r} cannot be started in VM 'web-0': " in result.stderr


def test_a_program_that_goes_to_the_background_gets_a_message(service: FakeSupervisorServer, run: Run) -> None:
    result = run("web-0", "--", "sh", "-c", "setsid sleep 600 </dev/null >/dev/null 2>&1 &")

    assert result.returncode == 0
    assert "its background processes end with it: run it in the foreground" in result.stderr
    assert "background" not in run("web-0", "--", "true").stderr


def test_the_service_is_informed_how_a_program_ended(service: FakeSupervisorServer, run: Run) -> None:
    run("web-0", "--", "sh", "-c", "exit 3")
    run("web-1", "--", "sh", "-c", "kill -9 $$")

    assert service.wait_for_message("web-0", "exited")["exited"] == {"code": 3, "signal": None, "output": ""}
    assert service.wait_for_message("web-1", "exited")["exited"] == {"code": None, "signal": 9, "output": ""}


def test_the_output_of_a_detached_program_is_kept_and_its_exit_reported(
    service: FakeSupervisorServer, run: Run
) -> None:
    result = run("web-0", "--detached", "--", "sh", "-c", "seq 2000; echo last words >&2; cat")

    log = (service.directory_of("web-0") / "output.log").read_text()
    assert (result.stdout, result.returncode) == ("", 0)
    assert log.startswith("1\n2\n")
    output = service.wait_for_message("web-0", "exited")["exited"]["output"]
    assert output == log[-4096:]
    assert output.endswith("last words\n")


def test_stdin_and_pipes_belong_to_the_program(service: FakeSupervisorServer, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "forewarn",
        "--data",
        str(tmp_path),
        "vm",
        "run",
        "web-0",
        "--isolated",
        "--",
        "cat",
    ]

    result = subprocess.run(command, input=b"abc" * 100_000, capture_output=True, timeout=60, check=True)

    assert result.stdout == b"abc" * 100_000
    assert result.stderr == b""


def test_without_a_service_there_is_one_sentence_and_exit_code_3(run: Run) -> None:
    result = run("web-0", "--", "true")

    assert result.returncode == 3
    assert "start one with `forewarn up`" in result.stderr


def test_a_refusal_prints_the_message_of_the_service_with_exit_code_2(service: FakeSupervisorServer, run: Run) -> None:
    service.refusals["web-9"] = "there is no VM 'web-9': see `forewarn fleet show`"

    result = run("web-9", "--", "true")

    assert (result.returncode, result.stderr) == (2, "there is no VM 'web-9': see `forewarn fleet show`\n")


@pytest.fixture
def unprivileged_service() -> Iterator[FakeSupervisorServer]:
    """The service of an unprivileged user."""
    with tempfile.TemporaryDirectory() as directory, FakeSupervisorServer(Path(directory)) as service:
        (service.directory_of("web-0") / "ephemeral").mkdir(parents=True)
        for path in (service.data, *service.data.rglob("*")):
            os.chown(path, 65534, 65534)
        yield service


@pytest.mark.skipif(os.getuid() != 0, reason="everything here runs without root then")
def test_namespace_vms_need_no_root(unprivileged_service: FakeSupervisorServer) -> None:
    script = "id -u; hostname; cat /proc/sys/kernel/random/boot_id; grep CapEff /proc/self/status"

    result = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(unprivileged_service.data), "/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    uid, hostname, boot_id, _, capabilities = result.stdout.split()
    assert (uid, hostname) == ("65534", "web-0-computer"), result.stderr
    assert boot_id == unprivileged_service.wait_for_message("web-0", "hello")["hello"]["boot_id"]
    assert int(capabilities, 16) == 0


@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not installed")
def test_where_namespaces_are_forbidden_the_message_says_what_to_do(
    service: FakeSupervisorServer, tmp_path: Path
) -> None:
    command = f"{sys.executable} -m forewarn --data {tmp_path} vm run web-0 -- true"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"

    result = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", f"{forbid}; exec {command}"], capture_output=True, text=True, check=False
    )

    assert result.returncode == 2
    assert result.stderr.startswith("this machine does not allow namespace VMs (")
    assert "run this as root" in result.stderr
    assert result.stderr.count("\n") == 1
